"""Embeddings of the rows of a file, in order, with several requests in flight."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from service.commands.arguments import EX_DATAERR, CommandError
from service.commands.file_progress import FileProgress
from service.commands.row_files import InputFormat, Row, RowFile, open_rows
from service.commands.vector_files import Chunk, DType, JsonLines, Numpy, OutputFormat, Parquet, VectorFormat
from service.commands.vector_sources import Encoded, VectorSource
from service.commands.work_directory import Counts, RunKey, WorkDirectory

BATCH_ROWS = 64
IN_FLIGHT = 4
"""Batches in flight. More did not increase the rate on a CPU, and a server rejects requests over its queue limit."""
CHUNK_ROWS = 2048
"""Rows per checkpoint. After a kill, rows since the last checkpoint are encoded again."""
DIGEST_BYTES = 2**16


@dataclass(frozen=True)
class EmbedFile:
    """A file to embed, and how."""

    source: Path
    target: Path
    input_format: InputFormat
    output_format: OutputFormat
    field: str = "text"
    id_field: str | None = None
    dtype: DType = "float32"
    reject_truncated: bool = False
    overwrite: bool = False
    options: tuple[tuple[str, str | int | bool | None], ...] = ()
    """Further options of the embeddings, which must be equal to continue a run."""


@dataclass(frozen=True)
class Report:
    """Numbers of rows of all runs, and rows per second of this run."""

    counts: Counts
    rate: float


_Batch = tuple[list[Row], list[Encoded]]


async def embed_file(job: EmbedFile, vectors: VectorSource) -> Report:
    """Write the embeddings of a file, or continue to do so. Raises `CommandError`."""
    try:
        file = job.source.open("rb")
    except OSError as error:
        raise _unreadable(job.source, error) from None
    with file:
        try:
            rows = open_rows(job.source, file, job.input_format, job.field, job.id_field)
            run = _run_key(job, vectors)
        except OSError as error:
            raise _unreadable(job.source, error) from None
        output = _vector_format(job, vectors, rows.id_type)
        with WorkDirectory.open(job.target, run, output.header(), overwrite=job.overwrite) as work:
            with FileProgress("attendant embed", work.counts.rows) as progress:
                if not work.is_complete:
                    await _encode_rows(job, vectors, rows, output, work, progress)
            rate, counts = progress.rate, work.counts
            await asyncio.to_thread(work.publish, output.finish)
    return Report(counts, rate)


async def _encode_rows(  # the parts of a run
    job: EmbedFile,
    vectors: VectorSource,
    rows: RowFile,
    output: VectorFormat,
    work: WorkDirectory,
    progress: FileProgress,
) -> None:
    chunk: list[tuple[Row, Encoded]] = []
    writing: asyncio.Task[None] | None = None
    try:
        async with aclosing(_encode_batches(job, vectors, rows, work.counts.rows)) as batches:
            async for batch, encoded in batches:
                chunk += zip(batch, encoded, strict=True)
                # Rows in flight are read but not done; the estimate of the total needs no such precision.
                fraction = rows.fraction()
                progress.update(len(batch), round(batch[-1].number / fraction) if fraction else 0)
                if len(chunk) >= CHUNK_ROWS:
                    if writing is not None:
                        await writing
                    # The next chunk is encoded while this one is written.
                    writing = asyncio.create_task(asyncio.to_thread(_write, job, vectors, output, work, chunk))
                    chunk = []
    finally:
        if writing is not None:
            await asyncio.wait([writing])
    if writing is not None:
        await writing
    if chunk:
        await asyncio.to_thread(_write, job, vectors, output, work, chunk)


async def _encode_batches(
    job: EmbedFile, vectors: VectorSource, rows: RowFile, skip: int
) -> AsyncGenerator[_Batch, None]:
    """Yield batches of rows with their embeddings, in order."""
    pending: deque[asyncio.Task[_Batch]] = deque()
    try:
        async for batch in _read_batches(job, rows, skip):
            pending.append(asyncio.create_task(_encode_batch(vectors, batch)))
            if len(pending) == IN_FLIGHT:
                yield await pending.popleft()
        while pending:
            yield await pending.popleft()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _read_batches(job: EmbedFile, rows: RowFile, skip: int) -> AsyncIterator[list[Row]]:
    remaining = rows.rows(skip)
    while True:
        try:
            batch = await asyncio.to_thread(lambda: list(islice(remaining, BATCH_ROWS)))
        except OSError as error:
            raise _unreadable(job.source, error) from None
        if not batch:
            return
        yield batch


async def _encode_batch(vectors: VectorSource, rows: list[Row]) -> _Batch:
    limit = vectors.info.max_input_characters
    errors = [row.error or _check_text(row.text or "", limit) for row in rows]
    texts = [row.text or "" for row, error in zip(rows, errors, strict=True) if not error]
    results = iter(await vectors.encode(texts))
    return rows, [Encoded(None, error=error) if error else next(results) for error in errors]


def _check_text(text: str, limit: int) -> str:
    """Return why a text is rejected, or ""."""
    if len(text) > limit:
        return f"too many characters ({len(text)}, limit {limit}). Shorten it."
    return "" if text and not text.isspace() else "empty or blank. Send text."


def _write(
    job: EmbedFile,
    vectors: VectorSource,
    output: VectorFormat,
    work: WorkDirectory,
    encoded: Sequence[tuple[Row, Encoded]],
) -> None:
    accepted: list[Row] = []
    values: list[Any] = []
    rejected: list[bytes] = []
    truncated = 0
    for row, result in encoded:
        error = row.error or (f"{job.field}: {result.error}" if result.error else "")
        if result.truncated and job.reject_truncated:
            limit = vectors.info.max_input_tokens
            error = f"{job.field}: too long (limit {limit} tokens). Shorten it."
        if error:
            fields: dict[str, Any] = {"row": row.number, "error": error}
            if row.id is not None:
                fields["id"] = row.id
            rejected.append(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
            continue
        truncated += result.truncated
        accepted.append(row)
        values.append(result.vector)
    array = np.stack(values) if values else np.empty((0, vectors.dimensions), job.dtype)
    chunk = Chunk(
        encoded[0][0].number,
        len(encoded),
        [row.number for row in accepted],
        None if job.id_field is None else [row.id for row in accepted],
        array,
    )
    counts = work.counts
    counts = Counts(counts.rows + len(encoded), counts.rejected + len(rejected), counts.truncated + truncated)
    work.append(output.encode(chunk), b"".join(rejected), counts)


def _vector_format(job: EmbedFile, vectors: VectorSource, id_type: Any) -> VectorFormat:
    if job.output_format == "jsonl":
        return JsonLines()
    if job.output_format == "npy":
        return Numpy(vectors.dimensions, job.dtype)
    info = vectors.info
    metadata = {"attendant.model": info.name, "attendant.digest": info.digest, "attendant.precision": info.precision}
    return Parquet(vectors.dimensions, job.dtype, id_type, metadata, ids=job.id_field is not None)


def _run_key(job: EmbedFile, vectors: VectorSource) -> RunKey:
    with job.source.open("rb") as file:
        status = job.source.stat()
        digest = _digest_ends(file, status.st_size)
    return {
        "input size": status.st_size,
        "input modification time": status.st_mtime_ns,
        "input digest": digest,
        "input format": job.input_format,
        "output format": job.output_format,
        "field": job.field,
        "id-field": job.id_field,
        "dtype": job.dtype,
        "reject-truncated": job.reject_truncated,
        "model digest": vectors.info.digest,
        "precision": vectors.info.precision,
        **dict(job.options),
    }


def _digest_ends(file: BinaryIO, size: int) -> str:
    """Return a digest of the first and last bytes of a file: a complete one would take minutes."""
    digest = hashlib.sha256(file.read(DIGEST_BYTES))
    file.seek(max(0, size - DIGEST_BYTES))
    digest.update(file.read(DIGEST_BYTES))
    return digest.hexdigest()[:16]


def _unreadable(path: Path, error: OSError) -> CommandError:
    return CommandError(f"{path}: cannot be read ({error.strerror or error}). Check the path.", EX_DATAERR)
