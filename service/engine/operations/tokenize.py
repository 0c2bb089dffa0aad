"""Tokenize and decode: tokens of texts, and texts of token ids."""

from typing import TYPE_CHECKING

from service.engine.admission import CHARACTERS_PER_TOKEN, count_characters
from service.engine.encode.alignment import describe_tokens, words_of
from service.engine.encode.sizes import JSON_CHARACTER_BYTES, listed_bytes
from service.engine.operations.costs import describe_cost
from service.engine.operations.inputs import SPLIT, check_count, check_inputs, check_token_ids
from service.engine.schema.decode import DecodeRequest
from service.engine.schema.encode import TokenizeRequest, TokenizeResponse, TokenizeResult
from service.spelling import Remedy

if TYPE_CHECKING:
    from service.engine.engine import Engine


async def tokenize(engine: "Engine", request: TokenizeRequest, deadline: float) -> TokenizeResponse:
    """Return tokens and words of the inputs, untruncated."""
    check_inputs(request.inputs, engine.limits, engine.manifest, split=SPLIT)
    with engine.tokenizer_admission.reserve(sum(map(count_characters, request.inputs)), deadline):
        results = await engine.run(describe_cost(request.inputs), deadline, list_tokens, engine, request)
    return TokenizeResponse(engine.name, results)


def list_tokens(engine: "Engine", request: TokenizeRequest) -> list[TokenizeResult]:
    """Return the tokens and words of the inputs."""
    results, size = [], 0
    for item in request.inputs:  # one at a time, to stop as soon as the response exceeds the limit
        (tokens,) = engine.tokenizer.encode([item.source])
        words = words_of(tokens)
        described = describe_tokens(tokens, engine.tokenizer.token_texts(tokens), words)
        size += listed_bytes((*described, *words), request.wire)
        engine.check_response_size(size, len(request.inputs), lambda: Remedy("Send fewer inputs"))
        results.append(TokenizeResult(len(tokens), described, words))
    return results


async def decode(engine: "Engine", request: DecodeRequest, deadline: float) -> list[str]:
    """Return the texts of token ids."""
    check_count(len(request.token_ids), "token_ids", engine.limits.max_inputs)
    for index, ids in enumerate(request.token_ids):
        check_token_ids(ids, f"token_ids[{index}]", engine.limits, engine.manifest)
    characters = CHARACTERS_PER_TOKEN * sum(map(len, request.token_ids))
    with engine.tokenizer_admission.reserve(characters, deadline):
        return await engine.run(characters, deadline, decode_all, engine, request)


def decode_all(engine: "Engine", request: DecodeRequest) -> list[str]:
    """Return the texts of the token ids."""
    texts, size = [], 0
    for token_ids in request.token_ids:
        text = engine.tokenizer.decode(token_ids, skip_special_tokens=request.skip_special_tokens)
        size += len(text) * JSON_CHARACTER_BYTES
        engine.check_response_size(size, len(request.token_ids), lambda: Remedy("Send fewer lists"))
        texts.append(text)
    return texts
