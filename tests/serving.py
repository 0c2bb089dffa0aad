"""The service in a thread of this process, with real sockets and both APIs."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import httpx
from prometheus_client import CollectorRegistry

from service.config import Settings
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.engine.repository import ModelRepository
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.models_file import configured_models
from service.rest.app import make_app
from service.rest.protocol import ConnectionLimits
from service.rest.server import Server
from service.rpc.server import RpcServer
from tests.labels import CASES, export_classifier
from tests.retrievers import export_retriever
from tests.shared_models import load_shared

START_TIMEOUT_S = 60


class ServiceThread:
    """Serves loaded models inside a `with` block.

    `options` are fields of Settings. If there are several models, `models` names them. `largest_response` is the
    largest response size estimate for the first model; tests reset it.
    """

    def __init__(self, *models: LoadedModel, **options: Any) -> None:
        self._models = models
        self._settings = Settings(**options)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="service")
        self.largest_response = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(START_TIMEOUT_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_TIMEOUT_S)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        settings, metrics = self._settings, Metrics(CollectorRegistry())
        lifecycle = Lifecycle(metrics)
        loaded = zip(configured_models(settings), self._models, strict=True)
        models = ModelRepository(settings, metrics).start(list(loaded))
        self._record_sizes(models.find())
        rest = Server(make_app(lifecycle, settings, metrics), ConnectionLimits(settings.header_timeout_ms / 1000))
        rpc = RpcServer(lifecycle, settings, metrics)
        lifecycle.become_ready(models)
        with socket.create_server(("127.0.0.1", 0)) as bound:
            await rest.start(bound)
            self.rest = f"http://127.0.0.1:{bound.getsockname()[1]}"
            self.grpc = f"127.0.0.1:{await rpc.start('127.0.0.1:0')}"
            await rpc.set_serving(True)
            self._started.set()
            await self._stop.wait()
            await rpc.stop(1)
            await rest.stop(1)
            await models.drain()
            await models.close()

    def _record_sizes(self, engine: Engine) -> None:
        check = engine.check_response_size

        def record(size: int, inputs: int, suggest: Any) -> None:
            self.largest_response = max(self.largest_response, size)
            check(size, inputs, suggest)

        engine.check_response_size = record  # type: ignore[method-assign]


def load_retriever(kind: str) -> LoadedModel:
    """Return the tiny retriever or masked language model of a kind in float32."""
    return load_shared(Settings(model_dir=export_retriever(kind), precision="float32"))


def load_kind(kind: str) -> LoadedModel:
    """Return the tiny classifier of a kind, or else the retriever, in float32."""
    if kind not in CASES:
        return load_retriever(kind)
    return load_shared(Settings(model_dir=export_classifier(kind), precision="float32"))


@contextmanager
def serve(*models: LoadedModel, **options: Any) -> Iterator[httpx.Client]:
    """Yield a REST client of a service of these models."""
    with ServiceThread(*models, **options) as service, httpx.Client(base_url=service.rest, timeout=120) as client:
        yield client
