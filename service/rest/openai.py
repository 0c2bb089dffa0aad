"""The OpenAI door: /v1/embeddings and /v1/models, to the letter of that API."""

import asyncio
from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import TypeAdapter

from model.tokenizer import Source
from service.config import Settings
from service.engine.schema.encode import Array, EncodeRequest, EncodeResponse, Input
from service.errors import InvalidArgument, MalformedRequest, NotFound, ServiceError, Unauthenticated
from service.lifecycle import Lifecycle
from service.rest.wire import StrictModel, answer, body_of, deadline_of, marks, read_json, while_connected

NAME = "openai"
EMBEDDINGS_PATH = "/v1/embeddings"
PATHS = (EMBEDDINGS_PATH, "/v1/models")
MAX_INPUTS = 2048

ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class EmbeddingsBody(StrictModel):
    """What POST /v1/embeddings takes."""

    input: str | list[str] | list[int] | list[list[int]]
    model: str
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


EMBEDDINGS = TypeAdapter(EmbeddingsBody)
BODIES = (EmbeddingsBody,)


def make_router(host: Lifecycle, settings: Settings) -> APIRouter:
    """The routes of this door."""
    router = APIRouter(tags=["openai"])

    @router.post(EMBEDDINGS_PATH, openapi_extra=body_of(EmbeddingsBody))
    async def embeddings(request: Request) -> Response:
        """One vector for each input."""
        body = await read_json(request, EMBEDDINGS, settings)
        engine = host.engine
        asked = EncodeRequest(
            inputs=_inputs(body.input),
            model=body.model,
            dimensions=body.dimensions,
            wire="base64" if body.encoding_format == "base64" else "json",
            deadline=deadline_of(request),
            field="input",
            max_inputs=MAX_INPUTS,
            too_long_hint="Split it, or use /v1/encode, which can cut it.",
        )
        found = await while_connected(request, asyncio.ensure_future(engine.encode(asked)))
        headers = marks(found, engine.info.digest)
        return await answer(request, _render(found, body.encoding_format), headers)

    @router.get("/v1/models")
    async def models(request: Request) -> Response:
        """The one model that is served, and its aliases."""
        facts = host.engine.info
        listed = [_model(name) for name in (facts.name, *facts.aliases)]
        return await answer(request, orjson.dumps({"object": "list", "data": listed}))

    @router.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> Response:
        """One model."""
        facts = host.engine.info
        if name != facts.name and name not in facts.aliases:
            raise NotFound(f"The model is not served here. The model is {facts.name}.", reason="model_not_found")
        return await answer(request, orjson.dumps(_model(name)))

    return router


def render_error(error: ServiceError, request_id: str) -> bytes:
    """OpenAI's error body; its `param` is the field at the head of our message, when there is one."""
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
    """OpenAI answers 400 to whatever is wrong with a request's content."""
    return MalformedRequest.http_status if isinstance(error, InvalidArgument) else error.http_status


def _inputs(given: str | list[str] | list[int] | list[list[int]]) -> tuple[Input, ...]:
    if isinstance(given, str):
        return (Input(Source(given)),)
    if given and isinstance(given[0], int):
        return (Input(Source(token_ids=tuple(given))),)
    return tuple(
        Input(Source(element) if isinstance(element, str) else Source(token_ids=tuple(element)))  # type: ignore[arg-type]
        for element in given
    )


def _render(found: EncodeResponse, encoding: Literal["float", "base64"] | None) -> bytes:
    return orjson.dumps(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _embedding(result.pooled, encoding)}
                for index, result in enumerate(found.results)
            ],
            "model": found.model,
            "usage": {"prompt_tokens": found.token_count, "total_tokens": found.token_count},
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _embedding(array: Array | None, encoding: Literal["float", "base64"] | None) -> Any:
    assert array is not None
    return array.to_base64() if encoding == "base64" else array.values


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "attendant"}
