"""`attendant compare`: how much embeddings and neighbors differ between two artifacts or precisions, with gates."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from model.artifact.console import EX_DATAERR, EX_NEGATIVE
from model.artifact.files import Artifact
from model.artifact.manifest import Manifest
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
from service.engine.schema.model import ModelInfo

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


@dataclass(frozen=True)
class Line:
    """A line of a file with its cosine or overlap."""

    number: int
    value: float
    text: str


@dataclass(frozen=True)
class CosineFigures:
    """Distribution of the cosine between each text's old and new vectors."""

    min: float
    p1: float
    p5: float
    median: float
    mean: float


@dataclass(frozen=True)
class RankFigures:
    """Changes in the `top_k` neighbors; `mean_overlap` and `changed_first` are in 0..1."""

    top_k: int
    mean_overlap: float
    changed_first: float
    spearman: float | None
    pairs: int


@dataclass(frozen=True)
class Gate:
    """A threshold from the command line and the measured value."""

    option: str
    threshold: float
    measured: float

    @property
    def passed(self) -> bool:
        return self.measured >= self.threshold


@dataclass(frozen=True)
class Comparison:
    """Two models on the same texts. `cosines` is None if their dimensions differ."""

    old: Encoded
    new: Encoded
    texts: TextFile
    queries: TextFile | None
    cosines: CosineFigures | None
    ranks: RankFigures
    lowest_cosines: tuple[Line, ...]
    lowest_overlaps: tuple[Line, ...]
    """Lines of the queries, or of the texts if there are no queries."""

    @classmethod
    def of(cls, old: Encoded, new: Encoded, texts: TextFile, queries: TextFile | None, top_k: int) -> "Comparison":
        cosines: CosineFigures | None = None
        lowest: tuple[Line, ...] = ()
        if old.info.dimensions == new.info.dimensions:
            values = row_cosines(old.vectors.texts, new.vectors.texts)
            low, p1, p5, median = np.percentile(values, (0, 1, 5, 50)).tolist()
            cosines = CosineFigures(low, p1, p5, median, float(values.mean(dtype=np.float64)))
            lowest = _lowest(texts, values)
        neighbors = [top_neighbors(model.vectors, top_k) for model in (old, new)]
        shares = overlaps(*neighbors)
        pairs = sample_pairs(None if queries is None else len(queries.lines), len(texts.lines))
        correlation = spearman(*(pair_similarities(model.vectors, pairs) for model in (old, new)))
        changed = float(np.mean(neighbors[0][:, 0] != neighbors[1][:, 0]))
        ranks = RankFigures(top_k, float(shares.mean()), changed, correlation, len(pairs[0]))
        return cls(old, new, texts, queries, cosines, ranks, lowest, _lowest(queries or texts, shares))

    def to_json(self, gates: list[Gate], *, show_texts: bool) -> dict[str, Any]:
        """Return the result as JSON."""

        def listed(lines: tuple[Line, ...]) -> list[dict[str, Any]]:
            return [
                {"line": line.number, "value": line.value} | ({"text": line.text} if show_texts else {})
                for line in lines
            ]

        return {
            "old": model_record(self.old.info, self.old.truncated),
            "new": model_record(self.new.info, self.new.truncated),
            "texts": self.texts.to_json(),
            "queries": None if self.queries is None else self.queries.to_json(),
            "cosine": self.cosines,
            "ranks": self.ranks,
            "lowest_cosines": listed(self.lowest_cosines),
            "lowest_overlaps": listed(self.lowest_overlaps),
            "gates": [{**vars(gate), "passed": gate.passed} for gate in gates],
            "passed": all(gate.passed for gate in gates),
        }

    def to_lines(self, gates: list[Gate], *, show_texts: bool) -> Iterator[str]:
        for label, model in (("old", self.old), ("new", self.new)):
            yield f"{label:<10} {describe_model(model.info)}"
        for label, file in (("texts", self.texts), ("queries", self.queries)):
            if file is not None:
                rest = "" if file.is_complete else "; the file has more, see --limit"
                yield f"{label:<10} {len(file.lines):,} distinct of {file.lines_read:,} lines{rest}"
        for label, model in (("old", self.old), ("new", self.new)):
            if model.truncated:
                yield f"truncated  {label}: {model.truncated:,} lines to {model.info.max_input_tokens} tokens"
        if self.cosines is None:
            sizes = f"{self.old.info.dimensions} and {self.new.info.dimensions}"
            yield f"cosine     not defined, because the dimensions differ ({sizes})"
        else:
            figures = self.cosines
            yield (
                f"cosine     min {figures.min:.6f}, p1 {figures.p1:.6f}, p5 {figures.p5:.6f}, "
                f"median {figures.median:.6f}, mean {figures.mean:.6f}"
            )
        yield from self._rank_lines()
        for label, lines in (("lowest cosine", self.lowest_cosines), ("lowest overlap", self.lowest_overlaps)):
            yield from _line_list(label, lines, show_texts=show_texts)
        for gate in gates:
            verdict = "reached" if gate.passed else "MISSED"
            yield f"gate       {gate.option} {gate.threshold:g}: {verdict} ({gate.measured:.6f})"

    def _rank_lines(self) -> Iterator[str]:
        ranks, subject = self.ranks, "texts" if self.queries is None else "queries"
        yield f"overlap    {ranks.mean_overlap:.4f} of the first {ranks.top_k} neighbors, mean of all {subject}"
        yield f"first      {100 * ranks.changed_first:.2f}% of the {subject} have another first neighbor"
        value = "not defined, because all similarities are equal" if ranks.spearman is None else f"{ranks.spearman:.6f}"
        yield f"Spearman   {value} ({ranks.pairs:,} pairs)"


def _lowest(file: TextFile, values: NDArray[np.float64]) -> tuple[Line, ...]:
    """Return the lines with the lowest values below 1 in ascending order, ties in file order."""
    order = np.argsort(values, kind="stable")[:LISTED]
    return tuple(
        Line(file.lines[index][0], float(values[index]), file.lines[index][1]) for index in order if values[index] < 1
    )


def _line_list(label: str, lines: tuple[Line, ...], *, show_texts: bool) -> Iterator[str]:
    if not lines:
        return
    if show_texts:
        yield f"{label}:"
        yield from (f"  line {line.number}: {line.value:.6f} {line.text}" for line in lines)
    else:
        yield f"{label}: " + ", ".join(f"line {line.number} ({line.value:.6g})" for line in lines)


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
        problem = f"threshold missed ({gate.measured:.6f}, limit {gate.threshold:g})"
        print(f"attendant compare: {gate.option}: {problem}.", file=sys.stderr)
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
        parser.error(f"--top-k: too many for the texts ({top_k}, limit {candidates - 1}). Reduce it or add texts")


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
