"""Embeds the rows of a file in order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from service.commands.row_files import Row, RowFile, RowReader
from service.commands.vector_sources import Encoded, SourceInfo, VectorSource

BATCH_ROWS = 256
BATCH_CHARACTERS = 2**14
"""A batch ends with the text that exceeds this total, so that long texts in flight use little memory."""
IN_FLIGHT = 4
"""Batches in flight. More did not raise the rate on a CPU, and a server rejects requests over its queue limit."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Consecutive rows with their embeddings.

    Attributes:
        rows: The rows; their texts may have been dropped.
        encoded: Each row's embedding, or why it was rejected.
        total: Estimated number of rows of the file.
    """

    rows: list[Row]
    encoded: list[Encoded]
    total: int


class RowEncoder(Protocol):
    """Embeds rows with one model."""

    info: SourceInfo
    dimensions: int
    """The embedding size."""

    def encode_rows(self, source: RowFile, reader: RowReader, skip: int) -> AsyncGenerator[EncodedRows, None]:
        """Yield the rows of an open file after the first `skip` rows, in order. Raises `CommandError`."""


class LocalRowEncoder:
    """Reads rows in this process and sends them to an engine or a server, with several batches in flight."""

    def __init__(self, vectors: VectorSource) -> None:
        self._vectors, self.info, self.dimensions = vectors, vectors.info, vectors.dimensions

    async def encode_rows(self, source: RowFile, reader: RowReader, skip: int) -> AsyncGenerator[EncodedRows, None]:
        async def encode(batch: list[Row], total: int) -> EncodedRows:
            return EncodedRows(batch, await encode_batch(self._vectors, batch), total)

        batches = split_batches(islice(reader.rows, skip, None))
        pending: deque[asyncio.Task[EncodedRows]] = deque()
        try:
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                pending.append(asyncio.create_task(encode(batch, reader.estimate_total(batch[-1].number))))
                if len(pending) == IN_FLIGHT:
                    yield await pending.popleft()
            while pending:
                yield await pending.popleft()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)


async def encode_batch(vectors: VectorSource, rows: list[Row]) -> list[Encoded]:
    """Return each row's embedding, or why it was rejected. Raises `CommandError` if a request fails."""
    limit = vectors.info.max_input_characters
    errors = [row.error or check_text(row.text or "", limit) for row in rows]
    texts = [row.text or "" for row, error in zip(rows, errors, strict=True) if not error]
    results = iter(await vectors.encode(texts))
    return [Encoded(None, error=error) if error else next(results) for error in errors]


def check_text(text: str, limit: int) -> str:
    """Return why a text is rejected (longer than `limit` characters, or blank), or ""."""
    if len(text) > limit:
        return f"too many characters ({len(text)}, limit {limit}). Shorten it."
    return "" if text and not text.isspace() else "empty or blank. Send text."


def split_batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield batches of consecutive rows, at most `BATCH_ROWS` per batch."""
    batch: list[Row] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += len(row.text or "")
        if len(batch) == BATCH_ROWS or characters > BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
