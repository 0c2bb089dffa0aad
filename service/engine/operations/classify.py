"""Classify: the labels of inputs, and what each word contributes to their scores."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import ClassificationHead
from service.engine.admission import count_characters, estimate_tokens
from service.engine.encode.pooling import shortest
from service.engine.encode.sizes import JSON_CHARACTER_BYTES, RESULT_BYTES, array_bytes, listed_bytes
from service.engine.explain.labels import effects, label_tasks, occlusion_tasks, to_scores
from service.engine.explain.similarity import ComparedText
from service.engine.observer import Observation
from service.engine.operations.costs import INPUT, describe_cost
from service.engine.operations.inputs import (
    check_at_least_one,
    check_inputs,
    check_length,
    classifier_prompt,
    count_prompt,
    prepend_prompt,
    require_operation,
)
from service.engine.operations.occlusion import check_effect_options, check_occlusion, effect_unit, occlusion_tokens
from service.engine.schema.encode import AppliedPrompt, Array
from service.engine.schema.labels import ClassifyRequest, ClassifyResponse, ClassifyResult, LabelScore
from service.engine.schema.tasks import TextVectors
from service.errors import ConflictingFields
from service.spelling import Remedy

if TYPE_CHECKING:
    from service.engine.engine import Engine

LABEL = 32
"""The cost of a label in a response; see costs.py."""
LABEL_BYTES = 64


async def classify(engine: "Engine", request: ClassifyRequest, deadline: float) -> ClassifyResponse:
    """Return the labels of the inputs."""
    require_operation(engine.manifest, "classify")
    head = engine.manifest.classification
    assert head is not None
    check_classify(engine, request)
    lane, explain = engine.fast_lane, request.effect != "none"
    prompt = classifier_prompt(engine.limits, engine.manifest)
    prompt_tokens = 0 if prompt is None else await count_prompt(engine, prompt, len(request.inputs), deadline)
    lengths = map(count_characters, request.inputs)
    sizes = estimate_tokens(lengths, engine.manifest.max_input_tokens, prompt_tokens)
    cost = classify_cost(request, head)
    observation = Observation(lane.observer)
    with lane.reserve(sizes, deadline, occlusion_tokens(sizes, engine.limits) if explain else 0):
        texts = await engine.run(cost, deadline, prepare, engine, request, head, prompt)
        token_count, truncated = observation.tokenized([text.tokens for text in texts])
        tasks = label_tasks(texts)
        if explain:
            tasks += await engine.run(cost, deadline, occlusion_tasks, texts)
        job = lane.submit(tasks, deadline)
    vectors = await lane.wait(job)
    observation.ran(job.queue_s, job.batch_size)
    results = await engine.run(cost, deadline, build_results, texts, vectors, request, head)
    return ClassifyResponse(engine.name, lane.precision, results, token_count, truncated, observation.finish())


def check_classify(engine: "Engine", request: ClassifyRequest) -> None:
    """Check all fields."""
    check_inputs(request.inputs, engine.limits, engine.manifest, request.max_inputs)
    check_at_least_one("top_k", request.top_k)
    check_effect_options(request.effect, {"unit": request.unit})
    unit = effect_unit(request)
    for index, item in enumerate(request.inputs):
        if unit == "word" and item.source.token_ids is not None:
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
    engine: "Engine", request: ClassifyRequest, head: ClassificationHead, prompt: AppliedPrompt | None
) -> list[ComparedText]:
    """Tokenize the inputs and, for effects, find their units."""
    unit = effect_unit(request)
    texts = []
    sources = prepend_prompt(request.inputs, prompt)
    tokenized = engine.tokenizer.encode(sources, offsets=unit is not None)
    for index, tokens in enumerate(tokenized):
        kept = check_length(tokens, engine.manifest, request.truncation, f"inputs[{index}]")
        texts.append(ComparedText.of(kept, engine.tokenizer, engine.manifest, unit))
    if unit is not None:
        remedy = "Send fewer or shorter texts" + (", or set unit to {unit.word}" if unit == "token" else "")
        check_occlusion([size for text in texts for size in text.occluded_sizes], engine.limits, remedy)
    labels = min(request.top_k or len(head.labels), len(head.labels))
    longest = sorted(map(len, head.labels))[-labels:]
    label_bytes = sum(LABEL_BYTES + JSON_CHARACTER_BYTES * characters for characters in longest)
    size = sum(
        RESULT_BYTES
        + label_bytes
        + listed_bytes(text.units, request.wire)
        + array_bytes(labels * len(text.units), "float32", request.wire)
        for text in texts
    )
    engine.check_response_size(size, len(texts), lambda: Remedy("Send fewer inputs or set top_k"))
    return texts


def build_results(
    texts: Sequence[ComparedText], vectors: Sequence[TextVectors], request: ClassifyRequest, head: ClassificationHead
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
            LabelScore(
                head.labels[label],
                shortest(own[label]),
                None if changes is None else Array(np.ascontiguousarray(changes[label]), "float32"),
            )
            for label in order
        ]
        units = None if changes is None else text.units
        results.append(ClassifyResult(len(text.tokens), text.tokens.truncated, labels, units))
    return results
