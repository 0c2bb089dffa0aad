"""The result of a comparison as JSON and as a table, with thresholds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.commands.lines import TextFile
from service.commands.neighbors import (
    Vectors,
    overlaps,
    pair_similarities,
    row_cosines,
    sample_pairs,
    spearman,
    top_neighbors,
)
from service.engine.schema.model import ModelInfo

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
        yield f"first      {100 * ranks.changed_first:.2f} % of the {subject} have another first neighbor"
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


def describe_model(info: ModelInfo) -> str:
    """Return the model's name, precision, size, similarity and digest on one line."""
    return (
        f"{info.name}, {info.precision} ({info.provider}), {info.dimensions} dimensions, {info.similarity} similarity, "
        f"{info.digest}"
    )


def model_record(info: ModelInfo, truncated: int) -> dict[str, Any]:
    """Return the model as JSON; `truncated` is the number of texts over its token limit."""
    names = ("name", "digest", "precision", "provider", "dimensions", "similarity", "max_input_tokens")
    return {name: getattr(info, name) for name in names} | {"truncated": truncated}
