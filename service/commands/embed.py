"""`attendant embed`: embeddings of a file's rows, resumed after an interruption, or of texts as JSON lines."""

import argparse
import asyncio
import fcntl
import functools
import hashlib
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import orjson
from attendant_client.types import MAX_CHUNKED_CHARACTERS, ChunkOptions, ModelInfo, required

from model.artifact.console import (
    EX_CANTCREAT,
    EX_CONFIG,
    EX_DATAERR,
    EX_NEGATIVE,
    EX_OK,
    EX_UNAVAILABLE,
    EX_USAGE,
    language_code,
    output_path,
)
from model.artifact.files import sync_directory
from service.commands import sources
from service.commands.arguments import CommandError, Parser, import_extra, integer
from service.commands.labeled_texts import LabeledText, label_argument, read_lines
from service.commands.row_files import (
    COMPRESSED_SUFFIXES,
    INPUT_FORMATS,
    InputFormat,
    Row,
    RowFile,
    RowReader,
    import_arrow,
    input_format,
)
from service.commands.row_files import SUFFIXES as INPUT_SUFFIXES
from service.commands.sources import Encoded, Text, TitledText, VectorOptions, encode_texts, open_engine, open_source
from service.commands.vector_files import (
    CHUNK_COLUMNS,
    OUTPUT_COLUMNS,
    OUTPUT_FORMATS,
    JsonLines,
    Numpy,
    OutputFormat,
    Parquet,
    VectorFormat,
    VectorRows,
    output_format,
)
from service.commands.vector_files import SUFFIXES as OUTPUT_SUFFIXES
from service.config import Settings, load_settings
from service.errors import ServiceError

VERSION = 1
DATA, REJECTED, STATE, LOCK = "data", "rejected.jsonl", "state.json", "lock"
OWN_FILES = frozenset((DATA, REJECTED, STATE, LOCK, "state.json.new", "output.parquet"))


@dataclass(frozen=True)
class Counts:
    """Numbers of input rows on disk, and of their vectors."""

    rows: int = 0
    rejected: int = 0
    truncated: int = 0
    vectors: int = 0


@dataclass(frozen=True)
class _State:
    run: dict[str, Any]
    counts: Counts = field(default_factory=Counts)
    data_bytes: int = 0
    rejected_bytes: int = 0
    output: str | None = None
    """Name of the complete output file, once it is ready to be published; "" if there is none."""


class WorkDirectory:
    """The directory OUT.partial.

    Files are append-only, and a state file records their sizes. It is replaced once the data is on disk. If the process
    is killed, the next run truncates the files to these sizes and continues with the following row.
    """

    def __init__(self, target: Path, state: _State) -> None:
        self._target, self.state = target, state
        self.path = partial_path(target)

    @classmethod
    @contextmanager
    def open(cls, target: Path, run: dict[str, Any], header: bytes, *, overwrite: bool) -> Iterator[Self]:
        """Create or resume the work directory of `target`, whose data starts with `header`, and lock it.

        Raises `CommandError` if it cannot be written, is in use, or belongs to another run.
        """
        path = partial_path(target)
        if not overwrite and not path.exists():
            check_absent(target)
        with _write_errors(path):
            path.mkdir(exist_ok=True)
            foreign = sorted({item.name for item in path.iterdir()} - OWN_FILES)
            if foreign:
                raise CommandError(f"{path}: contains other files. Move the directory.", EX_CANTCREAT)
            lock = (path / LOCK).open("wb")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CommandError(f"{path}: in use by another process. Wait for its end.", EX_CANTCREAT) from None
            with _write_errors(path):
                state = _read_state(path)
                if state is not None and state.output is None and not state.counts.rows:
                    state = None  # the run has stopped before its first chunk, for example because of its input
                if state is not None:
                    _check_same_run(path, state.run, run)
                # A run killed while publishing its output may already have moved some of it.
                if not overwrite and (state is None or state.output is None):
                    check_absent(target)
                if state is None:
                    (path / REJECTED).write_bytes(b"")
                    _append(path / DATA, 0, header)
                    state = _State(run, data_bytes=len(header))
                    _write_state(path, state)
            yield cls(target, state)

    def append(self, data: bytes, rejected: bytes, counts: Counts) -> None:
        """Write a chunk to disk; `counts` already include it. Raises `CommandError`."""
        state = self.state
        with _write_errors(self.path):
            if rejected:
                _append(self.path / REJECTED, state.rejected_bytes, rejected)
            _append(self.path / DATA, state.data_bytes, data)
            data_bytes, rejected_bytes = state.data_bytes + len(data), state.rejected_bytes + len(rejected)
            self.state = replace(state, counts=counts, data_bytes=data_bytes, rejected_bytes=rejected_bytes)
            _write_state(self.path, self.state)

    def publish(self, finish: Callable[[Path, int], Path] | None) -> None:
        """Move the rejected rows into place, then the output, if any. Raises `CommandError`.

        `finish` completes the output from the data and the number of rows. It is None if all rows are rejected.
        """
        with _write_errors(self.path):
            if self.state.output is None:
                for name, size in ((DATA, self.state.data_bytes), (REJECTED, self.state.rejected_bytes)):
                    os.truncate(self.path / name, size)
                output = finish(self.path / DATA, self.state.counts.rows).name if finish is not None else ""
                self.state = replace(self.state, output=output)
                _write_state(self.path, self.state)
            # If an earlier run was killed, any step may already be done.
            rejected, output_path = self.path / REJECTED, self.path / str(self.state.output)
            if not self.state.counts.rejected:
                rejected_path(self._target).unlink(missing_ok=True)
            elif rejected.exists():
                rejected.replace(rejected_path(self._target))
            if output_path.is_file():
                output_path.replace(self._target)
            sync_directory(self._target.parent)
            # Remove the state last: without it, the leftover directory of a published file would start a new run.
            for item in self.path.iterdir():
                if item.name != STATE:
                    item.unlink()
            shutil.rmtree(self.path)
            sync_directory(self._target.parent)


def partial_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


def rejected_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.rejected.jsonl")


def check_absent(target: Path) -> None:
    """Raise `CommandError` if the output file exists. Rejected rows alone come from a run that wrote no output."""
    if target.exists():
        raise CommandError(f"{target}: exists. Remove it or set --overwrite.", EX_CANTCREAT)


def _check_same_run(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    before, now = ({name: "unset" if value is None else value for name, value in run.items()} for run in (old, new))
    changed = [
        f"{name}: {before.get(name, 'unset')}, now {now.get(name, 'unset')}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        problem = f"{path}: state of another run ({'; '.join(changed)})"
        raise CommandError(f"{problem}. Repeat that run's command, or remove the directory.", EX_CONFIG)


def _read_state(path: Path) -> _State | None:
    try:
        fields = orjson.loads((path / STATE).read_bytes())
        if fields.pop("version", None) != VERSION:
            raise CommandError(f"{path / STATE}: state of another version. Remove the directory.", EX_CONFIG)
        return _State(**fields | {"counts": Counts(**fields["counts"])})
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        raise CommandError(f"{path / STATE}: damaged. Remove the directory.", EX_CONFIG) from None


def _write_state(path: Path, state: _State) -> None:
    new = path / f"{STATE}.new"
    _append(new, 0, orjson.dumps({"version": VERSION, **asdict(state)}))
    new.replace(path / STATE)
    sync_directory(path)


def _append(path: Path, size: int, data: bytes) -> None:
    """Write data after the first `size` bytes of a file, truncate the rest, and fsync."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"{path}: cannot be written ({error.strerror or error})"
        raise CommandError(f"{problem}. Check the path and the free space.", EX_CANTCREAT) from None


INTERVAL_S = 10.0


class FileProgress:
    """Shows rows done, rate and time left on stderr. The total is estimated from how much of the file has been read."""

    def __init__(self, done: int) -> None:
        """Start with `done` rows from an earlier run."""
        self._first = self._done = done
        self._start = self._last = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return self
            self._bar = tqdm(initial=self._done, unit="row", unit_scale=True, smoothing=0.05, file=sys.stderr)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    @property
    def rate(self) -> float:
        """Rows per second in this run."""
        return (self._done - self._first) / max(time.monotonic() - self._start, 1e-3)

    def update(self, rows: int, total: int) -> None:
        """Report `rows` more rows out of an estimated total."""
        self._done += rows
        total = max(total, self._done)
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(rows)
        elif time.monotonic() - self._last >= INTERVAL_S:
            self._last = time.monotonic()
            left = (total - self._done) / max(self.rate, 1e-3)
            done = f"{self._done:,} of about {total:,} rows"
            print(f"{COMMAND}: {done}, {self.rate:,.0f} rows/s, {left:,.0f} s left", file=sys.stderr, flush=True)


CHARACTERS_PER_ROW = 64
"""A batch ends with the text that exceeds this mean length, so that long texts in flight use little memory."""


EncodedRows = tuple[list[tuple[Row, Encoded]], int]
"""Consecutive rows with their embeddings or rejections, and the estimated number of rows of the file."""


class Embedder(Protocol):
    """Computes embeddings with one model."""

    info: ModelInfo
    dimensions: int
    """Embedding size."""
    max_characters: int
    """Maximum length of a text."""
    batch_rows: int
    """Maximum number of texts per call of `encode`."""
    in_flight: int
    """Number of concurrent calls that keep the model busy."""

    async def encode(self, texts: Sequence[Text]) -> list[Encoded]:
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
    errors: list[str] = []
    texts: list[Text] = []
    limit = embedder.max_characters
    for row in rows:
        error, text = row.error, row.text or ""
        if not error and len(text) > limit:
            remedy = "Shorten it" + (", or split it with --chunk" if limit < MAX_CHUNKED_CHARACTERS else "")
            error = f"too many characters ({len(text)}, limit {limit}). {remedy}."
        elif not error and (not text or text.isspace()):
            error = "empty or blank. Send text."
        errors.append(error)
        if not error:
            texts.append(TitledText(row.title, text) if row.title else text)
    results = iter(await embedder.encode(texts))
    encoded = (Encoded(None, error=error) if error else next(results) for error in errors)
    return list(zip(rows, encoded, strict=True)), total


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


CHECKPOINT_ROWS = 2048
"""Vectors per checkpoint. If the process is killed, rows since the last checkpoint are encoded again."""


@dataclass(frozen=True)
class EmbedFile:
    """A file to embed, with the options."""

    source: RowFile
    target: Path
    output_format: OutputFormat
    vectors: VectorOptions = field(default_factory=VectorOptions)
    reject_truncated: bool = False
    overwrite: bool = False


async def embed_file(job: EmbedFile, embedder: Embedder) -> tuple[Counts, float]:
    """Write the embeddings of a file, resuming an earlier run if there is one. Raises `CommandError`.

    Return row counts over all runs, and the rows per second of this run.
    """
    with job.source.open() as reader:
        output = _vector_format(job, embedder, reader.types)
        run = _run_key(job, embedder.info)
        with WorkDirectory.open(job.target, run, output.header, overwrite=job.overwrite) as work:
            with FileProgress(work.state.counts.rows) as progress:
                if work.state.output is None:  # else only renames can be missing
                    write = functools.partial(_write, job, embedder, output, work)
                    await _write_rows(encode_rows(embedder, reader, work.state.counts.rows), write, progress)
            rate, counts = progress.rate, work.state.counts
            is_empty = 0 < counts.rows == counts.rejected
            await asyncio.to_thread(work.publish, None if is_empty else output.finish)
    if is_empty:
        raise _all_rejected(job, counts)
    return counts, rate


async def _write_rows(
    rows: AsyncGenerator[EncodedRows, None],
    write: Callable[[Sequence[tuple[Row, Encoded]]], None],
    progress: FileProgress,
) -> None:
    """Write the rows between two checkpoints while the next ones are being encoded."""
    encoded: list[tuple[Row, Encoded]] = []
    writing = asyncio.create_task(asyncio.sleep(0))
    try:
        async with aclosing(rows):
            async for batch, total in rows:
                encoded += batch
                progress.update(len(batch), total)
                if sum([result.count for _, result in encoded]) >= CHECKPOINT_ROWS:
                    await writing
                    writing = asyncio.create_task(asyncio.to_thread(write, encoded))
                    encoded = []
        await writing
        if encoded:
            await asyncio.to_thread(write, encoded)
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
    parts = [part for row, result in encoded for part in _split_chunks(row, result)]
    vectors = np.full((len(parts), embedder.dimensions), np.nan, job.vectors.dtype)
    accepted: list[int] = []
    rejected: list[bytes] = []
    truncated = 0
    for index, (row, result) in enumerate(parts):
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
    data = output.encode(VectorRows(vectors, accepted, [parts[index][0] for index in accepted]))
    counts = work.state.counts
    counts = Counts(
        counts.rows + len(encoded),
        counts.rejected + len(rejected),
        counts.truncated + truncated,
        counts.vectors + len(accepted),
    )
    work.append(data, b"".join(rejected), counts)


def _split_chunks(row: Row, result: Encoded) -> Iterator[tuple[Row, Encoded]]:
    """Yield one row per chunk of a text, with the columns of the chunk; yield a row without chunks unchanged."""
    if result.chunks is None or result.vector is None:
        yield row, result
        return
    for number, (chunk, vector) in enumerate(zip(result.chunks, result.vector, strict=True)):
        columns = (number, chunk.start, chunk.end, chunk.text)
        yield replace(row, kept=(*columns, *row.kept)), Encoded(vector)


def _all_rejected(job: EmbedFile, counts: Counts) -> CommandError:
    source, rejected = job.source, rejected_path(job.target)
    with rejected.open("rb") as lines:
        error = orjson.loads(lines.readline())["error"]
    options = {source.field: "--field", source.id_field: "--id-field"}
    field, _, problem = error.partition(": ")
    is_absent = source.format != "text" and problem.startswith("missing")
    remedy = f" To read another key, change {options[field]}." if is_absent and field in options else ""
    return source.error(f"no row was accepted of {counts.rows:,}, see {rejected}. The first error: {error}{remedy}")


def _vector_format(job: EmbedFile, embedder: Embedder, types: Mapping[str, Any]) -> VectorFormat:
    info, dtype, source = embedder.info, job.vectors.dtype, job.source
    if job.vectors.chunks is not None:
        source = replace(source, keep=(*CHUNK_COLUMNS, *source.keep))
    if job.output_format == "jsonl":
        return JsonLines(ids=source.id_field is not None, keep=source.keep)
    if job.output_format == "npy":
        return Numpy(embedder.dimensions, dtype)
    metadata = {"attendant.model": info.name, "attendant.digest": info.digest, "attendant.precision": info.precision}
    return Parquet(embedder.dimensions, dtype, source, types, metadata)


def _run_key(job: EmbedFile, info: ModelInfo) -> dict[str, Any]:
    """Return what must be unchanged to resume a run: properties of the input file, the model and the options."""
    with job.source.read_errors(), job.source.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
    run: dict[str, Any] = {"input size": size, "input digest": digest[:16], "input format": job.source.format}
    run |= {"field": job.source.field, "id-field": job.source.id_field, "reject-truncated": job.reject_truncated}
    if job.source.title_field is not None:
        run |= {"title-field": job.source.title_field}
    if job.source.keep or job.source.delimiter is not None:  # else runs of earlier versions could not be resumed
        run |= {"keep": ",".join(job.source.keep), "delimiter": job.source.delimiter}
    run |= {"model digest": info.digest, "precision": info.precision, "output format": job.output_format}
    # The name of the model may be an alias; the digest identifies it.
    return run | {name.replace("_", "-"): value for name, value in asdict(job.vectors).items() if name != "model"}


SENTENCE_OPTIONS = ("--one-per-chunk", "--chunk-language")
CHUNK_OPTIONS = {
    "chunks.max_tokens": "--chunk-tokens", "chunks.overlap_tokens": "--chunk-overlap", "chunks.mode": "--late",
}  # fmt: skip
"""The options that set fields of a request."""
COMMAND = "attendant embed"
DESCRIPTION = """\
Write an embedding for each row of a file. Input is one text per line (.txt), JSON lines (.jsonl), CSV or TSV with a
header (.csv, .tsv), which may be compressed (.gz, .zst), or Parquet (.parquet); output is Parquet, NumPy (.npy) or JSON
lines. Without -o, print the embedding of each TEXT, or of each line of standard input, as one line of JSON."""
EPILOG = """\
OUT has one embedding per row in input order, or with --chunk one per chunk, with row numbers from 1 (in CSV, not
counting the header). Without --chunk, texts over the token limit are truncated. Rows without a usable text are
rejected: OUT.rejected.jsonl lists their numbers and the reasons, and NumPy files have NaN in their place. OUT appears
when it is complete. Until then, rows are kept in the directory OUT.partial. To resume after an interruption, run the
same command again.

Engine options come from the environment (ATTENDANT_MODEL_DIR, ATTENDANT_PRECISION, ...).

examples:
  attendant embed texts.parquet -o vectors.parquet --field body --id-field id --keep title,body
  attendant embed articles.jsonl -o chunks.parquet --id-field id --chunk sentence --chunk-overlap 32
  attendant embed texts.txt -o vectors.npy --server grpc://127.0.0.1:8081
  attendant embed "river bank flows" "money bank grows"
"""


def run(arguments: list[str]) -> int:
    """Write or print embeddings and return the exit status. Raises `ConfigError` or `ArtifactError`."""
    if _is_file_command(arguments):
        return _run_file(arguments)
    if arguments:
        _check_texts(arguments)
    texts: Iterable[LabeledText] = [label_argument(f"text {number}", text) for number, text in enumerate(arguments, 1)]
    if not arguments:
        texts = ((f"line {number}", text) for number, text in read_lines(sys.stdin.buffer))
    return asyncio.run(_embed_texts(load_settings(), texts))


def _is_file_command(arguments: Sequence[str]) -> bool:
    """Return whether the arguments name an output file, start with an option, or ask for help."""
    first = "".join(arguments[:1])
    options = ("--output", "--help")
    return (first.startswith("-") and not first.startswith("- ")) or any(
        item in options or item.startswith(("-o", "--output=")) for item in arguments
    )


def _check_texts(arguments: Sequence[str]) -> None:
    """Exit with status 2 if the texts look like a file or options, because -o was probably forgotten."""
    option = next((item for item in arguments if item.startswith("--")), None)
    if option is None and not _is_path(arguments[0]):
        return
    if option is not None:
        _parser().error(f"--output: missing (option {option.partition('=')[0]}). Set -o OUT: texts allow no options")
    _parser().error(f"--output: missing (file {arguments[0]}). Set -o OUT, or write texts to standard input")


def _is_path(text: str) -> bool:
    """Return whether a text is the name of an existing file, or a word that looks like a path or an input file."""
    try:
        if Path(text).is_file():
            return True
    except OSError:  # too long for a name
        return False
    is_word = len(text.split()) == 1
    return is_word and (text.startswith(("/", "./", "../")) or input_format(Path(text)) is not None)


def _run_file(arguments: list[str]) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        job = _job(parser, options)
        counts = asyncio.run(_embed_file(job, options))
    except CommandError as error:
        is_final = error.status in (EX_USAGE, EX_CONFIG, EX_DATAERR, EX_CANTCREAT)
        hint = "" if is_final or not partial_path(options.output).exists() else " Repeat the command to continue."
        field, separator, problem = str(error).partition(": ")
        print(f"{COMMAND}: {CHUNK_OPTIONS.get(field, field)}{separator}{problem}{hint}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        if partial_path(options.output).exists():
            print(f"{COMMAND}: interrupted. Repeat the command to continue.", file=sys.stderr)
        raise
    return EX_NEGATIVE if counts.rejected else EX_OK


async def _embed_file(job: EmbedFile, options: argparse.Namespace) -> Counts:
    async with _open_embedder(options, job.vectors) as embedder:
        counts, rate = await embed_file(job, embedder)
        limit = embedder.info.max_input_tokens
    count = f"{counts.rows - counts.rejected:,} embeddings"
    if job.vectors.chunks is not None:
        count = f"{counts.vectors:,} embeddings of {counts.rows - counts.rejected:,} rows"
    parts = [f"wrote {count} to {job.target}, {rate:,.0f} rows/s"]
    if counts.truncated:
        parts.append(f"truncated {counts.truncated:,} to {limit} tokens, the limit of the model")
    if counts.rejected:
        parts.append(f"rejected {counts.rejected:,} of {counts.rows:,} rows, see {rejected_path(job.target)}")
    print(f"{COMMAND}: {'; '.join(parts)}", file=sys.stderr)
    return counts


def _open_embedder(options: argparse.Namespace, vectors: VectorOptions) -> AbstractAsyncContextManager[Embedder]:
    if not options.ray:
        return open_source(options, vectors)
    # Ray reads this at import. Otherwise an interrupted thread would start a second cluster.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    ray_embedder = import_extra("service.commands.embed_ray", "ray", "--ray: Ray")
    opened: AbstractAsyncContextManager[Embedder] = ray_embedder.open_ray_embedder(
        load_settings(), vectors, options.ray_workers, sources.open_engine_source
    )
    return opened


def _job(parser: Parser, options: argparse.Namespace) -> EmbedFile:
    """Return the file to embed, after every check that can fail before the model is loaded."""
    source_format = options.input_format or input_format(options.input)
    target_format = options.output_format or output_format(options.output)
    if source_format is None:
        known = ", ".join((*INPUT_SUFFIXES, *COMPRESSED_SUFFIXES))
        parser.error(f"IN: unknown suffix ({options.input.suffix or 'none'}; known: {known}). Set --input-format")
    if target_format is None:
        known = ", ".join(OUTPUT_SUFFIXES)
        parser.error(
            f"--output: unknown suffix ({options.output.suffix or 'none'}; known: {known}). Set --output-format"
        )
    if options.id_field is not None and source_format == "text":
        parser.error("--id-field: not supported for lines of text. Use row numbers")
    if options.id_field is not None and target_format == "npy":
        parser.error("--id-field: not supported for NumPy files. Use .parquet or .jsonl")
    _check_keep(parser, options, source_format, target_format)
    if options.delimiter is not None and source_format != "csv":
        parser.error("--delimiter: set for a file that is not CSV. Remove it, or set --input-format csv")
    parser.check_source_options(options)
    if options.ray and options.server is not None:
        parser.error("--server: not supported with --ray. Remove one of them")
    if options.ray_workers is not None and not options.ray:
        parser.error("--ray-workers: set without --ray. Remove it")
    if not options.input.is_file():
        problem = "not a regular file" if options.input.exists() else "not found"
        raise CommandError(f"{options.input}: {problem}. Check the path.", EX_DATAERR)
    _check_output(options.input, options.output)
    if "parquet" in (source_format, target_format):
        import_arrow()
    return EmbedFile(
        RowFile(
            options.input,
            source_format,
            options.field or "text",
            options.id_field,
            options.keep,
            options.title_field,
            options.delimiter,
        ),
        options.output,
        target_format,
        VectorOptions(
            options.model,
            options.dtype,
            options.dimensions,
            options.prompt_name,
            options.normalize,
            _chunk_options(parser, options, target_format),
        ),
        reject_truncated=options.reject_truncated,
        overwrite=options.overwrite,
    )


def _chunk_options(parser: Parser, options: argparse.Namespace, target_format: OutputFormat) -> ChunkOptions | None:
    """Return how to split texts, or exit with an error if options conflict."""
    given = {
        "--chunk-tokens": options.chunk_tokens, "--chunk-overlap": options.chunk_overlap,
        "--chunk-language": options.chunk_language, "--one-per-chunk": options.one_per_chunk, "--late": options.late,
    }  # fmt: skip
    if options.chunk is None:
        if unused := next((name for name, value in given.items() if value), None):
            parser.error(f"{unused}: set without --chunk. Add it, for example --chunk sentence")
        return None
    if options.chunk == "token" and (unused := next((name for name in SENTENCE_OPTIONS if given[name]), None)):
        parser.error(f"{unused}: not supported with --chunk token, which splits sentences. Remove it")
    if target_format == "npy":
        parser.error("--chunk: not supported for NumPy files. Use .parquet or .jsonl")
    if options.reject_truncated:
        parser.error("--reject-truncated: not supported with --chunk, which truncates nothing. Remove it")
    return ChunkOptions(
        options.chunk, options.chunk_tokens, options.chunk_overlap or 0, not options.one_per_chunk,
        "late" if options.late else "separate", options.chunk_language or "en",
    )  # fmt: skip


def _check_keep(
    parser: Parser, options: argparse.Namespace, source_format: InputFormat, target_format: OutputFormat
) -> None:
    """Exit with an error if a column cannot be copied or read: IN lacks it, or OUT has another of this name."""
    keep: tuple[str, ...] = options.keep
    if options.field is not None and source_format == "text":
        parser.error("--field: not supported for lines of text. Remove it, or set --input-format")
    if options.title_field is not None and source_format == "text":
        parser.error("--title-field: not supported for lines of text. Use .jsonl or .csv")
    if keep and target_format == "npy":
        parser.error("--keep: not supported for NumPy files. Use .parquet or .jsonl")
    if source_format == "text" and set(keep) - {"text"}:
        parser.error("--keep: lines of text have one column. Use --keep text")
    for name in keep:
        if keep.count(name) > 1:
            parser.error(f"--keep: {name} is listed twice. Remove one")
        if name in OUTPUT_COLUMNS and (name != "id" or options.id_field is not None):
            parser.error(f"--keep: {name} is a column of OUT already. Rename it in IN")
        if name in CHUNK_COLUMNS and options.chunk is not None:
            parser.error(f"--keep: {name} is a column of the chunks. Rename it in IN")


def _check_output(source: Path, target: Path) -> None:
    """Raise `CommandError` if the output cannot be a file, or if it would overwrite the input."""
    with _write_errors(target):  # such as a name that is too long, also with the suffixes of the other outputs
        for path in (target, rejected_path(target), partial_path(target)):
            path.exists()
    if target.is_dir():
        raise CommandError(f"{target}: is a directory. Set -o to a file.", EX_CANTCREAT)
    if not target.parent.is_dir():
        raise CommandError(f"{target.parent}: no such directory. Create it.", EX_CANTCREAT)
    for path in (target, rejected_path(target)):
        if path.exists() and path.samefile(source):
            raise CommandError(f"{path}: is the input, which would be replaced. Set -o to another file.", EX_USAGE)


def _parser() -> Parser:
    parser = Parser(COMMAND, DESCRIPTION, EPILOG)
    parser.usage = f"{COMMAND} IN -o OUT [OPTION...]\n       {COMMAND} [TEXT...]"
    add = parser.add_argument
    add("input", type=Path, metavar="IN", help="file of texts")
    add("-o", "--output", type=output_path, metavar="OUT", required=True, help="file of embeddings")
    add("--input-format", choices=INPUT_FORMATS, help="format of IN (default: by its suffix)")
    add("--output-format", choices=OUTPUT_FORMATS, help="format of OUT (default: by its suffix)")
    add("--field", type=_name, metavar="NAME", help="key or column of the text (default: text)")
    add("--id-field", type=_name, metavar="NAME", help="key or column to copy to the output: strings or integers")
    add("--title-field", type=_name, metavar="NAME", help="key or column of a title, which precedes the text and each "
        "of its chunks in the model's input; takes a request per row")  # fmt: skip
    add("--keep", type=_names, default=(), metavar="NAME,...", help="keys or columns to copy to the output")
    add("--delimiter", type=_delimiter, metavar="C", help="character between the columns of CSV (default: a comma)")
    add("--dimensions", type=integer(1, 2**20), metavar="N", help="dimensions to keep (default: all)")
    add("--dtype", choices=("float32", "float16"), default="float32", help="type of the values (default: float32)")
    add("--prompt-name", metavar="NAME", help="prompt of the model (default: its default prompt)")
    add("--normalize", action=argparse.BooleanOptionalAction, help="scale to length 1 (default: as the model does)")
    add("--reject-truncated", action="store_true", help="reject texts over the token limit instead of truncating them")
    add("--chunk", choices=("sentence", "paragraph", "token"), help="split texts into chunks of whole sentences, "
        "paragraphs or words; OUT has one row per chunk, with the columns chunk, start, end and text")  # fmt: skip
    add("--chunk-tokens", type=integer(1, 2**20), metavar="N", help="tokens of a chunk at most (default: what the "
        "model has room for, at most 256; with --late a quarter of it)")  # fmt: skip
    add("--chunk-overlap", type=integer(0, 2**20), metavar="N", help="tokens to repeat from the previous chunk at most")
    add("--one-per-chunk", action="store_true", help="make a chunk of each sentence or paragraph")
    add("--late", action="store_true", help="late chunking: encode the whole text, and pool the tokens of each chunk")
    add(
        "--chunk-language",
        metavar="CODE",
        type=language_code,
        help="language of the sentences: en, de, ... (default: en)",
    )
    add("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.add_source_options()
    add("--ray", action="store_true", help="use a Ray cluster: the one at RAY_ADDRESS, or else a new one")
    add("--ray-workers", type=integer(1, 10_000), metavar="N", help="number of workers (default: as many as fit)")
    return parser


def _name(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # arguments that are not UTF-8 have surrogates
        raise argparse.ArgumentTypeError("not UTF-8. Convert it to UTF-8") from None
    return value


def _names(value: str) -> tuple[str, ...]:
    _name(value)
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("names no column")
    return names


def _delimiter(value: str) -> str:
    value = "\t" if value == "\\t" else value
    if len(value) != 1 or value in '"\r\n':
        raise argparse.ArgumentTypeError("must be one character other than a quote")
    return value


async def _embed_texts(settings: Settings, texts: Iterable[LabeledText]) -> int:
    truncated = 0
    async with open_engine(settings) as engine:
        try:
            async for response in encode_texts(engine, texts):
                truncated += response.truncated_inputs
                for result in response.results:
                    line = orjson.dumps(required(result.pooled), option=orjson.OPT_SERIALIZE_NUMPY)
                    sys.stdout.buffer.write(line + b"\n")
                sys.stdout.flush()
        except ServiceError as error:
            sys.stdout.flush()
            print(f"{COMMAND}: {error.message}", file=sys.stderr)
            return EX_DATAERR if error.http_status < 500 else EX_UNAVAILABLE
        limit = engine.info.max_input_tokens
    if truncated:
        count = "1 text" if truncated == 1 else f"{truncated:,} texts"
        print(f"{COMMAND}: truncated {count} to {limit} tokens, the limit of the model", file=sys.stderr)
    return 0
