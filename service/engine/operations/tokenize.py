"""Tokenize and decode: tokens of texts, and texts of token ids."""

from service.engine.admission import CHARACTERS_PER_TOKEN, count_characters
from service.engine.encode.alignment import describe_tokens, words_of
from service.engine.encode.response import JSON_CHARACTER_BYTES, listed_bytes
from service.engine.operations.costs import describe_cost
from service.engine.operations.inputs import SPLIT, check_count, check_inputs, check_token_ids
from service.engine.operations.served_model import ServedModel
from service.engine.schema.decode import DecodeRequest
from service.engine.schema.encode import TokenizeRequest, TokenizeResponse, TokenizeResult
from service.spelling import Remedy


async def tokenize(model: ServedModel, request: TokenizeRequest, deadline: float) -> TokenizeResponse:
    """Return tokens and words of the inputs, untruncated."""
    check_inputs(request.inputs, model.limits, model.manifest, split=SPLIT)
    with model.tokenizer_admission.reserve(sum(map(count_characters, request.inputs)), deadline):
        results = await model.run(describe_cost(request.inputs), deadline, list_tokens, model, request)
    return TokenizeResponse(model.name, results)


def list_tokens(model: ServedModel, request: TokenizeRequest) -> list[TokenizeResult]:
    """Return the tokens and words of the inputs."""
    results, size = [], 0
    for item in request.inputs:  # one at a time, to stop as soon as the response exceeds the limit
        (tokens,) = model.tokenizer.encode([item.source])
        words = words_of(tokens)
        described = describe_tokens(tokens, model.tokenizer.token_texts(tokens), words)
        size += listed_bytes((*described, *words), request.wire)
        model.check_response_size(size, len(request.inputs), lambda: Remedy("Send fewer inputs"))
        results.append(TokenizeResult(len(tokens), described, words))
    return results


async def decode(model: ServedModel, request: DecodeRequest, deadline: float) -> list[str]:
    """Return the texts of token ids."""
    check_count(len(request.token_ids), "token_ids", model.limits.max_inputs)
    for index, ids in enumerate(request.token_ids):
        check_token_ids(ids, f"token_ids[{index}]", model.limits, model.manifest)
    characters = CHARACTERS_PER_TOKEN * sum(map(len, request.token_ids))
    with model.tokenizer_admission.reserve(characters, deadline):
        return await model.run(characters, deadline, decode_all, model, request)


def decode_all(model: ServedModel, request: DecodeRequest) -> list[str]:
    """Return the texts of the token ids."""
    texts, size = [], 0
    for token_ids in request.token_ids:
        text = model.tokenizer.decode(token_ids, skip_special_tokens=request.skip_special_tokens)
        size += len(text) * JSON_CHARACTER_BYTES
        model.check_response_size(size, len(request.token_ids), lambda: Remedy("Send fewer lists"))
        texts.append(text)
    return texts
