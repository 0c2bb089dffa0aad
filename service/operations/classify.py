"""Classify: labels of inputs, and each word's contribution to the scores.

If the request contains `labels`, an entailment model chooses among them, as in zero-shot classification in
transformers: the text is the premise, and the template filled with a label is the hypothesis (Yin et al. 2019).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from attendant_client.types import ClassifyRequest, ClassifyResponse, ClassifyResult, Input, Label, Limits, shortest
from numpy.typing import NDArray

from model.artifact.manifest import ClassificationHead, ScoreActivation
from service.engine.engine import Engine
from service.engine.tasks import EncodeTask, TextVectors
from service.errors import (
    ConflictingFields,
    Duplicate,
    InvalidFormat,
    RequestTooLarge,
    TooLong,
    TooMany,
    UnsupportedByModel,
)
from service.operations.inputs import (
    INPUT,
    JSON_CHARACTER_BYTES,
    MAX_LABELS,
    RESULT_BYTES,
    SHORTEN,
    AppliedPrompt,
    Call,
    array_bytes,
    check_at_least_one,
    check_count,
    check_effect_options,
    check_inputs,
    check_length,
    check_occlusion,
    check_text,
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
from service.operations.scoring import SPECIAL, TokenizedText
from service.spelling import Remedy

LABEL = 32
"""The cost of a label in a response; see inputs.py."""
LABEL_BYTES = 64
BRACES = re.compile(r"\{\{|\}\}|\{\}")
DEFAULT_TEMPLATE = "This example is {}."
NLI_MODEL = "MoritzLaurer/deberta-v3-base-zeroshot-v2.0"


async def classify(engine: Engine, request: ClassifyRequest, call: Call) -> ClassifyResponse:
    """Return the labels of each input. Requires a model with a classifier."""
    deadline = call.start(engine)
    if request.labels is not None:
        check_entailment(engine)
    require_operation(engine, "classify")
    head = engine.manifest.classification
    assert head is not None
    check_classify(engine, request, call)
    if request.labels is not None:
        return await choose_labels(engine, request, request.labels, call, deadline)
    lane, explain = engine.fast_lane, request.effect != "none"
    prompt = classifier_prompt(engine.limits, engine.manifest)
    prompt_tokens = 0 if prompt is None else await count_prompt(engine, prompt, len(request.inputs), deadline)
    lengths = count_characters(request.inputs)
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
    check_labels(request, engine)
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
    return sum(count_characters(request.inputs)) + (INPUT + LABEL * labels) * len(request.inputs)


def prepare(
    engine: Engine, request: ClassifyRequest, call: Call, head: ClassificationHead, prompt: AppliedPrompt | None
) -> list[TokenizedText]:
    """Tokenize the inputs and, for effects, find their units."""
    unit = effect_unit(request)
    texts = []
    sources = tokenizer_inputs(request.inputs, prompt)
    tokenized = engine.tokenizer.encode_each(sources, offsets=unit is not None)
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
    """Return the results; `vectors` belong to the texts, then to the texts without each unit."""
    activation = "identity" if request.raw_scores else head.activation
    scores = to_scores(np.stack([item.logits for item in vectors[: len(texts)]]), activation)  # type: ignore[misc]
    of_units: Sequence[NDArray[np.float32] | None] = [None] * len(texts)
    if request.effect != "none":
        of_units = effects(texts, scores, vectors[len(texts) :], activation)
    results = []
    for text, own, changes in zip(texts, scores, of_units, strict=True):
        labels = best_labels(head.labels, own, changes, request.top_k)
        units = None if changes is None else text.units
        results.append(ClassifyResult(len(text.tokens), text.tokens.truncated, labels, units))
    return results


def best_labels(
    names: Sequence[str], scores: NDArray[np.float64], changes: NDArray[np.float32] | None, top_k: int | None
) -> list[Label]:
    """Return the labels with the highest scores, best first; `changes` (L, U) are the effects of the units."""
    return [
        Label(names[place], shortest(scores[place]), None if changes is None else np.ascontiguousarray(changes[place]))
        for place in np.argsort(-scores, kind="stable")[:top_k].tolist()
    ]


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
    """Return one task per unit of each text: the text without the unit, unless no token remains."""
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
    """Return each label's score minus its score without each unit, (C, U) per text.

    `scores` (N, C) belong to the full texts; `occluded` are the results of `occlusion_tasks`. A text without tokens
    scores 0.
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


# With the labels of the request


@dataclass(frozen=True)
class Entailment:
    """The indices of an entailment model's two relevant labels."""

    entailment: int
    contradiction: int

    @classmethod
    def find(cls, labels: Sequence[str]) -> "Entailment | None":
        """Find the indices as transformers does; None if the classifier is not an entailment model."""
        place = next((place for place, label in enumerate(labels) if label.lower().startswith("entail")), None)
        if place is None or len(labels) == 1:
            return None
        return cls(place, len(labels) - 1 if place == 0 else 0)

    def scores(self, logits: NDArray[Any], *, alone: bool) -> NDArray[np.float64]:
        """Return the score of each of L labels, (..., L), from logits (..., L, C).

        With `alone`, each score is the probability of entailment versus contradiction; otherwise scores are a softmax
        over the labels.
        """
        if alone:
            return to_scores(logits[..., [self.contradiction, self.entailment]], "softmax")[..., 1]
        return to_scores(logits[..., self.entailment], "softmax")


def check_labels(request: ClassifyRequest, engine: Engine) -> None:
    """Check the labels of a request, and the fields that require them."""
    if request.labels is not None:
        _check_hypotheses(request.labels, request.template, engine.limits)
        _check_premises(request.inputs, len(request.labels), engine.limits)
        return
    for field, is_set in (("template", request.template is not None), ("multi_label", request.multi_label)):
        if is_set:
            raise ConflictingFields("requires labels", "Set labels, or leave it out.", field=field)


def check_entailment(engine: Engine) -> None:
    """Raise `UnsupportedByModel` unless the model is a classifier that can choose among the request's labels."""
    head = engine.manifest.classification
    if head is None or Entailment.find(head.labels) is None:
        raise UnsupportedByModel(
            'not supported for this model, which has no label "entailment"',
            f"Use a model of natural language inference, such as {NLI_MODEL}.",
            field="labels",
        )


def _check_hypotheses(labels: Sequence[str], template: str | None, limits: Limits) -> None:
    check_count(len(labels), "labels", MAX_LABELS)
    for index, label in enumerate(labels):
        check_text(label, f"labels[{index}]", limits.max_input_characters, SHORTEN)
    if len(set(labels)) < len(labels):
        raise Duplicate("contains the same item twice", "Remove one.", field="labels")
    if template is not None:
        check_text(template, "template", limits.max_input_characters, SHORTEN)
        if BRACES.findall(template).count("{}") != 1:
            raise InvalidFormat("does not contain {} once", "Put {} in place of the label.", field="template")


def _check_premises(inputs: Sequence[Input], labels: int, limits: Limits) -> None:
    for index, item in enumerate(inputs):
        for name in ("pair", "token_ids"):
            if getattr(item, name) is not None:
                raise ConflictingFields("not supported with labels", "Send a text.", field=f"inputs[{index}].{name}")
    if len(inputs) * labels > limits.max_documents:
        raise TooMany(
            "too many pairs of an input and a label", "Send fewer inputs or labels.",
            field="labels", actual=len(inputs) * labels, maximum=limits.max_documents,
        )  # fmt: skip


def fill_template(template: str, label: str) -> str:
    """Replace {} by the label, and {{ and }} by single braces, like `str.format` in transformers."""
    return BRACES.sub(lambda match: label if match[0] == "{}" else match[0][0], template)


async def choose_labels(
    engine: Engine, request: ClassifyRequest, labels: Sequence[str], call: Call, deadline: float
) -> ClassifyResponse:
    """Choose each input's labels from `labels`."""
    head = engine.manifest.classification
    assert head is not None
    template = request.template or DEFAULT_TEMPLATE
    hypotheses = [fill_template(template, label) for label in labels]
    characters, limit = len(request.inputs) * sum(map(len, hypotheses)), engine.limits.max_request_bytes
    if characters > limit:
        raise RequestTooLarge(
            "template and labels too long for this many inputs", "Shorten them, or send fewer inputs.",
            field="labels", actual=characters, maximum=limit, unit="characters",
        )  # fmt: skip
    prompt = classifier_prompt(engine.limits, engine.manifest)
    pairs = len(request.inputs) * len(labels)
    prompt_tokens = 0 if prompt is None else await count_prompt(engine, prompt, pairs, deadline)
    lengths = [length + len(hypothesis) for length in count_characters(request.inputs) for hypothesis in hypotheses]
    sizes = estimate_tokens(lengths, engine.manifest.max_input_tokens, prompt_tokens)
    lane, explain = engine.fast_lane, request.effect != "none"
    cost = describe_cost(request.inputs) * len(labels) + sum(lengths) + LABEL * pairs
    with lane.admit(sizes, deadline, cost, occlusion_tokens(sizes, engine.limits) if explain else 0) as admitted:
        texts = await engine.run(cost, deadline, prepare_pairs, engine, request, hypotheses, call, prompt)
        usage = admitted.tokenized([text.tokens for text in texts])
        tasks = label_tasks(texts)
        if explain:
            tasks += await engine.run(cost, deadline, occlusion_tasks, texts)
        vectors = await admitted.run(tasks)
    results = await engine.run(cost, deadline, build_choices, texts, vectors, request, labels, head)
    call.timing = admitted.finish()
    return ClassifyResponse(engine.name, lane.precision, results, usage)


def prepare_pairs(
    engine: Engine, request: ClassifyRequest, hypotheses: Sequence[str], call: Call, prompt: AppliedPrompt | None
) -> list[TokenizedText]:
    """Tokenize each text with each hypothesis. For effects, units come from the text."""
    unit = effect_unit(request)
    texts = []
    for index, item in enumerate(request.inputs):
        own = "" if prompt is None else prompt.text
        encoded = engine.tokenizer.encode_pairs(item.text or "", hypotheses, prompt=own, offsets=unit is not None)
        for label, tokens in enumerate(encoded):
            used = len(tokens) - tokens.first_text_tokens
            if used >= engine.manifest.max_input_tokens:
                raise TooLong(
                    "leaves no room for text", "Shorten it or the template.",
                    field=f"labels[{label}]", actual=used, maximum=engine.manifest.max_input_tokens - 1, unit="tokens",
                )  # fmt: skip
            # Effects require the same units with every label.
            truncation = request.truncation if unit is None else None
            kept = check_length(tokens, engine.manifest, truncation, f"inputs[{index}]", keep_pair=True)
            texts.append(_without_second(TokenizedText.of(kept, engine.tokenizer, engine.manifest, unit)))
    if unit is not None:
        remedy = "Send fewer or shorter texts or fewer labels"
        remedy += ", or set unit to {unit.word}" if unit == "token" else ""
        check_occlusion([size for text in texts for size in text.occluded_sizes], engine.limits, remedy)
    labels = request.labels or ()
    size = len(request.inputs) * (
        RESULT_BYTES + LABEL_BYTES * len(labels) + JSON_CHARACTER_BYTES * sum(map(len, labels))
    )
    for text in texts[:: len(hypotheses)]:
        size += listed_bytes(text.units, call.wire) + array_bytes(len(labels) * len(text.units), "float32", call.wire)
    engine.check_response_size(size, len(request.inputs), lambda: Remedy("Send fewer inputs or set top_k"))
    return texts


def _without_second(text: TokenizedText) -> TokenizedText:
    """Return a pair with only the units of its first text."""
    units = [unit for unit in text.units if unit.segment == 0]
    unit_of_token = np.where(text.unit_of_token < len(units), text.unit_of_token, SPECIAL)
    return replace(text, units=units, unit_of_token=unit_of_token)


def build_choices(
    texts: Sequence[TokenizedText],
    vectors: Sequence[TextVectors],
    request: ClassifyRequest,
    labels: Sequence[str],
    head: ClassificationHead,
) -> list[ClassifyResult]:
    """Return the results; `vectors` belong to the pairs, then to the pairs without each unit."""
    entailment, count = Entailment.find(head.labels), len(labels)
    assert entailment is not None
    alone = request.multi_label or count == 1

    def to_choice(logits: NDArray[Any]) -> NDArray[np.float64]:
        return logits[..., entailment.entailment] if request.raw_scores else entailment.scores(logits, alone=alone)

    of_pairs = np.stack([item.logits for item in vectors[: len(texts)]]).astype(np.float64)  # type: ignore[misc]
    scores = to_choice(of_pairs.reshape(len(request.inputs), count, -1))  # (N, L)
    occluded, results = iter(vectors[len(texts) :]), []
    for index, own in enumerate(scores):
        pairs = texts[index * count : (index + 1) * count]
        units, effects_of_labels = pairs[0].units, None
        if request.effect != "none":
            logits = np.stack([next(occluded).logits for _ in range(count * len(units))]) if units else None  # type: ignore[misc]
            without = (
                own[:, None]
                if logits is None
                else to_choice(logits.astype(np.float64).reshape(count, len(units), -1).swapaxes(0, 1)).T
            )
            effects_of_labels = (own[:, None] - without[:, : len(units)]).astype(np.float32)
        chosen = best_labels(labels, own, effects_of_labels, request.top_k)
        results.append(
            ClassifyResult(
                sum(len(pair.tokens) for pair in pairs),
                any(pair.tokens.truncated for pair in pairs),
                chosen,
                None if effects_of_labels is None else units,
            )
        )
    return results
