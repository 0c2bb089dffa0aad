"""Compare: the similarity of a word's occurrences in several texts, per layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from attendant_client.types import (
    MAX_OCCURRENCES,
    MIN_OCCURRENCES,
    CompareRequest,
    CompareResponse,
    Contributor,
    Floats,
    Input,
    LayerSimilarity,
    Limits,
    Occurrence,
    OccurrenceResult,
    Usage,
)
from numpy.typing import NDArray

from model.artifact.files import MappedTensor
from model.artifact.manifest import Manifest
from model.artifact.tokenizer import TokenizedInput
from service.engine.engine import Engine
from service.engine.tasks import ModelParts
from service.errors import InvalidArgument, OutOfRange, TooFew, TooMany, UnsupportedByModel, missing_or_conflicting
from service.operations.inputs import (
    JSON_VALUE_BYTES,
    OUTPUT,
    PAIR,
    RESULT_BYTES,
    SPLIT,
    Call,
    check_length,
    check_span,
    check_text,
    count_characters,
    describe_cost,
    estimate_tokens,
    listed_bytes,
    require,
    resolve_layers,
    tokenizer_inputs,
)
from service.operations.maps import AttentionMapSpec, check_explain_size, token_maps
from service.operations.units import Units, overlapping_tokens, word_units, words_of
from service.spelling import Remedy, use_range

SHARE_DECIMALS = 6
"""Number of decimals in shares; further digits are float32 rounding error."""


async def compare(engine: Engine, request: CompareRequest, call: Call) -> CompareResponse:
    """Return cosine similarities between occurrences of a word in several texts, per layer."""
    deadline = call.start(engine)
    layers, lane = check_compare(request, engine.limits, engine.manifest), engine.explain
    inputs = [Input(text) for text in dict.fromkeys(item.text for item in request.occurrences)]
    sizes = estimate_tokens(count_characters(inputs), engine.manifest.max_input_tokens)
    cost = compare_cost(request, inputs, len(layers))
    with lane.admit(sizes, deadline, cost) as admitted:
        tasks = await engine.run(cost, deadline, prepare, engine, request, call, inputs, len(layers))
        usage = admitted.tokenized([task.tokens for task in tasks])
        vectors = await admitted.run(tasks)
    assert engine.static is not None
    occurrences, static, similarities = await engine.run(
        cost, deadline, compare_occurrences, tasks, vectors, layers, engine.static
    )
    call.timing = admitted.finish()
    # Texts are never truncated.
    return CompareResponse(engine.name, lane.precision, occurrences, static, similarities, Usage(usage.tokens))


def check_compare(request: CompareRequest, limits: Limits, manifest: Manifest) -> tuple[int, ...]:
    """Check occurrences, layers and top_contributors; return the layers, 0..L."""
    for part in (manifest.explain, manifest.static):
        require(part, "Comparisons of words are not supported for this model")
    count = len(request.occurrences)
    if not MIN_OCCURRENCES <= count <= MAX_OCCURRENCES:
        kind, problem = (TooFew, "too few items") if count < MIN_OCCURRENCES else (TooMany, "too many items")
        raise kind(
            problem, f"Send {MIN_OCCURRENCES} to {MAX_OCCURRENCES}.",
            field="occurrences", actual=count, minimum=MIN_OCCURRENCES, maximum=MAX_OCCURRENCES,
        )  # fmt: skip
    for index, occurrence in enumerate(request.occurrences):
        path = f"occurrences[{index}]"
        check_text(occurrence.text, f"{path}.text", limits.max_input_characters, SPLIT)
        if (occurrence.span is None) == (occurrence.word_index is None):
            raise missing_or_conflicting(("span", "word_index"), occurrence.span is None, path)
        if occurrence.span is not None:
            check_span(occurrence.span, f"{path}.span", len(occurrence.text))
    if request.top_contributors < 0:
        raise OutOfRange(
            "out of range", "Use 0 or more.", field="top_contributors", actual=request.top_contributors, minimum=0
        )
    if request.top_contributors and "projection" not in manifest.attention_kinds:
        raise UnsupportedByModel(
            "not supported for this model (it has no kind projection)", "Set it to 0.", field="top_contributors"
        )
    return resolve_layers(request.layers, manifest)


def compare_cost(request: CompareRequest, inputs: list[Input], layers: int) -> int:
    """Return the cost of preparing a comparison, or of building its results; `inputs` are the distinct texts."""
    count = len(request.occurrences)
    return describe_cost(inputs) + OUTPUT * count + PAIR * layers * count * count


def prepare(
    engine: Engine, request: CompareRequest, call: Call, inputs: list[Input], layer_count: int
) -> "list[CompareTask]":
    """Tokenize the distinct texts and find the occurrences in them; return one task per text."""
    texts, tokenizer = [item.text or "" for item in inputs], engine.tokenizer
    places = {occurrence.text: index for index, occurrence in reversed([*enumerate(request.occurrences)])}
    tokens = {
        text: check_length(item, engine.manifest, None, f"occurrences[{places[text]}].text")
        for text, item in zip(texts, tokenizer.encode_each(tokenizer_inputs(inputs)), strict=True)
    }
    occurrences: dict[str, dict[int, OccurrenceTokens]] = {text: {} for text in texts}
    for index, occurrence in enumerate(request.occurrences):
        text = occurrence.text
        occurrences[text][index] = find_occurrence(occurrence, tokens[text], f"occurrences[{index}]")
    tasks = [
        CompareTask(
            tokens[text],
            word_units(tokens[text], tokenizer.token_texts(tokens[text])),
            occurrences[text],
            request.top_contributors,
        )
        for text in texts
    ]
    sizes = [len(task.tokens) for task in tasks]
    check_explain_size(engine, sizes, maps=request.top_contributors > 0, path="occurrences")
    size = comparison_bytes(tasks, layer_count, request, call)
    remedy = Remedy("Send fewer occurrences or request fewer layers")
    engine.check_response_size(size, len(request.occurrences), lambda: remedy)
    return tasks


@dataclass(frozen=True, slots=True)
class OccurrenceTokens:
    """The characters [start, end) and tokens [first, last) of an occurrence."""

    text: str
    start: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class OccurrenceVectors:
    """The results of one text: `token_sum` (L+1, D) over its T tokens, and vectors and contributors per occurrence.

    An occurrence's vectors are (L+1, D).
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
                "out of range", use_range(0, limit),
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

    tokens: TokenizedInput
    units: Units
    """The words of the text."""
    occurrences: Mapping[int, OccurrenceTokens]
    top_contributors: int

    def compute(self, hidden: Floats, model: ModelParts) -> OccurrenceVectors:
        """Return the vectors and contributors of the occurrences; `hidden` is (L+1, T, D)."""
        occurrences = self.occurrences.values()
        vectors = [hidden[:, item.first : item.last].mean(axis=1, dtype=np.float64) for item in occurrences]
        contributors: list[list[Contributor]] = [[] for _ in occurrences]
        if self.top_contributors:
            spec = AttentionMapSpec("projection", (len(model.layers),), (), "none", "rollout")
            (maps,) = token_maps(hidden, model.layers, spec)
            contributors = [_contributors(self, item, maps.values[0]) for item in occurrences]
        return OccurrenceVectors(hidden.sum(axis=1, dtype=np.float64), vectors, contributors)


def _contributors(task: CompareTask, occurrence: OccurrenceTokens, rollout: Floats) -> list[Contributor]:
    """Return the other words with the largest nonzero shares of the total contribution of other words."""
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
) -> tuple[list[OccurrenceResult], Floats, list[LayerSimilarity]]:
    """Return the N occurrences in request order, their static similarity, and their similarity per layer.

    Each layer gets two similarities: the cosine, and the cosine after subtracting the mean over all tokens of the texts
    (each text counts once). `table` is the embedding table (V, E).
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
        LayerSimilarity(
            layer,
            cosines(vectors[layer]).astype(np.float32),
            cosines(vectors[layer] - means[layer]).astype(np.float32),
        )
        for layer in layers
    ]
    return (
        [occurrences[index][1] for index in order],
        static_similarity([occurrences[index][0] for index in order], table),
        similarities,
    )


def comparison_bytes(tasks: Sequence[CompareTask], layer_count: int, request: CompareRequest, call: Call) -> int:
    """Return an upper bound on the size of the response."""
    count = len(request.occurrences)
    value = 4 if call.wire == "binary" else JSON_VALUE_BYTES["float32"]
    listed = 0
    for task in tasks:
        units = sorted(task.units.units, key=lambda unit: -len(unit.text))
        occurrences = list(task.occurrences.values())
        contributors = listed_bytes(units[: request.top_contributors], call.wire)
        listed += len(occurrences) * contributors + listed_bytes(occurrences, call.wire)
    return RESULT_BYTES + count * count * value * (2 * layer_count + 1) + listed


def static_similarity(ids: Sequence[Sequence[int]], table: MappedTensor) -> Floats:
    """Return the cosines of N occurrences, each represented by the mean of its tokens' embedding table rows.

    Cosines are exactly 1 for equal token ids.
    """
    similarity = cosines(np.stack([table[list(row)].mean(axis=0, dtype=np.float64) for row in ids]))
    equal = np.array([[list(one) == list(other) for other in ids] for one in ids])
    similarity[equal] = 1
    return similarity.astype(np.float32)


def cosines(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Return the cosines (N, N) of N vectors (N, D): exactly 1 on the diagonal, 0 for zero vectors."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, 1)
    similarity: NDArray[np.float64] = np.clip(unit @ unit.T, -1, 1)
    np.fill_diagonal(similarity, 1)
    return similarity
