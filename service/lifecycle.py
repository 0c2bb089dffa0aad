"""Process state, and the served models once they are loaded."""

import enum
from typing import TYPE_CHECKING

from service.errors import Draining, Starting, Unsupported
from service.metrics import Metrics

if TYPE_CHECKING:
    from service.engine.engine import Models
    from service.engine.repository import ModelRepository, ModelState

RETRY_AFTER_S = 1


class Status(enum.Enum):
    """Process status; the values appear in probe responses."""

    STARTING = "starting"
    READY = "ok"
    DRAINING = "draining"
    FAILED = "failed"


class Lifecycle:
    """The process state.

    Read `models` for every request: it raises `Unavailable` until the models are loaded and after `reject_new`.

    Attributes:
        loaded: The models, once they are loaded.
        draining: True from `start_draining` on. Clients should send their next request on another connection.
        rejecting: True from `reject_new` on.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.loaded: Models | None = None
        self._repository: ModelRepository | None = None
        self.status = Status.STARTING
        self.draining = self.rejecting = False

    @property
    def models(self) -> "Models":
        """The served models; raises `Unavailable` unless requests are accepted."""
        if self.rejecting:
            raise Draining("Server is shutting down", "Retry on another instance.", retry_after_s=RETRY_AFTER_S)
        if self.loaded is None:
            raise Starting("Model is loading", "Retry later.", retry_after_s=RETRY_AFTER_S)
        return self.loaded

    @property
    def repository(self) -> "ModelRepository":
        """The repository that loads and unloads models. Raises the errors of `models`."""
        _ = self.models
        if self._repository is None:
            raise Unsupported(
                "Models cannot be loaded or unloaded", "Set ATTENDANT_MODELS_FILE and restart the server."
            )
        return self._repository

    @property
    def unserved(self) -> "list[ModelState]":
        """The models in the models file that are not served."""
        states = [] if self._repository is None else self._repository.states
        return [state for state in states if not state.ready]

    @property
    def alive(self) -> bool:
        return self.status is not Status.FAILED

    @property
    def ready(self) -> bool:
        return self.status is Status.READY

    def become_ready(self, models: "Models", repository: "ModelRepository | None" = None) -> None:
        """Accept requests. Without a repository, the models never change."""
        self._repository = repository
        self.loaded = models
        self._set_status(Status.READY)

    def start_draining(self) -> None:
        """Report not ready but keep accepting requests, because load balancers need time to deregister the instance."""
        self.draining = True
        self._set_status(Status.DRAINING)

    @property
    def healthy(self) -> bool:
        """False once an engine can no longer compute embeddings, or a batch has stalled."""
        return self.loaded is None or self.loaded.healthy

    def watch(self, seconds: float) -> None:
        """Add `seconds` to the run time of the running batches."""
        if self.loaded is not None:
            self.loaded.watch(seconds)

    def fail(self) -> None:
        """Report neither ready nor live: the model could not be loaded, or its backend failed."""
        self._set_status(Status.FAILED)

    def reject_new(self) -> None:
        """Reject requests from now on; accepted ones continue."""
        self.draining = self.rejecting = True

    async def drain(self) -> None:
        """Wait until every accepted request has a response."""
        if self.loaded is not None:
            await self.loaded.drain()

    async def close(self) -> None:
        """Close the engines, if any."""
        if self.loaded is not None:
            await self.loaded.close()

    def _set_status(self, status: Status) -> None:
        self.status = status
        self._metrics.ready_workers.set(status is Status.READY)
        self._metrics.ready.set(status is Status.READY)
        self._metrics.draining.set(status is Status.DRAINING)
