"""Token-classify: the labels of tokens, joined to entities."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from service.engine.admission import count_characters, estimate_tokens
from service.engine.encode.alignment import describe_tokens, words_of
from service.engine.encode.entities import find_entities
from service.engine.encode.sizes import RESULT_BYTES, listed_bytes
from service.engine.observer import Observation
from service.engine.operations.costs import describe_cost
from service.engine.operations.inputs import check_inputs, check_length, require_operation
from service.engine.schema.encode import Token
from service.engine.schema.entities import TokenClassifyRequest, TokenClassifyResponse, TokenClassifyResult
from service.engine.schema.tasks import EncodeTask, TextVectors
from service.errors import ConflictingFields
from service.spelling import Remedy, named

if TYPE_CHECKING:
    from model.artifact.tokenizer import TokenizedInput
    from service.engine.engine import Engine


async def token_classify(engine: "Engine", request: TokenClassifyRequest, deadline: float) -> TokenClassifyResponse:
    """Return the entities of the inputs."""
    require_operation(engine.manifest, "token_classify")
    check_inputs(request.inputs, engine.limits, engine.manifest)
    check_words(request)
    lane = engine.fast_lane
    sizes = estimate_tokens(map(count_characters, request.inputs), engine.manifest.max_input_tokens)
    cost = describe_cost(request.inputs)
    observation = Observation(lane.observer)
    with lane.reserve(sizes, deadline):
        inputs = await engine.run(cost, deadline, prepare, engine, request)
        token_count, truncated = observation.tokenized([tokens for tokens, _ in inputs])
        tasks = [EncodeTask(tokens, None, hidden=False, heads=("token_classification",)) for tokens, _ in inputs]
        job = lane.submit(tasks, deadline)
    vectors = await lane.wait(job)
    observation.ran(job.queue_s, job.batch_size)
    results = await engine.run(cost, deadline, build_results, engine, request, inputs, vectors)
    return TokenClassifyResponse(engine.name, lane.precision, results, token_count, truncated, observation.finish())


def check_words(request: TokenClassifyRequest) -> None:
    """Raise `ConflictingFields` if labels of words are requested for token ids."""
    if request.aggregation in ("none", "simple"):
        return
    for index, item in enumerate(request.inputs):
        if item.source.token_ids is not None:
            raise ConflictingFields(
                f"{named('aggregation', request.aggregation)} is not supported for token_ids",
                f"Use {{aggregation.simple}} or send text in {{inputs}}[{index}].",
                field="aggregation",
            )


def prepare(engine: "Engine", request: TokenClassifyRequest) -> list[tuple["TokenizedInput", list[Token]]]:
    """Tokenize the inputs and list their tokens."""
    prepared, size = [], 0
    tokenized = engine.tokenizer.encode([item.source for item in request.inputs])
    for index, tokens in enumerate(tokenized):
        kept = check_length(tokens, engine.manifest, request.truncation, f"inputs[{index}]")
        described = describe_tokens(kept, engine.tokenizer.token_texts(kept), words_of(kept))
        size += RESULT_BYTES + listed_bytes(described, request.wire)
        prepared.append((kept, described))
    engine.check_response_size(size, len(prepared), lambda: Remedy("Send fewer inputs"))
    return prepared


def build_results(
    engine: "Engine",
    request: TokenClassifyRequest,
    inputs: Sequence[tuple["TokenizedInput", list[Token]]],
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
