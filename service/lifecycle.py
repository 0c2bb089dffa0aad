"""What the doors hold: the engine once it is loaded, and what state the process is in."""

import enum

from service.engine.engine import Engine
from service.errors import Unavailable
from service.metrics import Metrics


class Status(enum.Enum):
    STARTING = "starting"
    OK = "ok"
    DRAINING = "draining"
    FAILED = "failed"


class Lifecycle:
    """One a process. `engine` is to be asked for each time: before loading and while stopping it refuses."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._engine: Engine | None = None
        self.status = Status.STARTING
        self.refusing = False

    @property
    def engine(self) -> Engine:
        if self.refusing:
            raise Unavailable("The server is stopping; send the request to another.", reason="draining")
        if self._engine is None:
            raise Unavailable("The server is still loading its model. Try again shortly.", reason="starting")
        return self._engine

    @property
    def loaded(self) -> bool:
        return self._engine is not None

    @property
    def crowded(self) -> bool:
        """As `Engine.crowded`; never before there is an engine."""
        return self._engine is not None and self._engine.near_capacity

    @property
    def alive(self) -> bool:
        return self.status is not Status.FAILED

    @property
    def ready(self) -> bool:
        return self.status is Status.OK

    def become_ready(self, engine: Engine) -> None:
        self._engine = engine
        self._enter(Status.OK)

    def start_draining(self) -> None:
        """No longer ready, but requests are still taken: balancers need a moment to look away."""
        self._enter(Status.DRAINING)

    def fail(self) -> None:
        self._enter(Status.FAILED)

    def refuse(self) -> None:
        """From here on requests are refused; those that were taken go on."""
        self.refusing = True

    async def drain(self) -> None:
        """Return when what was taken has been answered."""
        if self._engine is not None:
            await self._engine.drain()

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()

    def _enter(self, status: Status) -> None:
        self.status = status
        self._metrics.ready.set(status is Status.OK)
        self._metrics.draining.set(status is Status.DRAINING)
