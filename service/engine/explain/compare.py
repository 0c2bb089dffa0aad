"""What /v1/compare and Compare answer: one word in several texts, layer by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from model.tokenizer import Tokens
from service.engine.encode.alignment import overlapping_tokens, words_of
from service.engine.encode.pooling import Floats
from service.engine.encode.response import JSON_VALUE_BYTES, RESULT_BYTES, listed_bytes
from service.engine.explain.maps import BlockWeights, token_maps
from service.engine.explain.units import Units
from service.engine.schema.encode import Array
from service.engine.schema.explain import (
    AttentionMapSpec,
    ComparedOccurrence,
    CompareRequest,
    LayerSimilarity,
    Occurrence,
    Source,
)
from service.errors import InvalidArgument

SHARE_DECIMALS = 6
"""More would be rounding in float32."""


@dataclass(frozen=True, slots=True)
class OccurrenceTokens:
    """Where an occurrence lies: which characters of its text, and which of the T tokens, `[first, last)`."""

    text: str
    start: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class OccurrenceVectors:
    """What one text gave: `token_sum` `(L+1, D)` over its T tokens, and what each occurrence in it gave.

    Of an occurrence: its vectors `(L+1, D)`, and the words it draws on.
    """

    token_sum: NDArray[np.float64]
    vectors: list[NDArray[np.float64]]
    draws_on: list[list[Source]]


def find_occurrence(occurrence: Occurrence, tokens: Tokens, where: str) -> OccurrenceTokens:
    """Raises `InvalidArgument` for a word that is not there, or a range without a token."""
    if occurrence.span is None:
        words = words_of(tokens)
        number = occurrence.word
        if number is None or not 0 <= number < len(words):
            raise InvalidArgument(
                f"{where}.word must be 0..{len(words) - 1}, the index of one of its text's words.",
                reason="word_out_of_range",
            )
        span = words[number].start, words[number].end
    else:
        span = occurrence.span
    first, last = overlapping_tokens(tokens, [(0, span)])[0].tolist()
    if first == last:
        raise InvalidArgument(
            f"{where} covers no token; name a range or a word that the model reads.", reason="span_empty"
        )
    return OccurrenceTokens(occurrence.text[span[0] : span[1]], *span, first, last)


@dataclass(frozen=True, slots=True)
class CompareTask:
    """One text of a comparison, and the places in it, by the number of their occurrence."""

    tokens: Tokens
    units: Units
    """Its words."""
    places: Mapping[int, OccurrenceTokens]
    draws_on: int
    blocks: Sequence[BlockWeights]

    def __call__(self, hidden: Floats) -> OccurrenceVectors:
        """`hidden` is `(L+1, T, D)`."""
        places = self.places.values()
        vectors = [hidden[:, place.first : place.last].mean(axis=1, dtype=np.float64) for place in places]
        if not self.draws_on:
            draws_on: list[list[Source]] = [[] for _ in places]
        else:
            rolled = self._roll_out(hidden)
            draws_on = [self._sources(place, rolled) for place in places]
        return OccurrenceVectors(hidden.sum(axis=1, dtype=np.float64), vectors, draws_on)

    def _roll_out(self, hidden: Floats) -> Floats:
        plan = AttentionMapSpec(
            "projection", (len(self.blocks),), tuple(range(self.blocks[0].heads)), "none", "rollout"
        )
        (found,) = token_maps(hidden, self.blocks, plan)
        rolled: Floats = found.values[0]
        return rolled

    def _sources(self, place: OccurrenceTokens, rolled: Floats) -> list[Source]:
        """The other words, by their share of what all other words give to the occurrence."""
        units = self.units
        row: NDArray[np.float64] = rolled[place.first : place.last].mean(axis=0, dtype=np.float64)
        to_units: list[float] = (units.members @ row).tolist()
        inside = units.members[:, place.first : place.last]
        own: list[bool] = np.any(inside, axis=1).tolist()
        others = [index for index, unit in enumerate(units.units) if not (unit.special or own[index])]
        whole = sum(to_units[index] for index in others) or 1.0
        largest = sorted(others, key=lambda index: -to_units[index])[: self.draws_on]
        return [
            Source(unit.text, unit.start, unit.end, round(to_units[index] / whole, SHARE_DECIMALS))
            for index in largest
            for unit in (units.units[index],)
        ]


def compare(
    works: Sequence[CompareTask], seen: Sequence[OccurrenceVectors], layers: Sequence[int], table: Floats
) -> tuple[list[ComparedOccurrence], Array, list[LayerSimilarity]]:
    """The N occurrences in the order asked for, their static similarity, and that in each of the layers.

    Plain cosines, and those after the mean over all tokens of the request's texts (each text once) is removed.
    `table` is the embedding table `(V, E)`.
    """
    pairs = list(zip(works, seen, strict=True))
    order = np.argsort([number for work in works for number in work.places])
    each = [
        (work.tokens.ids[place.first : place.last], ComparedOccurrence(place.text, place.start, place.end, sources))
        for work, found in pairs
        for place, sources in zip(work.places.values(), found.draws_on, strict=True)
    ]
    vectors = np.stack(list(chain.from_iterable(found.vectors for found in seen)), axis=1)[:, order]  # (L+1, N, D)
    token_count = sum(len(work.tokens) for work in works)
    means = np.sum([found.token_sum for found in seen], axis=0) / token_count  # (L+1, D)
    similarities = [
        LayerSimilarity(layer, _array(cosines(vectors[layer])), _array(cosines(vectors[layer] - means[layer])))
        for layer in layers
    ]
    return (
        [each[index][1] for index in order],
        static_similarity([each[index][0] for index in order], table),
        similarities,
    )


def comparison_bytes(works: Sequence[CompareTask], layer_count: int, request: CompareRequest) -> int:
    """An upper bound of how large the answer will be."""
    count = len(request.occurrences)
    value = 4 if request.wire == "binary" else JSON_VALUE_BYTES["float32"]
    listed = 0
    for work in works:
        units = sorted(work.units.units, key=lambda unit: -len(unit.text))
        places = list(work.places.values())
        listed += len(places) * (listed_bytes(units[: request.draws_on], request.wire)) + listed_bytes(
            places, request.wire
        )
    return RESULT_BYTES + count * count * value * (2 * layer_count + 1) + listed


def static_similarity(ids: Sequence[Sequence[int]], table: Floats) -> Array:
    """Cosines of N occurrences by the embedding table alone, each the mean of its tokens' rows."""
    vectors = np.stack([np.asarray(table[list(each)]).mean(axis=0, dtype=np.float64) for each in ids])
    found = cosines(vectors)
    same = np.array([[list(one) == list(other) for other in ids] for one in ids])
    found[same] = 1
    return _array(found)


def cosines(vectors: Floats) -> NDArray[np.float64]:
    """`(N, D)` to `(N, N)`, exactly 1 on the diagonal; 0 for a vector of zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1)
    found: NDArray[np.float64] = np.clip(unit @ unit.T, -1, 1)
    np.fill_diagonal(found, 1)
    return found


def _array(values: NDArray[np.float64]) -> Array:
    return Array(values.astype(np.float32), "float32")
