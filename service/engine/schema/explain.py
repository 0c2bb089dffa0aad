"""What the doors ask about attention and words in context, and what they get back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from model.artifact import Kind
from model.tokenizer import Offsets
from service.engine.schema.encode import Array, Input, MapDType, Timing, Truncation, Wire

HeadReduce = Literal["none", "mean", "max", "sum"]
MapLayerReduce = Literal["none", "mean", "rollout"]
UnitKind = Literal["token", "word", "spans"]
SpecialTokens = Literal["keep", "drop", "renormalize"]
Segments = Literal["all", "a_to_a", "a_to_b", "b_to_a", "b_to_b"]

DRAWS_ON = 5
"""How many words are named that an occurrence draws on, unless the caller says."""


@dataclass(frozen=True, slots=True)
class AttendRequest:
    """As API.md, attend. None means all `layers` (1..L) or `heads` (0..H-1); the rest as in `EncodeRequest`."""

    inputs: tuple[Input, ...]
    model: str | None = None
    kind: Kind = "probs"
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    head_reduce: HeadReduce = "none"
    layer_reduce: MapLayerReduce = "none"
    unit: UnitKind = "token"
    special: SpecialTokens = "keep"
    segments: Segments = "all"
    top_p: float | None = None
    top_k: int | None = None
    decimals: int | None = None
    truncation: Truncation = "error"
    dtype: MapDType = "float32"
    wire: Wire = "json"
    deadline: float | None = None
    field: str = "inputs"
    too_long_hint: str = 'Shorten it or set truncation to "right".'

    @property
    def sparse(self) -> bool:
        return self.top_p is not None or self.top_k is not None


@dataclass(frozen=True, slots=True)
class AttentionMapSpec:
    """Which maps: `layers` are 1..L in the order asked for, `heads` 0..H-1."""

    kind: Kind
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    head_reduce: HeadReduce
    layer_reduce: MapLayerReduce

    @property
    def by_head(self) -> bool:
        """Whether each head has a map of its own."""
        per_head = self.kind in ("probs", "scores", "norm") and self.layer_reduce != "rollout"
        return per_head and self.head_reduce == "none"

    @property
    def count(self) -> int:
        """How many maps there are in all."""
        layers = len(self.layers) if self.layer_reduce == "none" else 1
        return layers * (len(self.heads) if self.by_head else 1)

    @property
    def signed(self) -> bool:
        """Whether values may be below 0."""
        return self.kind == "scores" or (self.kind == "projection" and self.layer_reduce != "rollout")

    @property
    def has_bias_share(self) -> bool:
        return self.kind == "projection" and self.layer_reduce != "rollout"

    def at_most_one(self, special: SpecialTokens) -> bool:
        """Whether every value lies between 0 and 1."""
        shares = self.kind == "probs" or self.layer_reduce == "rollout" or special == "renormalize"
        return shares and not self.signed


@dataclass(frozen=True, slots=True)
class Unit:
    """What a row or column of a map is of: a token, a word or a span."""

    text: str
    start: int
    end: int
    segment: int
    special: bool


@dataclass(frozen=True, slots=True)
class SparseMatrix:
    """The largest values of each row, largest first: row r has `row_starts[r]` to `row_starts[r + 1]` of both lists.

    `indices` are into the units; `rest_mass` is, for each row, the sum of what was left out.
    """

    row_starts: list[int]
    indices: list[int]
    values: Array
    rest_mass: Array


@dataclass(frozen=True, slots=True)
class AttentionMap:
    """One map over units: R rows, C columns. Exactly one of `matrix` and `sparse` is there.

    `excluded_mass` is what each row takes from what is no column; None for scores, which are no shares of anything.
    """

    layer: int | None
    head: int | None
    matrix: Array | None
    sparse: SparseMatrix | None
    excluded_mass: Array | None
    bias_share: Array | None
    no_mass_rows: list[int]


@dataclass(frozen=True, slots=True)
class AttendResult:
    """`rows` and `columns` say which units the rows and columns of the maps are."""

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
    timing: Timing


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One use of a word: a text, and either a range of its characters or the index of one of its words."""

    text: str
    span: Offsets | None = None
    word: int | None = None


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """As API.md, compare. None means all `layers`, 0..L; negative ones count from the end."""

    occurrences: tuple[Occurrence, ...]
    model: str | None = None
    layers: tuple[int, ...] | None = None
    draws_on: int = DRAWS_ON
    wire: Wire = "json"
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A word that an occurrence draws on, and its share among all the other words of the text."""

    text: str
    start: int
    end: int
    share: float


@dataclass(frozen=True, slots=True)
class ComparedOccurrence:
    text: str
    start: int
    end: int
    draws_on: Sequence[Source]


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
    occurrences: list[ComparedOccurrence]
    static: Array
    layers: list[LayerSimilarity]
    timing: Timing
