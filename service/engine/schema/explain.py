"""Requests and responses of attend and compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from model.artifact.manifest import Kind
from model.artifact.tokenizer import Offsets
from service.engine.schema.encode import Array, Input, MapDType, Timing, Truncation, Wire

HeadReduce = Literal["none", "mean", "max", "sum"]
MapLayerReduce = Literal["none", "mean", "rollout"]
UnitKind = Literal["token", "word", "span"]
SpecialTokens = Literal["keep", "drop", "renormalize"]
Segments = Literal["all", "a_to_a", "a_to_b", "b_to_a", "b_to_b"]

TOP_CONTRIBUTORS = 5
"""Default number of contributors per occurrence."""


@dataclass(frozen=True, slots=True)
class AttendRequest:
    """An attend request; `layers` 1..L or -L..-1, `heads` 0..H-1, None for all. Other fields as in `EncodeRequest`."""

    inputs: tuple[Input, ...]
    kind: Kind = "probs"
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    head_reduce: HeadReduce = "none"
    layer_reduce: MapLayerReduce = "none"
    unit: UnitKind = "token"
    special_tokens: SpecialTokens = "keep"
    segments: Segments = "all"
    top_p: float | None = None
    top_k: int | None = None
    decimals: int | None = None
    truncation: Truncation = "error"
    dtype: MapDType = "float32"
    wire: Wire = "json"
    deadline: float | None = None
    padded: bool = False

    @property
    def sparse(self) -> bool:
        return self.top_p is not None or self.top_k is not None


@dataclass(frozen=True, slots=True)
class AttentionMapSpec:
    """The maps to compute: `layers` 1..L in the order of the request, `heads` 0..H-1."""

    kind: Kind
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    head_reduce: HeadReduce
    layer_reduce: MapLayerReduce

    @property
    def by_head(self) -> bool:
        """True if each head has its own map."""
        per_head = self.kind in ("probs", "scores", "norm") and self.layer_reduce != "rollout"
        return per_head and self.head_reduce == "none"

    @property
    def count(self) -> int:
        """Number of maps."""
        layers = len(self.layers) if self.layer_reduce == "none" else 1
        return layers * (len(self.heads) if self.by_head else 1)

    @property
    def signed(self) -> bool:
        """True if values may be negative."""
        return self.kind == "scores" or (self.kind == "projection" and self.layer_reduce != "rollout")

    @property
    def has_bias_share(self) -> bool:
        return self.kind == "projection" and self.layer_reduce != "rollout"

    def at_most_one(self, special_tokens: SpecialTokens) -> bool:
        """Return whether every value is between 0 and 1."""
        shares = self.kind == "probs" or self.layer_reduce == "rollout" or special_tokens == "renormalize"
        return shares and not self.signed


@dataclass(frozen=True, slots=True)
class Unit:
    """A token, word or span that a row or column of a map stands for.

    `word_index` is a word's index among all words of its input. A word without tokens has an index but no unit.
    """

    text: str
    start: int
    end: int
    segment: int
    special: bool
    word_index: int | None = None


@dataclass(frozen=True, slots=True)
class SparseMatrix:
    """The largest values of each row in CSR format, in descending order.

    `indices` refer to the units; `dropped_mass` is the sum of each row's dropped values.
    """

    indptr: list[int]
    indices: list[int]
    values: Array
    dropped_mass: Array


@dataclass(frozen=True, slots=True)
class AttentionMap:
    """One map over units: R rows, C columns. Exactly one of `matrix` and `sparse` is set.

    `excluded_mass` is the sum of each row over units that are not columns; None for scores, whose rows have no sum.
    """

    layer: int | None
    head: int | None
    matrix: Array | None
    sparse: SparseMatrix | None
    excluded_mass: Array | None
    bias_share: Array | None
    empty_rows: list[int]


@dataclass(frozen=True, slots=True)
class AttendResult:
    """The maps of one input; `rows` and `columns` are the indices of their units."""

    truncated: bool
    units: list[Unit]
    rows: list[int]
    columns: list[int]
    maps: list[AttentionMap]


@dataclass(frozen=True, slots=True)
class AttendResponse:
    model: str
    precision: str
    results: list[AttendResult]
    token_count: int
    truncated_inputs: int
    timing: Timing


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A text, and either a range of its characters or the index of one of its words."""

    text: str
    span: Offsets | None = None
    word_index: int | None = None


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """A compare request; `layers` 0..L or -L-1..-1, None for all. Other fields as in `EncodeRequest`."""

    occurrences: tuple[Occurrence, ...]
    layers: tuple[int, ...] | None = None
    top_contributors: int = TOP_CONTRIBUTORS
    wire: Wire = "json"
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Contributor:
    """A word that contributes to an occurrence, and its share of the contributions of all other words of the text."""

    text: str
    start: int
    end: int
    share: float


@dataclass(frozen=True, slots=True)
class OccurrenceResult:
    text: str
    start: int
    end: int
    contributors: Sequence[Contributor]


@dataclass(frozen=True, slots=True)
class LayerSimilarity:
    """Cosines between N occurrences, `(N, N)`; `centered` after the mean over all tokens of the layer is removed."""

    layer: int
    cosine: Array
    centered: Array


@dataclass(frozen=True, slots=True)
class CompareResponse:
    model: str
    precision: str
    occurrences: list[OccurrenceResult]
    static: Array
    layers: list[LayerSimilarity]
    token_count: int
    timing: Timing
