"""The OpenAI API: /v1/embeddings and /v1/models."""

import asyncio
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BeforeValidator, Discriminator, Tag
from pydantic_core.core_schema import ValidationInfo

from model.tokenizer import Source
from service.engine.schema.encode import EncodeRequest, EncodeResponse, EncodeResult, Input
from service.errors import InvalidArgument, MalformedRequest, NotFound, ServiceError, Unauthenticated
from service.lifecycle import Lifecycle
from service.rest.codec import FirstError, Integers, StrictModel, TokenIds, body_schema, check_count
from service.rest.problems import IDS_LIST_TAG, IDS_TAG, LIST_TAG, OTHER_TAG
from service.rest.requests import RequestReader, while_connected
from service.rest.responses import Base64, json_response, metadata_headers

API = "openai"
EMBEDDINGS_PATH = "/v1/embeddings"
PATHS = (EMBEDDINGS_PATH, "/v1/models")
MAX_INPUTS = 2048

ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def _branch(value: Any) -> str:
    """Select the kind of `input` by its first item."""
    if not isinstance(value, list):
        return OTHER_TAG
    first = value[0] if value else ""
    if isinstance(first, list):
        return IDS_LIST_TAG
    return IDS_TAG if isinstance(first, int) else LIST_TAG


def _check_input(value: Any, info: ValidationInfo) -> Any:
    """Count inputs, or the ids of the only one."""
    if isinstance(value, list):
        if value and isinstance(value[0], int):
            check_count("token_ids", len(value), info)
        else:
            check_count("inputs", len(value), info)
    return value


OpenAIInput = Annotated[
    Annotated[str, Tag(OTHER_TAG)]
    | Annotated[list[str], FirstError(), Tag(LIST_TAG)]
    | Annotated[Integers, Tag(IDS_TAG)]
    | Annotated[list[TokenIds], FirstError(), Tag(IDS_LIST_TAG)],
    Discriminator(_branch),
    BeforeValidator(_check_input),
]


class EmbeddingsBody(StrictModel):
    """The body of POST /v1/embeddings."""

    input: OpenAIInput
    model: str
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


BODIES = (EmbeddingsBody,)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["openai"])

    @router.post(EMBEDDINGS_PATH, openapi_extra=body_schema(EmbeddingsBody))
    async def embeddings(request: Request) -> Response:
        """Return one embedding per input."""
        body = await reader.read(request, EmbeddingsBody, inputs=MAX_INPUTS)
        engine = lifecycle.engine
        work = engine.encode(
            EncodeRequest(
                inputs=_inputs(body.input),
                model=body.model,
                dimensions=body.dimensions,
                wire="base64" if body.encoding_format == "base64" else "json",
                deadline=reader.deadline(request),
                field="input",
                max_inputs=MAX_INPUTS,
                too_long_hint="Split it, or use /v1/encode, which can cut it.",
            )
        )
        response = await while_connected(request, asyncio.ensure_future(work))
        headers = metadata_headers(response, engine.info.digest)
        document = _document(response, body.encoding_format)
        return await json_response(request, document, headers, compress=body.encoding_format != "base64")

    @router.get("/v1/models")
    async def models(request: Request) -> Response:
        """Return the served model and its aliases."""
        info = lifecycle.engine.info
        data = [_model(name) for name in (info.name, *info.aliases)]
        return await json_response(request, {"object": "list", "data": data})

    @router.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> Response:
        """Return one model."""
        info = lifecycle.engine.info
        if name != info.name and name not in info.aliases:
            raise NotFound(f'model: not found. This server serves "{info.name}".', reason="model_not_found")
        return await json_response(request, _model(name))

    return router


def render_error(error: ServiceError) -> bytes:
    """Return OpenAI's error body; its `param` is the field at the head of the message, if there is one."""
    first = error.message.partition(" ")[0].partition("[")[0].rstrip(":")
    kind = ERROR_TYPES.get(error.http_status, "invalid_request_error" if error.http_status < 500 else "server_error")
    return orjson.dumps(
        {
            "error": {
                "message": error.message,
                "type": kind,
                "param": first if first in EmbeddingsBody.model_fields else None,
                "code": "invalid_api_key" if isinstance(error, Unauthenticated) else error.reason,
            }
        }
    )


def http_status(error: ServiceError) -> int:
    """Return the status of an error; OpenAI's is 400 for all invalid content."""
    return MalformedRequest.http_status if isinstance(error, InvalidArgument) else error.http_status


def _inputs(value: str | list[str] | list[int] | list[list[int]]) -> tuple[Input, ...]:
    """Return the inputs; the validator has seen that all items of a list are of one type."""
    if isinstance(value, str):
        return (Input(Source(value)),)
    ids = tuple(item for item in value if isinstance(item, int))
    if ids:
        return (Input(Source(token_ids=ids)),)
    return tuple(
        Input(Source(item) if isinstance(item, str) else Source(token_ids=tuple(item)))
        for item in value
        if not isinstance(item, int)
    )


def _document(response: EncodeResponse, encoding: Literal["float", "base64"] | None) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _embedding(result, encoding)}
            for index, result in enumerate(response.results)
        ],
        "model": response.model,
        "usage": {"prompt_tokens": response.token_count, "total_tokens": response.token_count},
    }


def _embedding(result: EncodeResult, encoding: Literal["float", "base64"] | None) -> Any:
    assert result.pooled is not None
    return Base64(result.pooled) if encoding == "base64" else result.pooled.values


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "attendant"}
