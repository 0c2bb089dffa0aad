"""Embeddings computed by the workers of a Ray cluster."""

import asyncio
import contextlib
import functools
import logging
import os
import socket
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray
from attendant_client.types import ModelInfo

from model.artifact.console import EX_CONFIG, EX_UNAVAILABLE
from model.artifact.files import ArtifactError
from service.commands.arguments import CommandError
from service.commands.sources import Encoded, Text, VectorOptions, VectorSource, select_model
from service.config import ConfigError, Settings

BLOCK_ROWS = 1024
"""Maximum number of rows per call of a worker: a second or two on one core. Shorter calls add scheduling overhead."""
BLOCKS_IN_FLIGHT = 2
"""Blocks that a worker encodes concurrently, so that the engine has inputs while results are being sent."""
PREFETCH_BLOCKS = 4
OpenSource = Callable[[Settings, VectorOptions], AbstractAsyncContextManager[VectorSource]]
"""Loads the model that the settings describe."""
ERRORS = (CommandError, ConfigError, ArtifactError)
"""Errors that the command reports and exits with."""
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Workers:
    """Number of workers, threads per worker, and the CPUs of a node that Ray reserves per worker.

    Ray sends a lost block back to the same worker, which may have to restart on any of the remaining nodes, so all
    workers must fit on the smallest one.
    """

    count: int
    threads: int
    reserved_cpus: float


class EncodeWorker:
    """An actor with its own engine. `expected` is the model that all workers must load."""

    def __init__(self, open_source: OpenSource, settings: Settings, options: VectorOptions, expected: ModelInfo):
        self._open = functools.partial(open_source, settings, options)
        self._expected = expected
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._source: VectorSource | None = None

    async def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        """Return each text's embedding, or why it was rejected. Raises one of `ERRORS`."""
        async with self._lock:
            # Ray hides errors of constructors. The model stays open until the process ends.
            if self._source is None:
                self._source = await self._stack.enter_async_context(self._open())
            source = self._source
            found, wanted = (f"{model.digest} in {model.precision}" for model in (source.info, self._expected))
            if found != wanted:
                problem = f"Ray worker on {socket.gethostname()}: another model ({found}, expected {wanted})"
                raise CommandError(f"{problem}. Install one artifact on all nodes.", EX_CONFIG)
        batches = (texts[start : start + source.batch_rows] for start in range(0, len(texts), source.batch_rows))
        results = await asyncio.gather(*map(source.encode, batches))
        return [result for batch in results for result in batch]


class RayEmbedder:
    """Computes embeddings with actors on a Ray cluster."""

    batch_rows = BLOCK_ROWS

    def __init__(self, info: ModelInfo, dimensions: int, options: VectorOptions, actors: Sequence[Any]) -> None:
        self.info, self.dimensions, self.max_characters = info, dimensions, options.max_characters(info)
        self.in_flight = len(actors) * BLOCKS_IN_FLIGHT + PREFETCH_BLOCKS
        self._idle: asyncio.Queue[Any] = asyncio.Queue()
        for actor in [*actors] * BLOCKS_IN_FLIGHT:
            self._idle.put_nowait(actor)

    async def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        """Return each text's embedding, or why it was rejected. Raises one of `ERRORS`."""
        actor = await self._idle.get()
        try:
            with _ray_errors():
                encoded: list[Encoded] = await actor.encode.remote(texts)
                return encoded
        finally:
            self._idle.put_nowait(actor)


def describe_source(open_source: OpenSource, settings: Settings, options: VectorOptions) -> tuple[ModelInfo, int]:
    """Load the model and return it with its embedding size. Raises one of `ERRORS`."""

    async def describe() -> tuple[ModelInfo, int]:
        async with open_source(settings, options) as source:
            return source.info, source.dimensions

    return asyncio.run(describe())


@asynccontextmanager
async def open_ray_embedder(
    settings: Settings, options: VectorOptions, count: int | None, open_source: OpenSource
) -> AsyncIterator[RayEmbedder]:
    """Start or join a Ray cluster and load the model in `count` workers; None chooses their number.

    Raises `ArtifactError`, `ConfigError` or `CommandError`.
    """
    # Ray prints node errors to stdout.
    with contextlib.redirect_stdout(sys.stderr):
        _connect()
        try:
            cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
            workers = divide_cpus(cpus, count, settings.threads)
            settings = select_model(settings, options.model).model_copy(update={"threads": workers.threads})
            options = replace(options, model=None)
            describe = ray.remote(num_cpus=workers.threads, max_retries=-1)(describe_source)
            with _ray_errors():
                info, dimensions = await describe.remote(open_source, settings, options)
            # Nodes with other CPUs could select a different precision.
            settings = settings.model_copy(update={"precision": info.precision})
            # Ray restarts lost actors and repeats their calls without limit.
            actor = ray.remote(num_cpus=workers.reserved_cpus, max_restarts=-1, max_task_retries=-1)(EncodeWorker)
            actors = [actor.remote(open_source, settings, options, info) for _ in range(workers.count)]
            yield RayEmbedder(info, dimensions, options, actors)
        finally:
            ray.shutdown()


def divide_cpus(cpus: Sequence[int], count: int | None, threads: int) -> Workers:
    """Return workers that fit on nodes with these CPUs, or raise `CommandError`.

    They are as large as possible if `threads` is 0, and as many as possible if `count` is None. With neither, there is
    one worker per node.
    """
    cpus = [size for size in cpus if size]

    def fitting(threads: int) -> int:
        return sum(size // threads for size in cpus)

    if not threads:
        wanted = count or len(cpus)
        threads = next((size for size in range(max(cpus, default=1), 1, -1) if fitting(size) >= wanted), 1)
    limit = fitting(threads)
    count = count or max(1, limit)
    if count > limit:
        used = f"{count} of {threads} CPUs" if threads > 1 else str(count)
        problem = f"--ray-workers: too many ({used}, limit {limit})"
        raise CommandError(f"{problem}. Reduce it, set ATTENDANT_THREADS, or add nodes.", EX_CONFIG)
    # Ray rounds CPUs to ten-thousandths.
    return Workers(count, threads, min(threads, max(1, int(min(cpus) / count * 10_000)) / 10_000))


def _connect() -> None:
    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        problem = "RAY_ADDRESS: Ray Client is not supported (ray://)"
        raise CommandError(f"{problem}. Run the command on a node of the cluster.", EX_CONFIG)
    if ":" in address:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
        except (OSError, ValueError) as error:
            problem = f"RAY_ADDRESS: cannot connect to {address} ({error})"
            raise CommandError(f"{problem}. Check the address.", EX_UNAVAILABLE) from None
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Silence Ray's warnings about its own defaults, in Python and in native code.
    warnings.filterwarnings("ignore", module="ray")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        with _no_stderr():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        raise CommandError(f"--ray: cannot connect ({problem}). Check RAY_ADDRESS.", EX_UNAVAILABLE) from None


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Silence native stderr: Ray prints the log level it parsed."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


@contextmanager
def _ray_errors() -> Iterator[None]:
    """Raise worker errors as if they had occurred here."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ERRORS):
            # Ray appends lines to the message.
            message = str(cause).partition("\n")[0]
            copy = CommandError(message, cause.status) if isinstance(cause, CommandError) else type(cause)(message)
            raise copy from None
        raise
    except ray.exceptions.RayError as error:
        problem = str(error).partition("\n")[0].rstrip(".")
        raise CommandError(f"--ray: the cluster failed ({problem}). Check the cluster.", EX_UNAVAILABLE) from None
