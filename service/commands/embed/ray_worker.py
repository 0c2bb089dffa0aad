"""The parts of `attendant embed --ray` that run on a Ray cluster.

Rows travel in blocks. Ray reruns a lost block as a whole, so the result has each row exactly once. Because Ray may
split and join tables, each block is a single value of a table.
"""

import asyncio
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from itertools import islice

import pyarrow as pa

from model.artifact import ArtifactError
from model.console import EX_CONFIG
from service.commands.arguments import CommandError
from service.commands.embed.row_encoders import IN_FLIGHT, EncodedRows, check_text, encode_batch, split_batches
from service.commands.row_files import Row, RowFile
from service.commands.vector_sources import Encoded, SourceInfo, VectorOptions, VectorSource
from service.config import ConfigError, Settings

OpenSource = Callable[[Settings, VectorOptions], AbstractAsyncContextManager[VectorSource]]
"""Loads the model that the settings describe."""
ERRORS = (CommandError, ConfigError, ArtifactError)
"""Errors that the command reports and exits with."""


def read_blocks(source: RowFile, skip: int, block_rows: int, max_characters: int) -> Iterator[pa.Table]:
    """Yield the rows after the first `skip` rows, not encoded yet. Raises `CommandError`."""

    def drop_long(row: Row) -> Row:
        """Reject a text over the limit here: it may be megabytes long, so don't send it."""
        if row.error or len(row.text or "") <= max_characters:
            return row
        return replace(row, text=None, error=f"{source.field}: {check_text(row.text or '', max_characters)}")

    with source.open() as reader:
        rows = map(drop_long, islice(reader.rows, skip, None))
        while block := list(islice(rows, block_rows)):
            yield pack(EncodedRows(block, [], reader.estimate_total(block[-1].number)))


def pack(block: EncodedRows) -> pa.Table:
    """Return a table whose only value is the block."""
    return pa.table({"block": pa.array([pickle.dumps(block)], pa.large_binary())})


def unpack(table: pa.Table) -> Iterator[EncodedRows]:
    """Yield the blocks in a table of Ray, which pickles everything that it sends."""
    for value in table.column("block"):
        yield pickle.loads(value.as_buffer())  # noqa: S301


def describe_source(open_source: OpenSource, settings: Settings, options: VectorOptions) -> tuple[SourceInfo, int]:
    """Load the model and return it with its embedding size. Raises one of `ERRORS`."""

    async def describe() -> tuple[SourceInfo, int]:
        async with open_source(settings, options) as source:
            return source.info, source.dimensions

    return asyncio.run(describe())


class EncodeWorker:
    """An actor with its own engine. `expected` is the model that all workers must have.

    Ray calls it from several threads, so that the engine has inputs while results are being sent.
    """

    def __init__(self, open_source: OpenSource, settings: Settings, options: VectorOptions, expected: SourceInfo):
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="engine", daemon=True).start()
        self._in_flight = asyncio.Semaphore(IN_FLIGHT)
        self._stack = AsyncExitStack()
        self._error: Exception | None = None
        try:
            opening = self._stack.enter_async_context(open_source(settings, options))
            self._source = asyncio.run_coroutine_threadsafe(opening, self._loop).result()
            _check_equal(self._source.info, expected)
        except ERRORS as error:
            # Ray would restart a failed actor and hide the message, so raise the error in the first block instead.
            self._error = error

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the blocks with embeddings and without texts. Raises one of `ERRORS`."""
        if self._error is not None:
            raise self._error
        return pa.concat_tables(pack(self._encode_block(block)) for block in unpack(table))

    def _encode_block(self, block: EncodedRows) -> EncodedRows:
        encoded = asyncio.run_coroutine_threadsafe(self._encode(block.rows), self._loop).result()
        return replace(block, rows=[replace(row, text=None) for row in block.rows], encoded=encoded)

    async def _encode(self, rows: list[Row]) -> list[Encoded]:
        async def encode(batch: list[Row]) -> list[Encoded]:
            async with self._in_flight:
                return await encode_batch(self._source, batch)

        results = await asyncio.gather(*map(encode, split_batches(rows)))
        return [result for batch in results for result in batch]


def _check_equal(info: SourceInfo, expected: SourceInfo) -> None:
    if info != expected:
        raise CommandError(
            f"Ray worker on {socket.gethostname()}: another model ({info.digest} in {info.precision}, expected "
            f"{expected.digest} in {expected.precision}). Install one artifact on all nodes.",
            EX_CONFIG,
        )
