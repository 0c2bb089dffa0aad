"""Embeds the rows of a file in order, with several requests in flight."""

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from model.console import EX_DATAERR
from service.commands.arguments import CommandError
from service.commands.embed.job import EmbedFile
from service.commands.embed.progress import FileProgress
from service.commands.embed.row_encoders import RowEncoder
from service.commands.embed.work_directory import Counts, RunKey, WorkDirectory, rejected_path
from service.commands.row_files import Row, RowFile, open_rows
from service.commands.vector_files import Chunk, JsonLines, Numpy, Parquet, VectorFormat
from service.commands.vector_sources import Encoded

CHUNK_ROWS = 2048
"""Rows per checkpoint. If the process is killed, rows since the last checkpoint are encoded again."""


@dataclass(frozen=True)
class Report:
    """Row counts over all runs, and the rows per second of this run."""

    counts: Counts
    rate: float


async def embed_file(job: EmbedFile, encoder: RowEncoder) -> Report:
    """Write the embeddings of a file, resuming an earlier run if there is one. Raises `CommandError`."""
    try:
        file = job.source.open("rb")
    except OSError as error:
        raise job.unreadable(error) from None
    with file:
        try:
            rows = open_rows(job.source, file, job.input_format, job.field, job.id_field)
            run = _run_key(job, encoder)
        except OSError as error:
            raise job.unreadable(error) from None
        output = _vector_format(job, encoder, rows.id_type)
        with WorkDirectory.open(job.target, run, output.header(), overwrite=job.overwrite) as work:
            with FileProgress("attendant embed", work.counts.rows) as progress:
                if not work.is_complete:
                    await _encode_rows(job, encoder, rows, output, work, progress)
            rate, counts = progress.rate, work.counts
            if counts.rows and counts.rejected == counts.rows:
                await asyncio.to_thread(work.publish_rejected)
                raise _all_rejected(job, counts)
            await asyncio.to_thread(work.publish, output.finish)
    return Report(counts, rate)


async def _encode_rows(  # the parts of a run
    job: EmbedFile,
    encoder: RowEncoder,
    rows: RowFile,
    output: VectorFormat,
    work: WorkDirectory,
    progress: FileProgress,
) -> None:
    chunk: list[tuple[Row, Encoded]] = []
    writing: asyncio.Task[None] | None = None
    try:
        async with aclosing(encoder.encode_rows(job, rows, work.counts.rows)) as batches:
            async for batch in batches:
                chunk += zip(batch.rows, batch.encoded, strict=True)
                total = round(batch.rows[-1].number / batch.fraction) if batch.fraction else 0
                progress.update(len(batch.rows), total)
                if len(chunk) >= CHUNK_ROWS:
                    if writing is not None:
                        await writing
                    # Encode the next chunk while this one is being written.
                    writing = asyncio.create_task(asyncio.to_thread(_write, job, encoder, output, work, chunk))
                    chunk = []
    finally:
        if writing is not None:
            await asyncio.wait([writing])
    if writing is not None:
        await writing
    if chunk:
        await asyncio.to_thread(_write, job, encoder, output, work, chunk)


def _write(
    job: EmbedFile,
    encoder: RowEncoder,
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
            limit = encoder.info.max_input_tokens
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
    array = np.stack(values) if values else np.empty((0, encoder.dimensions), job.dtype)
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


def _all_rejected(job: EmbedFile, counts: Counts) -> CommandError:
    names, options = [job.field], ["--field"]
    if job.id_field is not None:
        names, options = [*names, job.id_field], [*options, "--id-field"]
    problem = f"{job.source}: {', '.join(names)}: no row accepted (0 of {counts.rows:,}, limit 1)"
    remedy = f"See {rejected_path(job.target)}"
    if job.input_format != "text":
        remedy += f", or change {' or '.join(options)}"
    return CommandError(f"{problem}. {remedy}.", EX_DATAERR)


def _vector_format(job: EmbedFile, encoder: RowEncoder, id_type: Any) -> VectorFormat:
    if job.output_format == "jsonl":
        return JsonLines()
    if job.output_format == "npy":
        return Numpy(encoder.dimensions, job.dtype)
    info = encoder.info
    metadata = {"attendant.model": info.name, "attendant.digest": info.digest, "attendant.precision": info.precision}
    return Parquet(encoder.dimensions, job.dtype, id_type, metadata, ids=job.id_field is not None)


def _run_key(job: EmbedFile, encoder: RowEncoder) -> RunKey:
    with job.source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "input size": job.source.stat().st_size,
        "input digest": digest[:16],
        "input format": job.input_format,
        "output format": job.output_format,
        "field": job.field,
        "id-field": job.id_field,
        "dtype": job.dtype,
        "reject-truncated": job.reject_truncated,
        "model digest": encoder.info.digest,
        "precision": encoder.info.precision,
        **dict(job.options),
    }
