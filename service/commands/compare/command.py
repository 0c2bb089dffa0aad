"""`attendant compare`: a gate on how much embeddings and neighbors differ between two artifacts or precisions."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from model.artifact.console import EX_DATAERR, EX_NEGATIVE
from model.artifact.files import Artifact
from model.artifact.manifest import Manifest
from service.commands.arguments import PRECISIONS, Parser, integer, number
from service.commands.encoding import TextEncoder, run_engine
from service.commands.lines import TextError, TextFile
from service.commands.neighbors import Vectors
from service.commands.report import Comparison, Encoded, Gate
from service.config import load_settings

if TYPE_CHECKING:
    from service.engine.engine import Engine

DEFAULT_LIMIT = 10_000
MAX_LIMIT = 100_000

DESCRIPTION = """\
Compare the embeddings of two artifacts, or of one artifact in two precisions, on your texts. This reports the cosine
between each text's old and new vectors, and how its nearest neighbors change under the similarity that each model was
trained for. Cosines between different models mean nothing, because their vector spaces differ; look at neighbors."""
EPILOG = f"""\
Only the first {DEFAULT_LIMIT:,} lines are read unless --limit is set, so shuffle sorted files. Duplicates count once.
The models are loaded one after the other. N vectors of D dimensions take 16 * N * D bytes, and without --queries the
search takes 2 * N^2 * D multiplications. On two cores with 384 dimensions, 10,000 lines take less than a minute, and
{MAX_LIMIT:,}, the largest limit, about 20 minutes and 1.1 GB. A million lines would take a day.

example: attendant compare models/old models/new --texts texts.txt --queries queries.txt --min-overlap 0.9
example: attendant compare models/m models/m --old-precision float32 --new-precision bfloat16 --texts texts.txt \\
  --min-cosine 0.9995
"""


def run(arguments: Sequence[str]) -> int:
    """Print the comparison and return the exit status.

    Raises `ArtifactError` or `ConfigError`, or `SystemExit` for a usage error.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    # Run every check that can fail early before loading the first model.
    manifests = [Artifact.open(directory).manifest for directory in (options.old, options.new)]
    _check_dimensions(parser, options, manifests)
    try:
        texts = TextFile.read(options.texts, options.limit)
        queries = None if options.queries is None else TextFile.read(options.queries, options.limit)
        _check_top_k(parser, options.top_k, texts, queries)
        comparison = _compare(options, texts, queries)
    except TextError as error:
        print(f"attendant compare: {error}", file=sys.stderr)
        return EX_DATAERR
    gates = _gates(options, comparison)
    if options.json:
        record = comparison.to_json(gates, show_texts=options.show_texts)
        print(orjson.dumps(record, option=orjson.OPT_INDENT_2).decode())
    else:
        for line in comparison.to_lines(gates, show_texts=options.show_texts):
            print(line)
    missed = [gate for gate in gates if not gate.passed]
    for gate in missed:
        print(
            f"attendant compare: {gate.option}: threshold missed ({gate.measured:.6f}, limit {gate.threshold:g}).",
            file=sys.stderr,
        )
    return EX_NEGATIVE if missed else 0


def _parser() -> Parser:
    parser = Parser("attendant compare", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("old", type=Path, metavar="OLD", help="directory of the artifact in use")
    add("new", type=Path, metavar="NEW", help="directory of the new artifact")
    add("--texts", type=Path, required=True, metavar="FILE", help="texts, one per line, in UTF-8, without blank lines")
    add("--queries", type=Path, metavar="FILE", help="queries, likewise (default: each text is a query)")
    add("--top-k", type=integer(1, 1000), default=10, metavar="K", help="neighbors per query (default: 10)")
    add("--limit", type=integer(1, MAX_LIMIT), default=DEFAULT_LIMIT, metavar="N",
        help=f"lines to read per file, at most {MAX_LIMIT:,} (default: {DEFAULT_LIMIT:,})")  # fmt: skip
    add("--min-cosine", type=number("-1", "1"), metavar="X", help="lowest acceptable cosine of any text")
    add("--min-overlap", type=number("0", "1"), metavar="Y", help="lowest acceptable mean overlap of neighbors")
    for side in ("old", "new"):
        description = f"precision of {side.upper()} (default: ATTENDANT_PRECISION)"
        add(f"--{side}-precision", choices=PRECISIONS, help=description)
    add(
        "--show-texts",
        action="store_true",
        help="print the texts with the largest changes, not just their line numbers",
    )
    add("--json", action="store_true", help="print JSON")
    return parser


def _check_dimensions(parser: Parser, options: argparse.Namespace, manifests: Sequence[Manifest]) -> None:
    old, new = (manifest.embedding.dimensions for manifest in manifests)
    if options.min_cosine is not None and old != new:
        parser.error(f"--min-cosine: requires equal dimensions (OLD has {old}, NEW {new}). Use --min-overlap")


def _check_top_k(parser: Parser, top_k: int, texts: TextFile, queries: TextFile | None) -> None:
    """Require more candidates than neighbors; otherwise the overlap of any two models is 1."""
    candidates = len(texts.lines) - (queries is None)
    if candidates < 2:
        needed = 3 if queries is None else 2
        raise TextError(f"{texts.path}: too few distinct texts ({len(texts.lines)}, limit {needed}). Add texts.")
    if top_k >= candidates:
        parser.error(
            f"--top-k: must be less than the number of texts to choose from ({top_k}, limit {candidates - 1}). "
            "Reduce it or add texts"
        )


def _compare(options: argparse.Namespace, texts: TextFile, queries: TextFile | None) -> Comparison:
    settings = load_settings()

    def encode(label: str, directory: Path, precision: str | None) -> Encoded:
        async def encode_files(engine: "Engine") -> Encoded:
            encoder = TextEncoder(engine, label)
            vectors = await encoder.vectors(texts.path, texts.labeled, None if queries is None else "document")
            asked = None if queries is None else await encoder.vectors(queries.path, queries.labeled, "query")
            return Encoded(engine.info, Vectors(vectors, asked, engine.info.similarity), encoder.truncated)

        changes = {"model_dir": directory, "model_digest": None, "precision": precision or settings.precision}
        return run_engine(settings.model_copy(update=changes), encode_files)

    old = encode("old", options.old, options.old_precision)
    new = encode("new", options.new, options.new_precision)
    return Comparison.of(old, new, texts, queries, options.top_k)


def _gates(options: argparse.Namespace, comparison: Comparison) -> list[Gate]:
    """Return the thresholds that were set, with the measured values."""
    gates = []
    if options.min_cosine is not None:
        assert comparison.cosines is not None
        gates.append(Gate("--min-cosine", float(options.min_cosine), comparison.cosines.min))
    if options.min_overlap is not None:
        gates.append(Gate("--min-overlap", float(options.min_overlap), comparison.ranks.mean_overlap))
    return gates
