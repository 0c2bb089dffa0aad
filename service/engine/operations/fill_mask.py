"""Fill-mask: the words that a masked language model predicts, at its last layer or at each (logit lens)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from model.artifact.manifest import Manifest
from model.artifact.tokenizer import TokenizedInput
from service.engine.admission import count_characters, estimate_tokens
from service.engine.encode.pooling import shortest
from service.engine.encode.sizes import JSON_CHARACTER_BYTES, RESULT_BYTES
from service.engine.explain.words import WordTask
from service.engine.lane import Lane
from service.engine.observer import Observation
from service.engine.operations.costs import describe_cost
from service.engine.operations.inputs import (
    check_at_least_one,
    check_count,
    check_inputs,
    check_layers,
    check_length,
    require,
    require_operation,
)
from service.engine.schema.fill_mask import (
    FilledPosition,
    FillMaskRequest,
    FillMaskResponse,
    FillMaskResult,
    LayerPredictions,
    Prediction,
)
from service.engine.schema.tasks import EncodeTask, PredictedWords, TextVectors, WordQuery
from service.errors import Duplicate, Empty, InvalidArgument, OutOfRange, RequestTooLarge, TooLong
from service.spelling import Remedy

if TYPE_CHECKING:
    from service.engine.engine import Engine

DEFAULT_TOP_K = 5
MAX_TOP_K = 100
"""Predictions per position and layer."""
MAX_TARGETS = 100
MAX_FILLED = 512
"""Positions times layers of a request."""
MAX_LOGITS = 2**24
"""Logits of a request, which limit positions times layers of a model with a large vocabulary."""
PREDICTION = 8
"""The cost of a prediction in a response; see costs.py."""
PREDICTION_BYTES = 96
TOKEN_CHARACTERS = 64
"""The longest entry of a vocabulary that the size of a response accounts for."""


@dataclass(frozen=True, slots=True)
class MaskedInput:
    """A tokenized input, and the query for its positions."""

    tokens: TokenizedInput
    query: WordQuery


async def fill_mask(engine: "Engine", request: FillMaskRequest, deadline: float) -> FillMaskResponse:
    """Return the predictions for the mask tokens of the inputs, or for one position of each."""
    require_operation(engine.manifest, "fill_mask")
    layers = check_fill_mask(engine, request)
    last_only = layers == [engine.manifest.architecture.num_hidden_layers]
    lane: Lane[Any, Any] = engine.fast_lane if last_only else engine.explain
    sizes = estimate_tokens(map(count_characters, request.inputs), engine.manifest.max_input_tokens)
    cost = describe_cost(request.inputs) + sum(map(len, request.targets or ()))
    observation = Observation(lane.observer)
    with lane.reserve(sizes, deadline):
        prepared = await engine.run(cost, deadline, prepare, engine, request, layers)
        token_count, truncated = observation.tokenized([item.tokens for item in prepared])
        tasks = [make_task(item, None if last_only else tuple(layers)) for item in prepared]
        job = lane.submit(tasks, deadline)
    predicted = await lane.wait(job)
    observation.ran(job.queue_s, job.batch_size)
    count = sum(len(item.query.positions) for item in prepared) * len(layers) * prepared[0].query.count
    results = await engine.run(PREDICTION * count, deadline, build_results, engine, prepared, layers, predicted)
    return FillMaskResponse(engine.name, lane.precision, results, token_count, truncated, observation.finish())


def check_fill_mask(engine: "Engine", request: FillMaskRequest) -> list[int]:
    """Check all fields; return the layers, 0..L."""
    manifest = engine.manifest
    check_inputs(request.inputs, engine.limits, manifest)
    check_at_least_one("top_k", request.top_k)
    if (request.top_k or 1) > MAX_TOP_K:
        raise OutOfRange(
            "out of range", f"Use 1 to {MAX_TOP_K}.", field="top_k", actual=request.top_k, minimum=1, maximum=MAX_TOP_K
        )
    if request.targets is not None:
        check_count(len(request.targets), "targets", MAX_TARGETS)
    if request.position is not None and not 0 <= request.position < manifest.max_input_tokens:
        raise OutOfRange(
            "out of range", "Send the index of a token, as in Tokenize.",
            field="position", actual=request.position, minimum=0, maximum=manifest.max_input_tokens - 1,
        )  # fmt: skip
    last = manifest.architecture.num_hidden_layers
    layers = range(last + 1) if request.layers is None else request.layers
    if request.layers is not None:
        check_layers(request.layers, manifest)
    numbers = [layer % (last + 1) for layer in layers]
    if numbers != [last]:
        require(manifest.explain, "only the last layer is supported for this model", "layers")
    return numbers


def make_task(item: MaskedInput, layers: tuple[int, ...] | None) -> EncodeTask | WordTask:
    """Return the task of an input, for the last layer or for the layers of the explain lane."""
    if layers is None:
        return EncodeTask(item.tokens, None, hidden=False, heads=("masked_lm",), words=item.query)
    return WordTask(item.tokens, item.query, layers)


def prepare(engine: "Engine", request: FillMaskRequest, layers: Sequence[int]) -> list[MaskedInput]:
    """Tokenize the inputs and targets, and find the positions to predict."""
    targets = None if request.targets is None else find_targets(engine, request.targets)
    count = request.top_k or (DEFAULT_TOP_K if targets is None else len(targets))
    query = WordQuery((), count if targets is None else min(count, len(targets)), targets)
    prepared, filled = [], 0
    tokenizer = engine.mask_tokenizer or engine.tokenizer
    for index, tokens in enumerate(tokenizer.encode([item.source for item in request.inputs])):
        kept = check_length(tokens, engine.manifest, request.truncation, f"inputs[{index}]")
        positions = find_positions(kept, request.position, engine, index)
        prepared.append(MaskedInput(kept, replace(query, positions=positions)))
        filled += len(positions) * len(layers)
    limit = max_filled(engine.manifest)
    if filled > limit:
        remedy = "Send fewer inputs" + (" or masks" if request.position is None else "")
        raise RequestTooLarge(
            "too many positions times layers", f"{remedy}{', or request fewer layers' if len(layers) > 1 else ''}.",
            field="inputs", actual=filled, maximum=limit, reason="TOO_MANY",
        )  # fmt: skip
    if len(layers) > 1 or layers[0] != engine.manifest.architecture.num_hidden_layers:
        engine.check_explain_size([len(item.tokens) for item in prepared], maps=False)
    size = RESULT_BYTES * len(prepared) + request.returned_bytes
    size += filled * query.count * (PREDICTION_BYTES + JSON_CHARACTER_BYTES * TOKEN_CHARACTERS)
    engine.check_response_size(size, len(prepared), lambda: Remedy("Send fewer inputs or a smaller {top_k}"))
    return prepared


def max_filled(manifest: Manifest) -> int:
    """Return the greatest number of positions times layers of a request."""
    return min(MAX_FILLED, MAX_LOGITS // manifest.architecture.vocab_size)


def find_positions(tokens: TokenizedInput, position: int | None, engine: "Engine", index: int) -> tuple[int, ...]:
    """Return the positions to predict in the input at an index."""
    if position is not None:
        if position >= len(tokens):
            raise OutOfRange(
                f"after the last token of {{inputs}}[{index}]", "Send the index of a token, as in Tokenize.",
                field="position", actual=position, minimum=0, maximum=len(tokens) - 1,
            )  # fmt: skip
        return (position,)
    mask = mask_token_id(engine.manifest)
    positions = tuple(place for place, number in enumerate(tokens.input_ids) if number == mask)
    if not positions:
        name = engine.info.mask_token
        remedy = "Set {position}." if name is None else f"Put {name} in the text."
        if tokens.truncated:
            remedy = "It may have been truncated: shorten the text."
        raise InvalidArgument("no mask token", remedy, field=f"inputs[{index}]", reason="MASK_MISSING")
    return positions


def mask_token_id(manifest: Manifest) -> int | None:
    """Return the id of the mask token."""
    assert manifest.masked_lm is not None  # checked with the request
    return manifest.masked_lm.mask_token_id


def find_targets(engine: "Engine", targets: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of targets. Raises a `ServiceError` for one that is not one token of its own."""
    ids: dict[int, None] = {}
    limit = engine.limits.max_input_characters
    assert engine.manifest.masked_lm is not None  # checked with the request
    words = engine.manifest.masked_lm.decoder.shape[0]
    for index, target in enumerate(targets):
        field = f"targets[{index}]"
        if not target:
            raise Empty("empty", "Send a text of one token.", field=field)
        if len(target) > limit:
            raise TooLong("too many characters", "Shorten it.", field=field, actual=len(target), maximum=limit)
        found = engine.tokenizer.find_token(target)
        if len(found) != 1:
            raise TooLong(
                "not a single token", "Send an entry of the vocabulary, or a text of one token.",
                field=field, actual=len(found), maximum=1, unit="tokens",
            )  # fmt: skip
        if found[0] >= words:  # a special token without a row in the table
            raise OutOfRange(
                "not a word that the model predicts", "Send another text.",
                field=field, actual=found[0], minimum=0, maximum=words - 1,
            )  # fmt: skip
        if found[0] in ids:
            raise Duplicate("the same token as an earlier target", "Remove one.", field=field)
        ids[found[0]] = None
    return tuple(ids)


def build_results(
    engine: "Engine",
    prepared: Sequence[MaskedInput],
    layers: Sequence[int],
    predicted: Sequence[TextVectors | list[PredictedWords]],
) -> list[FillMaskResult]:
    """Return the predictions of each input."""
    results = []
    for item, own in zip(prepared, predicted, strict=True):
        of_layers = [own.words] if isinstance(own, TextVectors) else own
        tokens = item.tokens
        described = [
            [LayerPredictions(layer, row) for row in describe_words(engine, words)]
            for layer, words in zip(layers, of_layers, strict=True)
        ]
        positions = [
            FilledPosition(position, start, end, max(0, tokens.segment[position]), list(rows))
            for position, *rows in zip(item.query.positions, *described, strict=True)
            for start, end in (tokens.offsets[position],)
        ]
        results.append(FillMaskResult(len(tokens), tokens.truncated, positions))
    return results


def describe_words(engine: "Engine", words: PredictedWords | None) -> list[list[Prediction]]:
    """Return the predictions of each position."""
    assert words is not None
    rows = []
    for ids, probabilities in zip(words.token_ids.tolist(), words.probabilities, strict=True):
        texts = engine.tokenizer.vocabulary_texts(ids)
        values = [shortest(value) for value in probabilities]
        rows.append([Prediction(*row) for row in zip(texts, ids, values, strict=True)])
    return rows
