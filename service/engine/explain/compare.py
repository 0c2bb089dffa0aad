"""Comparison of the occurrences of a word in several texts, per layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from model.artifact.files import MappedTensor
from model.artifact.tokenizer import TokenizedInput
from service.engine.encode.alignment import overlapping_tokens, words_of
from service.engine.encode.pooling import Floats
from service.engine.encode.sizes import JSON_VALUE_BYTES, RESULT_BYTES, listed_bytes
from service.engine.explain.maps import Layer, token_maps
from service.engine.explain.units import Units
from service.engine.schema.encode import Array
from service.engine.schema.explain import (
    AttentionMapSpec,
    CompareRequest,
    Contributor,
    LayerSimilarity,
    Occurrence,
    OccurrenceResult,
)
from service.engine.schema.tasks import ExplainOperation
from service.errors import InvalidArgument, OutOfRange

SHARE_DECIMALS = 6
"""Further digits are float32 rounding error."""


@dataclass(frozen=True, slots=True)
class OccurrenceTokens:
    """The characters [start, end) and the tokens [first, last) of an occurrence."""

    text: str
    start: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class OccurrenceVectors:
    """The results of one text: `token_sum` (L+1, D) over its T tokens, and per occurrence vectors and contributors.

    The vectors of an occurrence are (L+1, D).
    """

    token_sum: NDArray[np.float64]
    vectors: list[NDArray[np.float64]]
    contributors: list[list[Contributor]]


def find_occurrence(occurrence: Occurrence, tokens: TokenizedInput, path: str) -> OccurrenceTokens:
    """Return the tokens of an occurrence; raises `InvalidArgument` for an unknown word or a range without tokens."""
    if occurrence.span is None:
        words = words_of(tokens)
        index = occurrence.word_index
        assert index is not None
        if not 0 <= index < len(words):
            limit = len(words) - 1
            raise OutOfRange(
                "out of range", f"Use 0 to {limit}.",
                field=f"{path}.word_index", actual=index, minimum=0, maximum=limit,
            )  # fmt: skip
        span = words[index].start, words[index].end
    else:
        span = occurrence.span
    first, last = overlapping_tokens(tokens, [(0, span)])[0].tolist()
    if first == last:
        field = f"{path}.word_index" if occurrence.span is None else f"{path}.span"
        raise InvalidArgument("contains no token", "Select another part of the text.", field=field, reason="SPAN_EMPTY")
    return OccurrenceTokens(occurrence.text[span[0] : span[1]], *span, first, last)


@dataclass(frozen=True, slots=True)
class CompareTask:
    """One text of a comparison, and its occurrences by their index in the request."""

    operation: ClassVar[ExplainOperation] = "occurrences"

    tokens: TokenizedInput
    units: Units
    """The words of the text."""
    occurrences: Mapping[int, OccurrenceTokens]
    top_contributors: int


def occurrence_vectors(task: CompareTask, hidden: Floats, layers: Sequence[Layer]) -> OccurrenceVectors:
    """Return the vectors and contributors of the occurrences in a text; `hidden` is (L+1, T, D)."""
    occurrences = task.occurrences.values()
    vectors = [hidden[:, item.first : item.last].mean(axis=1, dtype=np.float64) for item in occurrences]
    contributors: list[list[Contributor]] = [[] for _ in occurrences]
    if task.top_contributors:
        spec = AttentionMapSpec("projection", (len(layers),), (), "none", "rollout")
        (maps,) = token_maps(hidden, layers, spec)
        contributors = [_contributors(task, item, maps.values[0]) for item in occurrences]
    return OccurrenceVectors(hidden.sum(axis=1, dtype=np.float64), vectors, contributors)


def _contributors(task: CompareTask, occurrence: OccurrenceTokens, rollout: Floats) -> list[Contributor]:
    """Return the other words with the largest shares of the contributions of all other words, without zeros."""
    units = task.units
    row: NDArray[np.float64] = rollout[occurrence.first : occurrence.last].mean(axis=0, dtype=np.float64)
    contributions: list[float] = (units.membership @ row).tolist()
    own: list[bool] = np.any(units.membership[:, occurrence.first : occurrence.last], axis=1).tolist()
    others = [  # in a causal model, later words contribute 0
        index for index, unit in enumerate(units.units) if contributions[index] and not (unit.special or own[index])
    ]
    total = sum(contributions[index] for index in others)
    largest = sorted(others, key=lambda index: -contributions[index])[: task.top_contributors]
    return [
        Contributor(unit.text, unit.start, unit.end, round(contributions[index] / total, SHARE_DECIMALS))
        for index in largest
        for unit in (units.units[index],)
    ]


def compare_occurrences(
    tasks: Sequence[CompareTask], results: Sequence[OccurrenceVectors], layers: Sequence[int], table: MappedTensor
) -> tuple[list[OccurrenceResult], Array, list[LayerSimilarity]]:
    """Return the N occurrences in request order, their static similarity, and their similarity in each layer.

    The similarity in a layer is the cosine, and the cosine after subtracting the mean of all tokens of the texts (each
    text counts once). `table` is the embedding table (V, E).
    """
    order = np.argsort([index for task in tasks for index in task.occurrences])
    occurrences = [
        (task.tokens.input_ids[item.first : item.last], OccurrenceResult(item.text, item.start, item.end, contributors))
        for task, result in zip(tasks, results, strict=True)
        for item, contributors in zip(task.occurrences.values(), result.contributors, strict=True)
    ]
    vectors = np.stack(list(chain.from_iterable(item.vectors for item in results)), axis=1)[:, order]  # (L+1, N, D)
    token_count = sum(len(task.tokens) for task in tasks)
    means = np.sum([result.token_sum for result in results], axis=0) / token_count  # (L+1, D)
    similarities = [
        LayerSimilarity(layer, _array(cosines(vectors[layer])), _array(cosines(vectors[layer] - means[layer])))
        for layer in layers
    ]
    return (
        [occurrences[index][1] for index in order],
        static_similarity([occurrences[index][0] for index in order], table),
        similarities,
    )


def comparison_bytes(tasks: Sequence[CompareTask], layer_count: int, request: CompareRequest) -> int:
    """Return an upper bound on the size of the response."""
    count = len(request.occurrences)
    value = 4 if request.wire == "binary" else JSON_VALUE_BYTES["float32"]
    listed = 0
    for task in tasks:
        units = sorted(task.units.units, key=lambda unit: -len(unit.text))
        occurrences = list(task.occurrences.values())
        contributors = listed_bytes(units[: request.top_contributors], request.wire)
        listed += len(occurrences) * contributors + listed_bytes(occurrences, request.wire)
    return RESULT_BYTES + count * count * value * (2 * layer_count + 1) + listed


def static_similarity(ids: Sequence[Sequence[int]], table: MappedTensor) -> Array:
    """Return cosines of N occurrences, each the mean of its tokens' rows of the embedding table.

    Cosines are exactly 1 for equal token ids.
    """
    similarity = cosines(np.stack([table[list(row)].mean(axis=0, dtype=np.float64) for row in ids]))
    equal = np.array([[list(one) == list(other) for other in ids] for one in ids])
    similarity[equal] = 1
    return _array(similarity)


def cosines(vectors: Floats) -> NDArray[np.float64]:
    """Return the cosines (N, N) of N vectors (N, D): exactly 1 on the diagonal, 0 for zero vectors."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, 1)
    similarity: NDArray[np.float64] = np.clip(unit @ unit.T, -1, 1)
    np.fill_diagonal(similarity, 1)
    return similarity


def _array(values: NDArray[np.float64]) -> Array:
    return Array(values.astype(np.float32), "float32")
