"""Token-classify: token labels joined into entities, as in the transformers pipeline "token-classification".

Unlike in transformers, words come from the text rather than from the tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from attendant_client.types import (
    Aggregation,
    Entity,
    Token,
    TokenClassifyRequest,
    TokenClassifyResponse,
    TokenClassifyResult,
    shortest,
)
from numpy.typing import NDArray

from model.artifact.tokenizer import TokenizedInput
from service.engine.engine import Engine
from service.engine.tasks import EncodeTask, TextVectors
from service.errors import ConflictingFields
from service.operations.classify import to_scores
from service.operations.inputs import (
    RESULT_BYTES,
    Call,
    check_inputs,
    check_length,
    count_characters,
    describe_cost,
    estimate_tokens,
    listed_bytes,
    require_operation,
    tokenizer_inputs,
)
from service.operations.units import describe_tokens, words_of
from service.spelling import Remedy, named

OUTSIDE = "O"
"""The label of tokens that belong to no entity. It is not returned."""

Scores = NDArray[np.float64]


async def token_classify(engine: Engine, request: TokenClassifyRequest, call: Call) -> TokenClassifyResponse:
    """Return the entities of each input. Requires a model with a token classifier."""
    deadline = call.start(engine)
    require_operation(engine, "token_classify")
    check_inputs(request.inputs, engine.limits, engine.manifest)
    check_words(request)
    lane = engine.fast_lane
    sizes = estimate_tokens(count_characters(request.inputs), engine.manifest.max_input_tokens)
    cost = describe_cost(request.inputs)
    with lane.admit(sizes, deadline, cost) as admitted:
        inputs = await engine.run(cost, deadline, prepare, engine, request, call)
        usage = admitted.tokenized([tokens for tokens, _ in inputs])
        tasks = [EncodeTask(tokens, None, hidden=False, heads=("token_classification",)) for tokens, _ in inputs]
        vectors = await admitted.run(tasks)
    results = await engine.run(cost, deadline, build_results, engine, request, inputs, vectors)
    call.timing = admitted.finish()
    return TokenClassifyResponse(engine.name, lane.precision, results, usage)


def check_words(request: TokenClassifyRequest) -> None:
    """Raise `ConflictingFields` if word labels are requested for token ids."""
    if request.aggregation in ("none", "simple"):
        return
    for index, item in enumerate(request.inputs):
        if item.token_ids is not None:
            raise ConflictingFields(
                f"{named('aggregation', request.aggregation)} is not supported for token_ids",
                f"Use {{aggregation.simple}} or send text in {{inputs}}[{index}].",
                field="aggregation",
            )


def prepare(engine: Engine, request: TokenClassifyRequest, call: Call) -> list[tuple[TokenizedInput, list[Token]]]:
    """Tokenize the inputs and list their tokens."""
    prepared, size = [], 0
    tokenized = engine.tokenizer.encode_each(tokenizer_inputs(request.inputs))
    for index, tokens in enumerate(tokenized):
        kept = check_length(tokens, engine.manifest, request.truncation, f"inputs[{index}]")
        described = describe_tokens(kept, engine.tokenizer.token_texts(kept), words_of(kept))
        size += RESULT_BYTES + listed_bytes(described, call.wire)
        prepared.append((kept, described))
    engine.check_response_size(size, len(prepared), lambda: Remedy("Send fewer inputs"))
    return prepared


def build_results(
    engine: Engine,
    request: TokenClassifyRequest,
    inputs: Sequence[tuple[TokenizedInput, list[Token]]],
    vectors: Sequence[TextVectors],
) -> list[TokenClassifyResult]:
    """Return the entities of each input."""
    head = engine.manifest.token_classification
    assert head is not None
    results = []
    for (tokens, described), own in zip(inputs, vectors, strict=True):
        assert own.token_logits is not None
        texts = (tokens.source.text, tokens.source.pair or "")
        entities = find_entities(described, own.token_logits, head.labels, texts, request.aggregation)
        results.append(TokenClassifyResult(len(tokens), tokens.truncated, entities))
    return results


@dataclass(frozen=True)
class _LabeledSpan:
    """A token or a word with its label."""

    label: str
    score: float
    start: int
    end: int
    segment: int
    text: str


def find_entities(
    tokens: Sequence[Token],
    logits: NDArray[Any],
    labels: Sequence[str],
    texts: tuple[str, str],
    aggregation: Aggregation,
) -> list[Entity]:
    """Return the entities of an input.

    Args:
        tokens: the T tokens of the input.
        logits: the logits of the tokens, (T, C).
        labels: the C label names.
        texts: the segments' texts.
        aggregation: "none" returns one entity per token; the others join neighbors with the same tag: tokens ("simple")
            or words, labeled by their first token, the mean of the scores, or the highest score.
    """
    scores = to_scores(logits, "softmax")
    places = [place for place, token in enumerate(tokens) if not token.special]
    if aggregation in ("none", "simple"):
        groups = [[place] for place in places]
    else:
        words = groupby(places, key=lambda place: (tokens[place].segment, _word_of(tokens, place)))
        groups = [list(members) for _, members in words]
    parts = [_label(group, tokens, scores, labels, aggregation) for group in groups]
    if aggregation == "none":
        return [_entity(part.label, [part], texts) for part in parts if part.label != OUTSIDE]
    # Any prefix of the name is removed, such as "S-", although only "B-" and "I-" count for joining.
    return [
        _entity(group[0].label.split("-", 1)[-1], group, texts) for group in _join(parts) if group[0].label != OUTSIDE
    ]


def _word_of(tokens: Sequence[Token], place: int) -> int:
    """Return the word that a token belongs to; a token outside of all words is a separate word."""
    word = tokens[place].word_index
    return -1 - place if word is None else word


def _label(
    group: Sequence[int], tokens: Sequence[Token], scores: Scores, labels: Sequence[str], aggregation: Aggregation
) -> _LabeledSpan:
    """Return the label of a group of tokens."""
    own = scores[list(group)]
    if aggregation == "average":
        row = own.mean(axis=0)
    else:
        row = own[own.max(axis=1).argmax()] if aggregation == "max" else own[0]
    best = int(row.argmax())
    first, last = tokens[group[0]], tokens[group[-1]]
    return _LabeledSpan(labels[best], float(row[best]), first.start, last.end, first.segment, first.text)


def _join(parts: Sequence[_LabeledSpan]) -> list[list[_LabeledSpan]]:
    """Join neighbors in a segment with the same tag, unless the next one begins an entity ("B-")."""
    groups: list[list[_LabeledSpan]] = []
    for part in parts:
        begins, tag = _split(part.label)
        previous = groups[-1][-1] if groups else None
        if previous is None or begins or previous.segment != part.segment or _split(previous.label)[1] != tag:
            groups.append([part])
        else:
            groups[-1].append(part)
    return groups


def _split(label: str) -> tuple[bool, str]:
    """Return whether a label begins an entity, and its tag. A label without "B-" or "I-" continues an entity."""
    prefix, separator, tag = label.partition("-")
    return (prefix == "B", tag) if separator and prefix in ("B", "I") else (False, label)


def _entity(label: str, group: Sequence[_LabeledSpan], texts: tuple[str, str]) -> Entity:
    first, last = group[0], group[-1]
    text = texts[first.segment][first.start : last.end] or first.text  # token ids have no text
    score = shortest(float(np.mean([part.score for part in group])))
    return Entity(label, score, text, first.start, last.end, first.segment)
