"""The engines of the served models, by name."""

import asyncio
from collections.abc import Iterator, Sequence

from service.config import Settings
from service.engine.backlog import Backlog
from service.engine.engine import Engine, EngineGroup
from service.engine.model_loader import LoadedModel
from service.engine.schema.model import ModelInfo
from service.errors import NotFound, echo
from service.metrics import Metrics
from service.request_log import current_record
from service.spelling import join


class Models:
    """One engine per served model, at least one. The first one serves requests that name no model."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)
        self._by_name = {name: engine for engine in engines for name in (engine.info.name, *engine.info.aliases)}

    @classmethod
    def start(cls, loaded: Sequence[LoadedModel], settings: Settings, metrics: Metrics) -> "Models":
        """Start an engine for each model, in the order of `Settings.served_models`. Call it on the event loop."""
        group = EngineGroup(len(loaded))
        return cls(
            [
                Engine(model, settings, metrics, option, group)
                for model, option in zip(loaded, settings.served_models, strict=True)
            ]
        )

    def watch_capacity(self, near_capacity: set[Backlog]) -> None:
        """Keep the backlogs whose lane may reject the next request in this set."""
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

    def find(self, name: str | None = None, field: str = "model") -> Engine:
        """Return the engine of a model, or of the default model; raises `NotFound` with `field`.

        The model is noted in the record of the current request.
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
        return engine

    @property
    def healthy(self) -> bool:
        """True while every engine can compute embeddings."""
        return all(engine.healthy for engine in self._engines)

    def watch(self, seconds: float) -> None:
        """Count `seconds` of run time for the running batches of every model."""
        for engine in self._engines:
            engine.watch(seconds)

    async def drain(self) -> None:
        """Wait until every admitted request has finished."""
        await asyncio.gather(*(engine.drain() for engine in self._engines))

    async def close(self) -> None:
        """Fail queued requests and stop the workers."""
        await asyncio.gather(*(engine.close() for engine in self._engines))
