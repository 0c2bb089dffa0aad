"""Embeds the rows of a file in order, with several requests in flight."""

import asyncio
import functools
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from service.commands.arguments import CommandError
from service.commands.embed.encoded_rows import Embedder, EncodedRows, encode_rows
from service.commands.embed.progress import FileProgress
from service.commands.embed.work_directory import Counts, RunKey, WorkDirectory, rejected_path
from service.commands.row_files import Row, RowFile
from service.commands.vector_files import Chunk, JsonLines, Numpy, OutputFormat, Parquet, VectorFormat
from service.commands.vector_sources import Encoded, SourceInfo, VectorOptions

CHUNK_ROWS = 2048
"""Rows per checkpoint. If the process is killed, rows since the last checkpoint are encoded again."""


@dataclass(frozen=True)
class EmbedFile:
    """A file to embed, with the options."""

    source: RowFile
    target: Path
    output_format: OutputFormat
    vectors: VectorOptions = field(default_factory=VectorOptions)
    reject_truncated: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class Report:
    """Row counts over all runs, and the rows per second of this run."""

    counts: Counts
    rate: float


async def embed_file(job: EmbedFile, embedder: Embedder) -> Report:
    """Write the embeddings of a file, resuming an earlier run if there is one. Raises `CommandError`."""
    with job.source.open() as reader:
        output = _vector_format(job, embedder, reader.id_type)
        run = _run_key(job, embedder.info)
        with WorkDirectory.open(job.target, run, output.header, overwrite=job.overwrite) as work:
            with FileProgress("attendant embed", work.counts.rows) as progress:
                if not work.is_complete:
                    write = functools.partial(_write, job, embedder, output, work)
                    await _write_chunks(encode_rows(embedder, reader, work.counts.rows), write, progress)
            rate, counts = progress.rate, work.counts
            is_empty = 0 < counts.rows == counts.rejected
            await asyncio.to_thread(work.publish, None if is_empty else output.finish)
    if is_empty:
        raise _all_rejected(job, counts)
    return Report(counts, rate)


async def _write_chunks(
    rows: AsyncGenerator[EncodedRows, None],
    write: Callable[[Sequence[tuple[Row, Encoded]]], None],
    progress: FileProgress,
) -> None:
    """Write rows in chunks, each while the next one is being encoded."""
    chunk: list[tuple[Row, Encoded]] = []
    writing = asyncio.create_task(asyncio.sleep(0))
    try:
        async with aclosing(rows):
            async for batch in rows:
                chunk += zip(batch.rows, batch.encoded, strict=True)
                progress.update(len(batch.rows), batch.total)
                if len(chunk) >= CHUNK_ROWS:
                    await writing
                    writing = asyncio.create_task(asyncio.to_thread(write, chunk))
                    chunk = []
        await writing
        if chunk:
            await asyncio.to_thread(write, chunk)
    finally:
        await asyncio.wait([writing])


def _write(
    job: EmbedFile,
    embedder: Embedder,
    output: VectorFormat,
    work: WorkDirectory,
    encoded: Sequence[tuple[Row, Encoded]],
) -> None:
    text, limit = job.source.field, embedder.info.max_input_tokens
    vectors = np.full((len(encoded), embedder.dimensions), np.nan, job.vectors.dtype)
    accepted: list[int] = []
    rejected: list[bytes] = []
    truncated = 0
    for index, (row, result) in enumerate(encoded):
        error = row.error or (f"{text}: {result.error}" if result.error else "")
        if result.truncated and job.reject_truncated:
            error = f"{text}: too long (limit {limit} tokens). Shorten it."
        if error:
            fields = {"row": row.number, "error": error} | ({} if row.id is None else {"id": row.id})
            rejected.append(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
        else:
            vectors[index] = result.vector
            accepted.append(index)
            truncated += result.truncated
    data = output.encode(Chunk(vectors, accepted, [encoded[index][0] for index in accepted]))
    counts = work.counts
    counts = Counts(counts.rows + len(encoded), counts.rejected + len(rejected), counts.truncated + truncated)
    work.append(data, b"".join(rejected), counts)


def _all_rejected(job: EmbedFile, counts: Counts) -> CommandError:
    source = job.source
    options = {"--field": source.field} | ({} if source.id_field is None else {"--id-field": source.id_field})
    remedy = "" if source.format == "text" else f", or change {' or '.join(options)}"
    return source.error(
        f"{', '.join(options.values())}: no row accepted (0 of {counts.rows:,}, limit 1). "
        f"See {rejected_path(job.target)}{remedy}."
    )


def _vector_format(job: EmbedFile, embedder: Embedder, id_type: Any) -> VectorFormat:
    info, dtype = embedder.info, job.vectors.dtype
    if job.output_format == "jsonl":
        return JsonLines(ids=job.source.id_field is not None)
    if job.output_format == "npy":
        return Numpy(embedder.dimensions, dtype)
    metadata = {"attendant.model": info.name, "attendant.digest": info.digest, "attendant.precision": info.precision}
    return Parquet(embedder.dimensions, dtype, id_type, metadata, ids=job.source.id_field is not None)


def _run_key(job: EmbedFile, info: SourceInfo) -> RunKey:
    with job.source.read_errors(), job.source.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
    return {
        "input size": size,
        "input digest": digest[:16],
        "input format": job.source.format,
        "output format": job.output_format,
        "field": job.source.field,
        "id-field": job.source.id_field,
        "dtype": job.vectors.dtype,
        "reject-truncated": job.reject_truncated,
        "model digest": info.digest,
        "precision": info.precision,
        "dimensions": job.vectors.dimensions,
        "prompt-name": job.vectors.prompt_name,
        "normalize": job.vectors.normalize,
    }
