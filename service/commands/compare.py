"""`attendant compare`: how much embeddings and neighbors differ between two artifacts or precisions, with gates."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from attendant_client.types import ModelInfo
from numpy.typing import NDArray

from model.artifact.console import EX_NEGATIVE
from model.artifact.files import Artifact
from service.commands.arguments import PRECISIONS, Parser, integer, number
from service.commands.labeled_texts import TextError, TextFile
from service.commands.measures import (
    Vectors,
    overlaps,
    pair_similarities,
    row_cosines,
    sample_pairs,
    spearman,
    top_neighbors,
)
from service.commands.sources import TextEncoder, describe_model, model_record, run_engine
from service.config import load_settings

if TYPE_CHECKING:
    from service.engine.engine import Engine

LISTED = 10
"""Maximum number of most-changed lines to list."""


@dataclass(frozen=True)
class Encoded:
    """A model, the normalized embeddings of all texts and queries, and how many of them were truncated."""

    info: ModelInfo
    vectors: Vectors
    truncated: int


def compare_models(
    old: Encoded, new: Encoded, texts: TextFile, queries: TextFile | None, top_k: int, *, show_texts: bool
) -> dict[str, Any]:
    """Return the comparison as in the JSON output, without gates. `cosine` is None if the dimensions differ."""

    def lowest(file: TextFile, values: NDArray[np.float64]) -> list[dict[str, Any]]:
        """Return the lines with the lowest values below 1 in ascending order, ties in file order."""
        order = [index for index in np.argsort(values, kind="stable")[:LISTED] if values[index] < 1]
        lines = ((float(values[index]), *file.lines[index]) for index in order)
        return [{"line": line, "value": value} | ({"text": text} if show_texts else {}) for value, line, text in lines]

    cosine, lowest_cosines = None, []
    if old.info.dimensions == new.info.dimensions:
        values = row_cosines(old.vectors.texts, new.vectors.texts)
        percentiles = np.percentile(values, (0, 1, 5, 50)).tolist()
        cosine = dict(zip(("min", "p1", "p5", "median"), percentiles, strict=True))
        cosine["mean"] = float(values.mean(dtype=np.float64))
        lowest_cosines = lowest(texts, values)
    neighbors = [top_neighbors(model.vectors, top_k) for model in (old, new)]
    shares = overlaps(*neighbors)
    pairs = sample_pairs(None if queries is None else len(queries.lines), len(texts.lines))
    ranks = {
        "top_k": top_k,
        "mean_overlap": float(shares.mean()),
        "changed_first": float(np.mean(neighbors[0][:, 0] != neighbors[1][:, 0])),
        "spearman": spearman(*(pair_similarities(model.vectors, pairs) for model in (old, new))),
        "pairs": len(pairs[0]),
    }
    return {
        "old": model_record(old.info, old.truncated),
        "new": model_record(new.info, new.truncated),
        "texts": texts.to_json(),
        "queries": None if queries is None else queries.to_json(),
        "cosine": cosine,
        "ranks": ranks,
        "lowest_cosines": lowest_cosines,
        "lowest_overlaps": lowest(queries or texts, shares),
    }


def to_lines(record: dict[str, Any], old: ModelInfo, new: ModelInfo) -> Iterator[str]:
    """Yield the comparison as a table."""
    models = (("old", old), ("new", new))
    for label, info in models:
        yield f"{label:<10} {describe_model(info)}"
    for label in ("texts", "queries"):
        if (file := record[label]) is not None:
            rest = "" if file["complete"] else "; the file has more, see --limit"
            yield f"{label:<10} {file['distinct']:,} distinct of {file['lines_read']:,} lines{rest}"
    for label, info in models:
        if truncated := record[label]["truncated"]:
            yield f"truncated  {label}: {truncated:,} lines to {info.max_input_tokens} tokens"
    if record["cosine"] is None:
        yield f"cosine     not defined, because the dimensions differ ({old.dimensions} and {new.dimensions})"
    else:
        yield "cosine     " + ", ".join(f"{name} {value:.6f}" for name, value in record["cosine"].items())
    ranks, subject = record["ranks"], "texts" if record["queries"] is None else "queries"
    yield f"overlap    {ranks['mean_overlap']:.4f} of the first {ranks['top_k']} neighbors, mean of all {subject}"
    yield f"first      {100 * ranks['changed_first']:.2f}% of the {subject} have another first neighbor"
    value = "not defined, because all similarities are equal"
    value = value if ranks["spearman"] is None else f"{ranks['spearman']:.6f}"
    yield f"Spearman   {value} ({ranks['pairs']:,} pairs)"
    yield from _changed_lines("lowest cosine", record["lowest_cosines"])
    yield from _changed_lines("lowest overlap", record["lowest_overlaps"])
    for gate in record["gates"]:
        verdict = "reached" if gate["passed"] else "MISSED"
        yield f"gate       {gate['option']} {gate['threshold']:g}: {verdict} ({gate['measured']:.6f})"


def _changed_lines(label: str, lines: list[dict[str, Any]]) -> Iterator[str]:
    if lines and "text" in lines[0]:
        yield f"{label}:"
        yield from (f"  line {line['line']}: {line['value']:.6f} {line['text']}" for line in lines)
    elif lines:
        yield f"{label}: " + ", ".join(f"line {line['line']} ({line['value']:.6g})" for line in lines)


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
    """Print the comparison and return the exit status. Raises `ArtifactError`, `ConfigError` or `TextError`."""
    parser = _parser()
    options = parser.parse_args(arguments)
    # Run every check that can fail early before loading the first model.
    old_size, new_size = (Artifact.open(path).manifest.embedding.dimensions for path in (options.old, options.new))
    if options.min_cosine is not None and old_size != new_size:
        problem = f"requires equal dimensions (OLD has {old_size}, NEW {new_size})"
        parser.error(f"--min-cosine: {problem}. Use --min-overlap")
    texts = TextFile.read(options.texts, options.limit)
    queries = None if options.queries is None else TextFile.read(options.queries, options.limit)
    _check_top_k(parser, options.top_k, texts, queries)
    old, new = _encode(options, texts, queries)
    record = compare_models(old, new, texts, queries, options.top_k, show_texts=options.show_texts)
    thresholds = (
        ("--min-cosine", options.min_cosine, record["cosine"] and record["cosine"]["min"]),
        ("--min-overlap", options.min_overlap, record["ranks"]["mean_overlap"]),
    )
    record["gates"] = [
        {"option": option, "threshold": float(limit), "measured": measured, "passed": measured >= float(limit)}
        for option, limit, measured in thresholds
        if limit is not None
    ]
    missed = [gate for gate in record["gates"] if not gate["passed"]]
    record["passed"] = not missed
    if options.json:
        print(orjson.dumps(record, option=orjson.OPT_INDENT_2).decode())
    else:
        for line in to_lines(record, old.info, new.info):
            print(line)
    for gate in missed:
        problem = f"threshold missed ({gate['measured']:.6f}, limit {gate['threshold']:g})"
        print(f"attendant compare: {gate['option']}: {problem}.", file=sys.stderr)
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
    add("--show-texts", action="store_true", help="print texts with the largest changes, not just line numbers")
    add("--json", action="store_true", help="print JSON")
    return parser


def _check_top_k(parser: Parser, top_k: int, texts: TextFile, queries: TextFile | None) -> None:
    """Require more candidates than neighbors; otherwise the overlap of any two models is 1."""
    candidates = len(texts.lines) - (queries is None)
    if candidates < 2:
        needed = 3 if queries is None else 2
        raise TextError(f"{texts.path}: too few distinct texts ({len(texts.lines)}, limit {needed}). Add texts.")
    if top_k >= candidates:
        parser.error(f"--top-k: too many for the texts ({top_k}, limit {candidates - 1}). Reduce it or add texts")


def _encode(options: argparse.Namespace, texts: TextFile, queries: TextFile | None) -> list[Encoded]:
    """Encode the files with both models, one after the other."""
    settings = load_settings()

    def encode(label: str, directory: Path, precision: str | None) -> Encoded:
        async def encode_files(engine: "Engine") -> Encoded:
            encoder = TextEncoder(engine, label)
            vectors = await encoder.vectors(texts.path, texts.labeled, None if queries is None else "document")
            asked = None if queries is None else await encoder.vectors(queries.path, queries.labeled, "query")
            return Encoded(engine.info, Vectors(vectors, asked, engine.info.similarity), encoder.truncated)

        changes = {"model_dir": directory, "model_digest": None, "precision": precision or settings.precision}
        return run_engine(settings.model_copy(update=changes), encode_files)

    return [encode("old", options.old, options.old_precision), encode("new", options.new, options.new_precision)]
