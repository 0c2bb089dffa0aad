"""`attendant embed`: embeddings of a file's rows, or of texts as JSON lines."""

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import orjson

from model.artifact.console import (
    EX_CANTCREAT,
    EX_CONFIG,
    EX_DATAERR,
    EX_NEGATIVE,
    EX_OK,
    EX_UNAVAILABLE,
    EX_USAGE,
    output_path,
)
from service.commands import vector_sources
from service.commands.arguments import CommandError, Parser, import_extra, integer
from service.commands.embed.encoded_rows import Embedder
from service.commands.embed.file import EmbedFile, Report, embed_file
from service.commands.embed.work_directory import partial_path, rejected_path
from service.commands.encoding import encode_texts, open_engine
from service.commands.lines import LabeledText, read_lines
from service.commands.row_files import INPUT_FORMATS, RowFile, import_arrow, input_format
from service.commands.vector_files import OUTPUT_FORMATS, output_format
from service.commands.vector_sources import VectorOptions, open_source
from service.config import Settings, load_settings
from service.errors import ServiceError

COMMAND = "attendant embed"
DESCRIPTION = """\
Write an embedding for each row of a file. Input is one text per line (.txt), JSON lines (.jsonl), CSV with a header
(.csv) or Parquet (.parquet); output is Parquet, NumPy (.npy) or JSON lines. Without -o, print the embedding of each
TEXT, or of each line of standard input, as one line of JSON."""
EPILOG = """\
OUT has one embedding per row in input order, with row numbers from 1 (in CSV, not counting the header). Rows without a
usable text are rejected: OUT.rejected.jsonl lists their numbers and the reasons, and NumPy files have NaN in their
place. OUT appears when it is complete. Until then, rows are kept in the directory OUT.partial. To resume after an
interruption, run the same command again.

Engine options come from the environment (ATTENDANT_MODEL_DIR, ATTENDANT_PRECISION, ...).

examples:
  attendant embed texts.parquet -o vectors.parquet --field body --id-field id
  attendant embed texts.txt -o vectors.npy --server grpc://127.0.0.1:8081
  attendant embed "river bank flows" "money bank grows"
"""


def run(arguments: list[str]) -> int:
    """Write or print embeddings and return the exit status. Raises `ConfigError` or `ArtifactError`."""
    if _is_file_command(arguments):
        return _run_file(arguments)
    if arguments:
        _check_texts(arguments)
    texts: Iterable[LabeledText] = ((f"text {number}", text) for number, text in enumerate(arguments, start=1))
    if not arguments:
        texts = ((f"line {number}", text) for number, text in read_lines(sys.stdin.buffer))
    return asyncio.run(_embed_texts(load_settings(), texts))


def _is_file_command(arguments: Sequence[str]) -> bool:
    """Return whether the arguments have an output file, start with an option, or ask for help."""
    first = arguments[0] if arguments else ""
    is_option = first.startswith("-") and not first.startswith("- ")
    return is_option or any(
        item in ("--output", "--help") or item.startswith(("-o", "--output=")) for item in arguments
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
        report = asyncio.run(_embed_file(job, options))
    except CommandError as error:
        hint = " Repeat the command to continue." if partial_path(options.output).exists() else ""
        hint = "" if error.status in (EX_USAGE, EX_CONFIG, EX_DATAERR, EX_CANTCREAT) else hint
        print(f"{COMMAND}: {error}{hint}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        if partial_path(options.output).exists():
            print(f"{COMMAND}: interrupted. Repeat the command to continue.", file=sys.stderr)
        raise
    return EX_NEGATIVE if report.counts.rejected else EX_OK


async def _embed_file(job: EmbedFile, options: argparse.Namespace) -> Report:
    async with _open_embedder(options, job.vectors) as embedder:
        report = await embed_file(job, embedder)
        limit = embedder.info.max_input_tokens
    counts = report.counts
    parts = [f"wrote {counts.rows - counts.rejected:,} embeddings to {job.target}, {report.rate:,.0f} rows/s"]
    if counts.truncated:
        parts.append(f"truncated {counts.truncated:,} to {limit} tokens, the limit of the model")
    if counts.rejected:
        parts.append(f"rejected {counts.rejected:,} of {counts.rows:,} rows, see {rejected_path(job.target)}")
    print(f"{COMMAND}: {'; '.join(parts)}", file=sys.stderr)
    return report


def _open_embedder(options: argparse.Namespace, vectors: VectorOptions) -> AbstractAsyncContextManager[Embedder]:
    if not options.ray:
        return open_source(options, vectors)
    # Ray reads this at import. Otherwise an interrupted thread would start a second cluster.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    ray_embedder = import_extra("service.commands.embed.ray_embedder", "ray", "--ray: Ray")
    opened: AbstractAsyncContextManager[Embedder] = ray_embedder.open_ray_embedder(
        load_settings(), vectors, options.ray_workers, vector_sources.open_engine_source
    )
    return opened


def _job(parser: Parser, options: argparse.Namespace) -> EmbedFile:
    """Return the file to embed, after every check that can fail before the model is loaded."""
    source_format = options.input_format or input_format(options.input)
    target_format = options.output_format or output_format(options.output)
    if source_format is None:
        parser.error(f"IN: unknown suffix ({options.input.suffix or 'none'}). Set --input-format")
    if target_format is None:
        parser.error(f"--output: unknown suffix ({options.output.suffix or 'none'}). Set --output-format")
    if options.id_field is not None and source_format == "text":
        parser.error("--id-field: not supported for lines of text. Use row numbers")
    if options.id_field is not None and target_format == "npy":
        parser.error("--id-field: not supported for NumPy files. Use .parquet or .jsonl")
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
        RowFile(options.input, source_format, options.field, options.id_field),
        options.output,
        target_format,
        VectorOptions(options.model, options.dtype, options.dimensions, options.prompt_name, options.normalize),
        reject_truncated=options.reject_truncated,
        overwrite=options.overwrite,
    )


def _check_output(source: Path, target: Path) -> None:
    """Raise `CommandError` if the output cannot be a file, or if it would overwrite the input."""
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
    add("--field", default="text", metavar="NAME", help="key or column of the text (default: text)")
    add("--id-field", metavar="NAME", help="key or column to copy to the output: strings or integers")
    add("--dimensions", type=integer(1, 2**20), metavar="N", help="dimensions to keep (default: all)")
    add("--dtype", choices=("float32", "float16"), default="float32", help="type of the values (default: float32)")
    add("--prompt-name", metavar="NAME", help="prompt of the model (default: its default prompt)")
    add("--normalize", action=argparse.BooleanOptionalAction, help="scale to length 1 (default: as the model does)")
    add("--reject-truncated", action="store_true", help="reject texts over the token limit instead of truncating them")
    add("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.add_source_options()
    add("--ray", action="store_true", help="use a Ray cluster: the one at RAY_ADDRESS, or else a new one")
    add("--ray-workers", type=integer(1, 10_000), metavar="N", help="number of workers (default: as many as fit)")
    return parser


async def _embed_texts(settings: Settings, texts: Iterable[LabeledText]) -> int:
    truncated = 0
    async with open_engine(settings) as engine:
        try:
            async for response in encode_texts(engine, texts):
                truncated += response.truncated_inputs
                for result in response.results:
                    assert result.pooled is not None
                    line = orjson.dumps(result.pooled.values, option=orjson.OPT_SERIALIZE_NUMPY)
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
