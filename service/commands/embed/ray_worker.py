"""The parts of `attendant embed --ray` that run on a Ray cluster.

Rows travel in blocks, which are Arrow tables. Ray reruns a lost block as a whole, so the result has each row exactly
once. Because Ray may split and join tables, each block is stored as a single value in a Ray table (`pack`).
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from itertools import islice
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from model.artifact import ArtifactError
from model.console import EX_CONFIG
from service.commands.arguments import CommandError
from service.commands.embed.job import EmbedFile
from service.commands.embed.row_encoders import IN_FLIGHT, EncodedRows, check_text, encode_batch, split_batches
from service.commands.row_files import Row, open_rows
from service.commands.vector_sources import Encoded, SourceInfo, VectorOptions, VectorSource
from service.config import ConfigError, Settings

OpenSource = Callable[[Settings, VectorOptions], AbstractAsyncContextManager[VectorSource]]
"""Loads the model that the settings describe."""
ERRORS = (CommandError, ConfigError, ArtifactError)
"""Errors that the command reports and exits with."""

ROW_FIELDS = [
    pa.field("number", pa.int64()),
    pa.field("id", pa.large_binary()),
    pa.field("row_error", pa.string()),
    pa.field("fraction", pa.float64()),
]
INPUT_SCHEMA = pa.schema([*ROW_FIELDS, pa.field("text", pa.large_string())])


def read_blocks(job: EmbedFile, skip: int, block_rows: int, max_characters: int) -> Iterator[pa.Table]:
    """Yield the rows after the first `skip` rows. Raises `CommandError`."""
    try:
        with job.source.open("rb") as file:
            opened = open_rows(job.source, file, job.input_format, job.field, job.id_field)
            remaining = opened.rows(skip)
            while rows := list(islice(remaining, block_rows)):
                yield pack(_rows_table(rows, opened.fraction(), job.field, max_characters))
    except OSError as error:
        raise job.unreadable(error) from None


def pack(block: pa.Table) -> pa.Table:
    """Return a table whose only value is the block."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_table(block)
    return pa.table({"block": pa.array([sink.getvalue().to_pybytes()], pa.large_binary())})


def unpack(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the blocks in a table."""
    for value in table.column("block"):
        yield pa.ipc.open_stream(value.as_buffer()).read_all()


def result_rows(table: pa.Table) -> EncodedRows:
    """Return the rows and embeddings in an `EncodeWorker` table."""
    columns = {name: table.column(name).to_pylist() for name in ("number", "id", "row_error", "error", "truncated")}
    vectors = table.column("vector").combine_chunks()
    values = vectors.flatten().to_numpy().reshape(len(vectors), -1)
    rows, encoded = [], []
    for index, number in enumerate(columns["number"]):
        row_id = columns["id"][index]
        rows.append(Row(number, None, None if row_id is None else orjson.loads(row_id), columns["row_error"][index]))
        error = columns["error"][index]
        encoded.append(Encoded(None if error else values[index], columns["truncated"][index], error))
    return EncodedRows(rows, encoded, table.column("fraction")[0].as_py())


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
        self._dtype = np.dtype(options.dtype)
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
        """Return the blocks with texts replaced by embeddings. Raises one of `ERRORS`."""
        if self._error is not None:
            raise self._error
        return pa.concat_tables(pack(self._encode_block(block)) for block in unpack(table))

    def _encode_block(self, table: pa.Table) -> pa.Table:
        texts, errors = table.column("text").to_pylist(), table.column("row_error").to_pylist()
        rows = [Row(0, text, None, error) for text, error in zip(texts, errors, strict=True)]
        encoded = asyncio.run_coroutine_threadsafe(self._encode(rows), self._loop).result()
        vectors = np.zeros((len(rows), self._source.dimensions), self._dtype)
        for vector, result in zip(vectors, encoded, strict=True):
            if result.vector is not None:
                vector[:] = result.vector
        columns: dict[str, Any] = {name: table.column(name) for name in ("number", "id", "row_error", "fraction")}
        columns["error"] = pa.array([result.error for result in encoded], pa.string())
        columns["truncated"] = pa.array([result.truncated for result in encoded], pa.bool_())
        columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        return pa.table(columns)

    async def _encode(self, rows: Sequence[Row]) -> list[Encoded]:
        async def encode(batch: list[Row]) -> list[Encoded]:
            async with self._in_flight:
                return await encode_batch(self._source, batch)

        results = await asyncio.gather(*map(encode, split_batches(rows)))
        return [result for batch in results for result in batch]


def _rows_table(rows: list[Row], fraction: float, field: str, max_characters: int) -> pa.Table:
    texts, errors = [], []
    for row in rows:
        error = row.error
        # A text over the limit may be megabytes long, so don't send it.
        if not error and row.text is not None and len(row.text) > max_characters:
            error = f"{field}: {check_text(row.text, max_characters)}"
        errors.append(error)
        texts.append(None if error else row.text)
    columns = {
        "number": [row.number for row in rows],
        # A column may mix strings and integers.
        "id": [None if row.id is None else orjson.dumps(row.id) for row in rows],
        "row_error": errors,
        "fraction": [fraction] * len(rows),
        "text": texts,
    }
    return pa.table(columns, INPUT_SCHEMA)


def _check_equal(info: SourceInfo, expected: SourceInfo) -> None:
    if info != expected:
        raise CommandError(
            f"Ray worker on {socket.gethostname()}: another model ({info.digest} in {info.precision}, expected "
            f"{expected.digest} in {expected.precision}). Install one artifact on all nodes.",
            EX_CONFIG,
        )
