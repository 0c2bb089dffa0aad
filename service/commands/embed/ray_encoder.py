"""Embeds rows with the workers of a Ray cluster."""

import asyncio
import contextlib
import functools
import logging
import os
import socket
import sys
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray.data

from model.console import EX_CONFIG, EX_UNAVAILABLE
from service.commands.arguments import CommandError
from service.commands.embed.ray_worker import ERRORS, EncodeWorker, OpenSource, describe_source, read_blocks, unpack
from service.commands.embed.row_encoders import EncodedRows
from service.commands.model_selection import select_model
from service.commands.row_files import RowFile, RowReader
from service.commands.vector_sources import SourceInfo, VectorOptions
from service.config import Settings

BLOCK_ROWS = 1024
"""Rows per Ray task, a second or two on one core. With shorter tasks, scheduling overhead grows."""
BLOCKS_IN_FLIGHT = 2
"""Blocks that a worker encodes concurrently, so that the engine has inputs while results are being sent."""
PREFETCH_BLOCKS = 4
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Workers:
    """Number of workers, and threads per worker.

    `reserved_cpus` is the share of a node's CPUs that Ray reserves per worker. Ray always sends a lost block back to
    the same worker, which may have to restart on any of the remaining nodes. All workers must therefore fit on the
    smallest node.
    """

    count: int
    threads: int
    reserved_cpus: float


class RayRowEncoder:
    """Embeds rows with Ray. One task on this process's node reads them, and actors with an engine each encode them."""

    def __init__(self, info: SourceInfo, dimensions: int, workers: Workers, arguments: tuple[Any, ...]) -> None:
        self.info, self.dimensions = info, dimensions
        self._workers, self._arguments = workers, arguments

    async def encode_rows(self, source: RowFile, reader: RowReader, skip: int) -> AsyncGenerator[EncodedRows, None]:
        """Yield one item per block, in order. `reader` is not used, because the task opens the file again."""
        # Other processes have different working directories.
        source = replace(source, path=source.path.resolve())
        read = functools.partial(read_blocks, source, skip, BLOCK_ROWS, self.info.max_input_characters)
        # The task barely needs a CPU, and a head node may have none to offer.
        blocks = ray.data.read_datasource(_BlockSource(read), override_num_blocks=1, num_cpus=0)
        # By default, Ray restarts lost actors and retries lost tasks.
        encoded = blocks.map_batches(
            EncodeWorker,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(
                size=self._workers.count,
                max_tasks_in_flight_per_actor=2 * BLOCKS_IN_FLIGHT,
                max_concurrent_calls_per_actor=BLOCKS_IN_FLIGHT,
                enable_true_multi_threading=True,
            ),
            num_cpus=self._workers.reserved_cpus,
            fn_constructor_args=self._arguments,
        )
        tables = iter(encoded.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=PREFETCH_BLOCKS))
        while True:
            with _ray_errors():
                table = await asyncio.to_thread(next, tables, None)
            if table is None:
                return
            for block in unpack(table):
                yield block


class _BlockSource(ray.data.Datasource):  # type: ignore[misc]  # mypy skips Ray
    """The blocks of a file, read in order by a single task."""

    def __init__(self, read: Callable[[], Iterator[Any]]) -> None:
        super().__init__()
        self._read = read

    @property
    def supports_distributed_reads(self) -> bool:
        """False, because the task must run on this process's node, which has the file."""
        return False

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ray.data.ReadTask]:
        metadata = ray.data.block.BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ray.data.ReadTask(self._read, metadata)]


@asynccontextmanager
async def open_ray_encoder(
    settings: Settings, options: VectorOptions, count: int | None, open_source: OpenSource
) -> AsyncIterator[RayRowEncoder]:
    """Start or join a Ray cluster and load the model on it. Raises `ArtifactError`, `ConfigError` or `CommandError`.

    Args:
        settings: Engine options of each worker.
        options: Embedding options.
        count: Number of workers, or None to choose it from the cluster's nodes.
        open_source: Loads the model in a worker.
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
                info, dimensions = await asyncio.to_thread(ray.get, describe.remote(open_source, settings, options))
            # Nodes with other CPUs could select a different precision.
            settings = settings.model_copy(update={"precision": info.precision})
            yield RayRowEncoder(info, dimensions, workers, (open_source, settings, options, info))
        finally:
            ray.shutdown()


def divide_cpus(cpus: Sequence[int], count: int | None, threads: int) -> Workers:
    """Return workers that fit: as large as possible if `threads` is 0, and as many as possible if `count` is None.

    Args:
        cpus: CPUs of each node.
        count: Number of workers, or None.
        threads: Threads per worker, or 0. With neither, there is one worker per node.

    Raises:
        CommandError: The workers do not fit.
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
        raise CommandError(
            f"--ray-workers: too many ({used}, limit {limit}). Reduce it, set ATTENDANT_THREADS, or add nodes.",
            EX_CONFIG,
        )
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
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    # Ray would merge blocks up to this size. One of its rows is a whole block of file rows.
    context.target_max_block_size = 1
    context.raise_original_map_exception = True
    # The command shows its own progress instead of Ray's.
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


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
