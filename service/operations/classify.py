"""Classify: the labels of inputs, and what each word contributes to their scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from attendant_client.types import ClassifyRequest, ClassifyResponse, ClassifyResult, Label, shortest
from numpy.typing import NDArray

from model.artifact.manifest import ClassificationHead, ScoreActivation
from service.engine.engine import Engine
from service.engine.tasks import EncodeTask, TextVectors
from service.errors import ConflictingFields
from service.operations.inputs import (
    INPUT,
    JSON_CHARACTER_BYTES,
    RESULT_BYTES,
    AppliedPrompt,
    Call,
    array_bytes,
    check_at_least_one,
    check_effect_options,
    check_inputs,
    check_length,
    check_occlusion,
    classifier_prompt,
    count_characters,
    count_prompt,
    describe_cost,
    effect_unit,
    estimate_tokens,
    listed_bytes,
    occlusion_tokens,
    require_operation,
    tokenizer_inputs,
)
from service.operations.scoring import TokenizedText
from service.spelling import Remedy

LABEL = 32
"""The cost of a label in a response; see inputs.py."""
LABEL_BYTES = 64


async def classify(engine: Engine, request: ClassifyRequest, call: Call) -> ClassifyResponse:
    """Return the labels of each input. Requires a model with a classifier."""
    deadline = call.start(engine)
    require_operation(engine, "classify")
    head = engine.manifest.classification
    assert head is not None
    check_classify(engine, request, call)
    lane, explain = engine.fast_lane, request.effect != "none"
    prompt = classifier_prompt(engine.limits, engine.manifest)
    prompt_tokens = 0 if prompt is None else await count_prompt(engine, prompt, len(request.inputs), deadline)
    lengths = map(count_characters, request.inputs)
    sizes = estimate_tokens(lengths, engine.manifest.max_input_tokens, prompt_tokens)
    cost = classify_cost(request, head)
    with lane.admit(sizes, deadline, cost, occlusion_tokens(sizes, engine.limits) if explain else 0) as admitted:
        texts = await engine.run(cost, deadline, prepare, engine, request, call, head, prompt)
        usage = admitted.tokenized([text.tokens for text in texts])
        tasks = label_tasks(texts)
        if explain:
            tasks += await engine.run(cost, deadline, occlusion_tasks, texts)
        vectors = await admitted.run(tasks)
    results = await engine.run(cost, deadline, build_results, texts, vectors, request, head)
    call.timing = admitted.finish()
    return ClassifyResponse(engine.name, lane.precision, results, usage)


def check_classify(engine: Engine, request: ClassifyRequest, call: Call) -> None:
    """Check all fields."""
    check_inputs(request.inputs, engine.limits, engine.manifest, call.max_inputs)
    check_at_least_one("top_k", request.top_k)
    check_effect_options(request.effect, {"unit": request.unit})
    unit = effect_unit(request)
    for index, item in enumerate(request.inputs):
        if unit == "word" and item.token_ids is not None:
            raise ConflictingFields(
                "{unit.word} is not supported for token_ids",
                f"Use {{unit.token}} or send text in {{inputs}}[{index}].",
                field="unit",
            )


def classify_cost(request: ClassifyRequest, head: ClassificationHead) -> int:
    """Return the cost of preparing a request, or of building its results."""
    labels = min(request.top_k or len(head.labels), len(head.labels))
    if request.effect != "none":
        return describe_cost(request.inputs) + LABEL * labels * len(request.inputs)
    return sum(INPUT + count_characters(item) + LABEL * labels for item in request.inputs)


def prepare(
    engine: Engine, request: ClassifyRequest, call: Call, head: ClassificationHead, prompt: AppliedPrompt | None
) -> list[TokenizedText]:
    """Tokenize the inputs and, for effects, find their units."""
    unit = effect_unit(request)
    texts = []
    sources = tokenizer_inputs(request.inputs, prompt)
    tokenized = engine.tokenizer.encode(sources, offsets=unit is not None)
    for index, tokens in enumerate(tokenized):
        kept = check_length(tokens, engine.manifest, request.truncation, f"inputs[{index}]")
        texts.append(TokenizedText.of(kept, engine.tokenizer, engine.manifest, unit))
    if unit is not None:
        remedy = "Send fewer or shorter texts" + (", or set unit to {unit.word}" if unit == "token" else "")
        check_occlusion([size for text in texts for size in text.occluded_sizes], engine.limits, remedy)
    labels = min(request.top_k or len(head.labels), len(head.labels))
    longest = sorted(map(len, head.labels))[-labels:]
    label_bytes = sum(LABEL_BYTES + JSON_CHARACTER_BYTES * characters for characters in longest)
    size = sum(
        RESULT_BYTES
        + label_bytes
        + listed_bytes(text.units, call.wire)
        + array_bytes(labels * len(text.units), "float32", call.wire)
        for text in texts
    )
    engine.check_response_size(size, len(texts), lambda: Remedy("Send fewer inputs or set top_k"))
    return texts


def build_results(
    texts: Sequence[TokenizedText], vectors: Sequence[TextVectors], request: ClassifyRequest, head: ClassificationHead
) -> list[ClassifyResult]:
    """Return the results; `vectors` are those of the texts, then of the texts without each unit."""
    activation = "identity" if request.raw_scores else head.activation
    scores = to_scores(np.stack([item.logits for item in vectors[: len(texts)]]), activation)  # type: ignore[misc]
    of_units: Sequence[NDArray[np.float32] | None] = [None] * len(texts)
    if request.effect != "none":
        of_units = effects(texts, scores, vectors[len(texts) :], activation)
    results = []
    for text, own, changes in zip(texts, scores, of_units, strict=True):
        order = np.argsort(-own, kind="stable")[: request.top_k].tolist()
        labels = [
            Label(
                head.labels[label],
                shortest(own[label]),
                None if changes is None else np.ascontiguousarray(changes[label]),
            )
            for label in order
        ]
        units = None if changes is None else text.units
        results.append(ClassifyResult(len(text.tokens), text.tokens.truncated, labels, units))
    return results


def to_scores(logits: NDArray[Any], activation: ScoreActivation) -> NDArray[np.float64]:
    """Return the scores of logits (..., C)."""
    values = logits.astype(np.float64)
    if activation == "identity":
        return values
    scores: NDArray[np.float64]
    if activation == "sigmoid":
        scores = np.exp(-np.logaddexp(0.0, -values))
    else:
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        scores = powers / powers.sum(axis=-1, keepdims=True)
    return scores


def label_tasks(texts: Sequence[TokenizedText]) -> list[EncodeTask]:
    """Return one task per text."""
    return [EncodeTask(text.tokens, None, hidden=False, heads=("classification",)) for text in texts]


def occlusion_tasks(texts: Sequence[TokenizedText]) -> list[EncodeTask]:
    """Return one task per unit of each text, for the text without the unit, unless no token remains."""
    return [
        EncodeTask(sequence, None, hidden=False, heads=("classification",))
        for text in texts
        for sequence in text.occluded
        if len(sequence)
    ]


def effects(
    texts: Sequence[TokenizedText],
    scores: NDArray[np.float64],
    occluded: Sequence[TextVectors],
    activation: ScoreActivation,
) -> list[NDArray[np.float32]]:
    """Return the score of each label less its score without each unit, (C, U) per text.

    `scores` (N, C) are those of the texts, and `occluded` the results of `occlusion_tasks`. A text without tokens
    has the score 0.
    """
    results, changes = iter(occluded), []
    for text, own in zip(texts, scores, strict=True):
        without = np.zeros((len(text.units), len(own)))
        for unit, sequence in enumerate(text.occluded):
            if len(sequence):
                logits = next(results).logits
                assert logits is not None
                without[unit] = to_scores(logits, activation)
        changes.append((own - without).T.astype(np.float32))
    return changes
