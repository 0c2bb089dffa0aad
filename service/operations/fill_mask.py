"""Fill-mask: the words that a masked language model predicts, at the last layer or at each layer (logit lens).

Logit lens: nostalgebraist 2020.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from attendant_client.types import (
    DEFAULT_PREDICTIONS,
    MAX_PREDICTIONS,
    FilledPosition,
    FillMaskRequest,
    FillMaskResponse,
    FillMaskResult,
    LayerPredictions,
    Prediction,
    shortest,
)

from model.artifact.manifest import Manifest
from model.artifact.tokenizer import TokenizedInput
from service.engine.engine import Engine
from service.engine.lane import Lane
from service.engine.tasks import EncodeTask, Floats, ModelParts, PredictedWords, TextVectors, WordQuery
from service.errors import Duplicate, Empty, InvalidArgument, OutOfRange, RequestTooLarge, TooLong
from service.operations.inputs import (
    JSON_CHARACTER_BYTES,
    MAX_TARGETS,
    RESULT_BYTES,
    Call,
    check_at_least_one,
    check_count,
    check_inputs,
    check_length,
    count_characters,
    describe_cost,
    estimate_tokens,
    require,
    require_operation,
    resolve_layers,
    tokenizer_inputs,
)
from service.operations.maps import check_explain_size
from service.spelling import Remedy

MAX_FILLED = 512
"""Maximum number of positions times layers per request."""
MAX_LOGITS = 2**24
"""Maximum number of logits per request, which limits positions times layers for a large vocabulary."""
PREDICTION = 8
"""The cost of a prediction in a response; see inputs.py."""
PREDICTION_BYTES = 96
TOKEN_CHARACTERS = 64
"""Length of a vocabulary entry assumed in upper bounds on response sizes."""


async def fill_mask(engine: Engine, request: FillMaskRequest, call: Call) -> FillMaskResponse:
    """Return the words that the model predicts for tokens. Requires a model with a masked-LM head."""
    deadline = call.start(engine)
    require_operation(engine, "fill_mask")
    layers = check_fill_mask(engine, request)
    last_only = layers == (engine.manifest.architecture.num_hidden_layers,)
    lane: Lane[Any, Any] = engine.fast_lane if last_only else engine.explain
    sizes = estimate_tokens(count_characters(request.inputs), engine.manifest.max_input_tokens)
    cost = describe_cost(request.inputs) + sum(map(len, request.targets or ()))
    with lane.admit(sizes, deadline, cost) as admitted:
        prepared = await engine.run(cost, deadline, prepare, engine, request, call, layers)
        usage = admitted.tokenized([item.tokens for item in prepared])
        predicted = await admitted.run([make_task(item, None if last_only else layers) for item in prepared])
    count = sum(len(item.query.positions) for item in prepared) * len(layers) * prepared[0].query.count
    results = await engine.run(PREDICTION * count, deadline, build_results, engine, prepared, layers, predicted)
    call.timing = admitted.finish()
    return FillMaskResponse(engine.name, lane.precision, results, usage)


@dataclass(frozen=True, slots=True)
class MaskedInput:
    """A tokenized input, and the query for its positions."""

    tokens: TokenizedInput
    query: WordQuery


def check_fill_mask(engine: Engine, request: FillMaskRequest) -> tuple[int, ...]:
    """Check all fields; return the layers, 0..L."""
    manifest = engine.manifest
    check_inputs(request.inputs, engine.limits, manifest)
    check_at_least_one("top_k", request.top_k)
    if (request.top_k or 1) > MAX_PREDICTIONS:
        raise OutOfRange(
            "out of range",
            f"Use 1 to {MAX_PREDICTIONS}.",
            field="top_k",
            actual=request.top_k,
            minimum=1,
            maximum=MAX_PREDICTIONS,
        )
    if request.targets is not None:
        check_count(len(request.targets), "targets", MAX_TARGETS)
    if request.position is not None and not 0 <= request.position < manifest.max_input_tokens:
        raise OutOfRange(
            "out of range", "Send the index of a token, as in Tokenize.",
            field="position", actual=request.position, minimum=0, maximum=manifest.max_input_tokens - 1,
        )  # fmt: skip
    layers = resolve_layers(request.layers, manifest)
    if layers != (manifest.architecture.num_hidden_layers,):
        require(manifest.explain, "only the last layer is supported for this model", "layers")
    return layers


@dataclass(frozen=True, slots=True)
class WordTask:
    """One tokenized input of the explain lane, for words at the layers `layers`, 0..L."""

    tokens: TokenizedInput
    query: WordQuery
    layers: tuple[int, ...]

    def compute(self, hidden: Floats, model: ModelParts) -> list[PredictedWords]:
        """Return the words of each layer; `hidden` is (L+1, T, D)."""
        assert model.predict is not None  # checked with the request
        last = len(hidden) - 1
        return [model.predict(hidden[layer], self.query, last_layer=layer == last) for layer in self.layers]


def make_task(item: MaskedInput, layers: tuple[int, ...] | None) -> "EncodeTask | WordTask":
    """Return an input's task for the last layer, or for the layers in the explain lane."""
    if layers is None:
        return EncodeTask(item.tokens, None, hidden=False, heads=("masked_lm",), words=item.query)
    return WordTask(item.tokens, item.query, layers)


def prepare(engine: Engine, request: FillMaskRequest, call: Call, layers: Sequence[int]) -> list[MaskedInput]:
    """Tokenize the inputs and targets, and find the positions to predict."""
    targets = None if request.targets is None else find_targets(engine, request.targets)
    count = request.top_k or (DEFAULT_PREDICTIONS if targets is None else len(targets))
    query = WordQuery((), count if targets is None else min(count, len(targets)), targets)
    prepared, filled = [], 0
    tokenizer = engine.mask_tokenizer or engine.tokenizer
    for index, tokens in enumerate(tokenizer.encode_each(tokenizer_inputs(request.inputs))):
        kept = check_length(tokens, engine.manifest, request.truncation, f"inputs[{index}]")
        positions = find_positions(kept, request.position, engine, index)
        prepared.append(MaskedInput(kept, replace(query, positions=positions)))
        filled += len(positions) * len(layers)
    limit = min(MAX_FILLED, MAX_LOGITS // engine.manifest.architecture.vocab_size)
    if filled > limit:
        remedy = "Send fewer inputs" + (" or masks" if request.position is None else "")
        raise RequestTooLarge(
            "too many positions times layers", f"{remedy}{', or request fewer layers' if len(layers) > 1 else ''}.",
            field="inputs", actual=filled, maximum=limit, reason="TOO_MANY",
        )  # fmt: skip
    if len(layers) > 1 or layers[0] != engine.manifest.architecture.num_hidden_layers:
        check_explain_size(engine, [len(item.tokens) for item in prepared], maps=False)
    size = RESULT_BYTES * len(prepared) + call.returned_bytes
    size += filled * query.count * (PREDICTION_BYTES + JSON_CHARACTER_BYTES * TOKEN_CHARACTERS)
    engine.check_response_size(size, len(prepared), lambda: Remedy("Send fewer inputs or a smaller {top_k}"))
    return prepared


def find_positions(tokens: TokenizedInput, position: int | None, engine: Engine, index: int) -> tuple[int, ...]:
    """Return the positions to predict in the input at this index."""
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


def find_targets(engine: Engine, targets: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of the targets. Raises a `ServiceError` if a target is not a single token."""
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
    engine: Engine,
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


def describe_words(engine: Engine, words: PredictedWords | None) -> list[list[Prediction]]:
    """Return the predictions of each position."""
    assert words is not None
    rows = []
    for ids, probabilities in zip(words.token_ids.tolist(), words.probabilities, strict=True):
        texts = engine.tokenizer.vocabulary_texts(ids)
        values = [shortest(value) for value in probabilities]
        rows.append([Prediction(*row) for row in zip(texts, ids, values, strict=True)])
    return rows
