"""Embeds the rows of a file in order, with several batches in flight."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from service.commands.row_files import Row, RowReader
from service.commands.vector_sources import Encoded, SourceInfo

CHARACTERS_PER_ROW = 64
"""A batch ends with the text that exceeds this mean length, so that long texts in flight use little memory."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Consecutive rows with their embeddings.

    Attributes:
        rows: The rows.
        encoded: Each row's embedding, or why it was rejected.
        total: Estimated number of rows of the file.
    """

    rows: list[Row]
    encoded: list[Encoded]
    total: int


class Embedder(Protocol):
    """Computes embeddings with one model."""

    info: SourceInfo
    dimensions: int
    """Embedding size."""
    batch_rows: int
    """Maximum number of texts per call of `encode`."""
    in_flight: int
    """Number of concurrent calls that keep the model busy."""

    async def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Return each text's embedding, or why it was rejected. Raises `CommandError` if a request fails."""


async def encode_rows(embedder: Embedder, reader: RowReader, skip: int) -> AsyncGenerator[EncodedRows, None]:
    """Yield the rows after the first `skip` rows, in order. Raises `CommandError`."""
    pending: deque[asyncio.Task[EncodedRows]] = deque()
    batches = split_batches(islice(reader.rows, skip, None), embedder.batch_rows)
    try:
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            pending.append(asyncio.create_task(_encode(embedder, batch, reader.estimate_total(batch[-1].number))))
            if len(pending) == embedder.in_flight:
                yield await pending.popleft()
        while pending:
            yield await pending.popleft()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _encode(embedder: Embedder, rows: list[Row], total: int) -> EncodedRows:
    errors = [row.error or _check_text(row.text or "", embedder.info.max_input_characters) for row in rows]
    texts = [row.text or "" for row, error in zip(rows, errors, strict=True) if not error]
    results = iter(await embedder.encode(texts))
    return EncodedRows(rows, [Encoded(None, error=error) if error else next(results) for error in errors], total)


def _check_text(text: str, limit: int) -> str:
    """Return why a text is rejected (longer than `limit` characters, or blank), or ""."""
    if len(text) > limit:
        return f"too many characters ({len(text)}, limit {limit}). Shorten it."
    return "" if text and not text.isspace() else "empty or blank. Send text."


def split_batches(rows: Iterable[Row], batch_rows: int) -> Iterator[list[Row]]:
    """Yield batches of consecutive rows, at most `batch_rows` per batch."""
    batch: list[Row] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += len(row.text or "")
        if len(batch) == batch_rows or characters > CHARACTERS_PER_ROW * batch_rows:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
