"""Tokenize and decode: tokens of texts, and texts of token ids."""

from collections.abc import Sequence

from attendant_client.types import TokenizeRequest, TokenizeResponse, TokenizeResult, Usage

from service.engine.engine import Engine
from service.engine.scheduling import CHARACTERS_PER_TOKEN
from service.operations.inputs import (
    JSON_CHARACTER_BYTES,
    SPLIT,
    Call,
    check_count,
    check_inputs,
    check_token_ids,
    count_characters,
    describe_cost,
    listed_bytes,
    tokenizer_inputs,
)
from service.operations.units import describe_tokens, words_of
from service.spelling import Remedy


async def tokenize(engine: Engine, request: TokenizeRequest, call: Call) -> TokenizeResponse:
    """Return the tokens and words of each input, untruncated."""
    deadline = call.start(engine)
    check_inputs(request.inputs, engine.limits, engine.manifest, split=SPLIT)
    with engine.tokenizer_admission.reserve(sum(count_characters(request.inputs)), deadline):
        results = await engine.run(describe_cost(request.inputs), deadline, list_tokens, engine, request, call)
    return TokenizeResponse(engine.name, results, Usage(sum(result.token_count for result in results)))


def list_tokens(engine: Engine, request: TokenizeRequest, call: Call) -> list[TokenizeResult]:
    """Return the tokens and words of the inputs."""
    results, size = [], 0
    for source in tokenizer_inputs(request.inputs):  # one at a time, to stop once the response exceeds the limit
        (tokens,) = engine.tokenizer.encode([source])
        words = words_of(tokens)
        described = describe_tokens(tokens, engine.tokenizer.token_texts(tokens), words)
        size += listed_bytes((*described, *words), call.wire)
        engine.check_response_size(size, len(request.inputs), lambda: Remedy("Send fewer inputs"))
        results.append(TokenizeResult(len(tokens), described, words))
    return results


async def decode(
    engine: Engine, token_ids: Sequence[Sequence[int]], call: Call, *, skip_special_tokens: bool = True
) -> list[str]:
    """Return the text of each sequence of token ids."""
    deadline = call.start(engine)
    check_count(len(token_ids), "token_ids", engine.limits.max_inputs)
    for index, ids in enumerate(token_ids):
        check_token_ids(ids, f"token_ids[{index}]", engine.limits, engine.manifest)
    characters = CHARACTERS_PER_TOKEN * sum(map(len, token_ids))
    with engine.tokenizer_admission.reserve(characters, deadline):
        return await engine.run(characters, deadline, decode_all, engine, token_ids, skip_special_tokens)


def decode_all(engine: Engine, token_ids: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
    """Return the texts of the token ids."""
    texts, size = [], 0
    for ids in token_ids:
        text = engine.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        size += len(text) * JSON_CHARACTER_BYTES
        engine.check_response_size(size, len(token_ids), lambda: Remedy("Send fewer lists"))
        texts.append(text)
    return texts
