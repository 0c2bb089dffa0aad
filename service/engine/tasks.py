"""Lane tasks (sequences and requested results), and the vectors that a backend returns."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, overload

import numpy as np
from attendant_client.types import Role
from numpy.typing import NDArray

from model.artifact.manifest import CombinedPooling
from model.artifact.tokenizer import TokenizedInput

if TYPE_CHECKING:
    from service.engine.layers import Layer

Floats = NDArray[Any]
ObjectT = TypeVar("ObjectT")
TupleT = TypeVar("TupleT", bound=tuple[Any, ...])
HeadName = Literal["classification", "token_classification", "masked_lm", "sparse", "multi_vector"]
"""The heads whose results a backend computes with each batch."""


# Columns of tasks and inputs are read with `map`, without a Python call per task.
tokens_of, pooling_of, pool_from_of = attrgetter("tokens"), attrgetter("pooling"), attrgetter("pool_from")
hidden_of, heads_of = attrgetter("hidden"), attrgetter("heads")
ids_of, has_types_of, unattended_of = attrgetter("input_ids"), attrgetter("has_types"), attrgetter("unattended")
truncated_of = attrgetter("truncated")


def make_objects(kind: type[ObjectT], *columns: Sequence[Any]) -> list[ObjectT]:
    """Return frozen dataclass objects with slots, given the values of each field, without a Python call per object."""
    objects = [*map(kind.__new__, repeat(kind, len(columns[0])))]
    for name, values in zip(kind.__slots__, columns, strict=True):  # type: ignore[attr-defined]  # made by dataclass
        deque(map(getattr(kind, name).__set__, objects, values), maxlen=0)
    return objects


def make_tuples(kind: type[TupleT], *columns: Iterable[Any]) -> list[TupleT]:
    """Return named tuples with these fields, as many as the shortest column, without a Python call per tuple."""
    return [*map(partial(tuple.__new__, kind), zip(*columns, strict=False))]


class ModelInput(Protocol):
    """One sequence as the model reads it."""

    @property
    def input_ids(self) -> list[int]: ...
    @property
    def token_type_ids(self) -> list[int]: ...
    @property
    def has_types(self) -> bool:
        """False if all `token_type_ids` are known to be 0."""

    @property
    def unattended(self) -> int:
        """The number of final tokens that no token attends to."""

    @property
    def skipped_ids(self) -> tuple[int, ...]:
        """The ids of tokens that get no vector from a multi-vector head."""

    @property
    def side(self) -> Role | None:
        """Whether the text is a query or a document, for a model that distinguishes them."""

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class OccludedSequence:
    """The token ids of an input with one unit removed. Fields are as in `ModelInput`."""

    input_ids: list[int]
    token_type_ids: list[int]
    unattended: int = 0
    skipped_ids: tuple[int, ...] = ()
    side: Role | None = None
    has_types: bool = True

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class WordQuery:
    """A query to a masked-LM head: the `count` most likely entries at each position, among `targets` or all entries."""

    positions: tuple[int, ...]
    count: int
    targets: tuple[int, ...] | None


class EncodeTask(NamedTuple):
    """One sequence of the fast lane.

    Attributes:
        tokens: The tokens.
        pooling: The pooling to compute; None if pooled vectors are not requested. The backend pools a whole batch in
            one step.
        hidden: Whether token vectors are needed.
        pool_from: Index of the first token to pool. Earlier tokens (an excluded prompt and [CLS]) are skipped.
        heads: The heads whose results are needed.
        words: The query of the head "masked_lm".
    """

    tokens: ModelInput
    pooling: CombinedPooling | None
    hidden: bool
    pool_from: int = 0
    heads: tuple[HeadName, ...] = ()
    words: WordQuery | None = None


class Predict(Protocol):
    """Predicts the words of a query, given a layer's hidden states (T, D)."""

    def __call__(self, hidden: Floats, query: WordQuery, *, last_layer: bool) -> "PredictedWords": ...


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The parts that explain-lane tasks need besides hidden states: the model's L layers and its masked-LM head."""

    layers: "Sequence[Layer]"
    predict: Predict | None = None


class ExplainTask(Protocol):
    """One tokenized input of the explain lane: plain data, and the computation of its result from hidden states."""

    @property
    def tokens(self) -> TokenizedInput: ...

    def compute(self, hidden: Floats, model: ModelParts) -> Any:
        """Return the result; `hidden` is (L+1, T, D)."""


class TextVectors(NamedTuple):
    """Vectors of one input in N layers, float32: `hidden` (N, T, D) and `pooled` (N, D); None if not requested.

    `logits` (C) come from the classifier, `token_logits` (T, C) from the token classifier, and `multi_vector`
    (K, dimensions) contains one normalized vector per token.
    """

    hidden: NDArray[np.float32] | None
    pooled: NDArray[np.float32] | None
    logits: NDArray[np.float32] | None = None
    token_logits: NDArray[np.float32] | None = None
    sparse: "SparseEntries | None" = None
    multi_vector: NDArray[np.float32] | None = None
    words: "PredictedWords | None" = None


class PooledVectors(Sequence[TextVectors]):
    """The vectors of N inputs with a pooled vector each and nothing else: `rows` (N, D), float32."""

    __slots__ = ("rows",)

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TextVectors]:
        return map(TextVectors, repeat(None), self.rows[:, None])

    @overload
    def __getitem__(self, place: int) -> TextVectors: ...
    @overload
    def __getitem__(self, place: slice) -> "PooledVectors": ...
    def __getitem__(self, place: int | slice) -> "TextVectors | PooledVectors":
        if isinstance(place, slice):
            return PooledVectors(self.rows[place])
        return TextVectors(None, self.rows[place][None])


def gather(parts: Sequence[tuple[Sequence[int], Sequence[Any]]]) -> Sequence[Any]:
    """Return the results of a request in order, given its parts: positions in the request, and results.

    Positions ascend within a part.
    """
    if len(parts) == 1:
        return parts[0][1]
    places = [place for own, _ in parts for place in own]
    if parts and all(isinstance(results, PooledVectors) for _, results in parts):
        rows = np.concatenate([results.rows for _, results in parts])  # type: ignore[attr-defined]
        ordered = np.empty_like(rows)
        ordered[places] = rows
        return PooledVectors(ordered)
    of_places = dict(zip(places, chain.from_iterable(results for _, results in parts), strict=True))
    return [of_places[place] for place in range(len(places))]


@dataclass(frozen=True, slots=True)
class PredictedWords:
    """The K most likely vocabulary entries at P positions: `token_ids` and `probabilities` float32, (P, K) each.

    The most probable is first; ties are ordered by id.
    """

    token_ids: NDArray[np.int64]
    probabilities: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SparseEntries:
    """The vocabulary entries with a positive weight: `token_ids` int32, ascending, and `weights` float32, (N) each."""

    token_ids: NDArray[np.int32]
    weights: NDArray[np.float32]
