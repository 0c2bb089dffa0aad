"""The engines of the served models, by name."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

from service.engine.backlog import Backlog
from service.engine.engine import Engine, FastLanes
from service.engine.schema.model import ModelInfo
from service.errors import NotFound, echo
from service.request_log import current_record
from service.spelling import join


class Models:
    """One engine per served model, at least one. The first one serves requests that name no model.

    Attributes:
        fast_lanes: The fast lanes of all engines, for new ones.
        generation: Changes with the models.
    """

    def __init__(self, engines: Sequence[Engine], fast_lanes: FastLanes | None = None) -> None:
        self.fast_lanes = fast_lanes if fast_lanes is not None else []
        self._near_capacity: set[Backlog] = set()
        self._retiring: set[Engine] = set()
        self._engines: tuple[Engine, ...] = ()
        self.generation = 0
        self.replace(engines)

    def replace(self, engines: Sequence[Engine]) -> list[Engine]:
        """Serve these models from now on; return the engines that are no longer used, to be passed to `retire`."""
        removed = [engine for engine in self._engines if engine not in engines]
        self._engines = tuple(engines)
        self.generation += 1
        self._by_name = {name: engine for engine in engines for name in (engine.info.name, *engine.info.aliases)}
        self._retiring.update(removed)
        for engine in engines:
            engine.share(len(engines))
            engine.fast_lane.admission.backlog.near_capacity = self._near_capacity
        for engine in removed:
            self._near_capacity.discard(engine.fast_lane.admission.backlog)
            engine.fast_lane.admission.backlog.near_capacity = set()
        return removed

    async def retire(self, engine: Engine) -> None:
        """Close a replaced engine once no request uses it."""
        await engine.retire()
        self._retiring.discard(engine)

    def watch_capacity(self, near_capacity: set[Backlog]) -> None:
        """Keep the backlogs whose lane may reject the next request in this set."""
        self._near_capacity = near_capacity
        for engine in self._engines:
            engine.fast_lane.admission.backlog.near_capacity = near_capacity

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def names(self) -> list[str]:
        """The names and aliases of the models."""
        return list(self._by_name)

    @property
    def infos(self) -> list[ModelInfo]:
        """The descriptions of the models."""
        return [engine.info for engine in self._engines]

    def queued_tokens_by_caller(self) -> Counter[str]:
        """Return how many tokens of callers with a name are queued or in preparation, in all models."""
        return sum((engine.queued_tokens_by_caller() for engine in self._all), Counter[str]())

    def find(self, name: str | None = None, field: str = "model") -> Engine:
        """Return the engine of a model, or of the default model; raises `NotFound` with `field`.

        The record of the current request notes the model, and keeps its engine until the request is finished.
        """
        engine = self._engines[0] if name is None else self._by_name.get(name)
        if engine is None:
            names = [f'"{known}"' for known in self.names]
            raise NotFound(
                "not found", f"This server serves {join(names)}.",
                field=field, actual=echo(name or ""), reason="MODEL_NOT_FOUND",
            )  # fmt: skip
        if (record := current_record()) is not None:
            record.model = engine.name
            record.use(engine)
        return engine

    @property
    def _all(self) -> list[Engine]:
        return [*self._engines, *self._retiring]

    @property
    def healthy(self) -> bool:
        """True while every engine can compute embeddings."""
        return all(engine.healthy for engine in self._engines)

    def watch(self, seconds: float) -> None:
        """Count `seconds` of run time for the running batches of every model."""
        for engine in self._all:
            engine.watch(seconds)

    async def drain(self) -> None:
        """Wait until every admitted request has finished."""
        await asyncio.gather(*(engine.drain() for engine in self._all))

    async def close(self) -> None:
        """Fail queued requests and stop the workers."""
        await asyncio.gather(*(engine.close() for engine in self._all))
