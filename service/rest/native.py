"""The native door: /v1/encode, /v1/tokenize, /v1/model, as API.md section 1."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import TypeAdapter

from model.artifact import Pooling
from service.config import Settings
from service.engine.schema.encode import (
    Array,
    DType,
    EncodeRequest,
    EncodeResponse,
    EncodeResult,
    LayerReduce,
    Output,
    TokenizeRequest,
    Truncation,
)
from service.lifecycle import Lifecycle
from service.rest.inputs import Encoding, Inputs, inputs_of, tensor
from service.rest.wire import (
    StrictModel,
    answer,
    body_of,
    deadline_of,
    marks,
    read_json,
    while_connected,
)

NAME = "rest"
ENCODE_PATH = "/v1/encode"


class EncodeBody(StrictModel):
    """What POST /v1/encode takes."""

    model: str | None = None
    inputs: Inputs
    outputs: Sequence[Output] = ("pooled",)
    layers: Sequence[int] = (-1,)
    layer_reduce: LayerReduce = "concat"
    pooling: Pooling | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    truncation: Truncation = "error"
    encoding: Encoding = "float"
    dtype: DType = "float32"


class TokenizeBody(StrictModel):
    """What POST /v1/tokenize takes."""

    model: str | None = None
    inputs: Inputs


ENCODE = TypeAdapter(EncodeBody)
TOKENIZE = TypeAdapter(TokenizeBody)
BODIES = (EncodeBody, TokenizeBody)


def is_for_fast_lane(body: bytes) -> bool:
    """Whether a body of /v1/encode asks for the last layer alone, told without parsing it."""
    return b'"layers"' not in body


def make_router(host: Lifecycle, settings: Settings) -> APIRouter:
    """The routes of this door."""
    router = APIRouter(tags=["native"])

    @router.post(ENCODE_PATH, openapi_extra=body_of(EncodeBody))
    async def encode(request: Request) -> Response:
        """Vectors of the inputs: pooled, of tokens, words or spans, static."""
        body = await read_json(request, ENCODE, settings)
        engine = host.engine
        asked = _encode_request(body, deadline_of(request))
        found = await while_connected(request, asyncio.ensure_future(engine.encode(asked)))
        return await answer(request, _render(found, body.encoding), marks(found, engine.info.digest))

    @router.post("/v1/tokenize", openapi_extra=body_of(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """The tokens and words of each input, whole."""
        body = await read_json(request, TOKENIZE, settings)
        found = await host.engine.tokenize(TokenizeRequest(inputs_of(body.inputs), body.model))
        return await answer(request, orjson.dumps(found))

    @router.get("/v1/model")
    async def model(request: Request) -> Response:
        """What is served: facts, digest, precision and limits."""
        return await answer(request, orjson.dumps(asdict(host.engine.info)))

    return router


def _encode_request(body: EncodeBody, deadline: float | None) -> EncodeRequest:
    return EncodeRequest(
        inputs=inputs_of(body.inputs),
        model=body.model,
        outputs=tuple(body.outputs),
        layers=tuple(body.layers),
        layer_reduce=body.layer_reduce,
        pooling=body.pooling,
        normalize=body.normalize,
        dimensions=body.dimensions,
        truncation=body.truncation,
        dtype=body.dtype,
        wire="json" if body.encoding == "float" else "base64",
        deadline=deadline,
    )


def _render(found: EncodeResponse, encoding: Encoding) -> bytes:
    return orjson.dumps(
        {
            "model": found.model,
            "precision": found.precision,
            "results": [_result(result, encoding) for result in found.results],
            "usage": {"tokens": found.token_count, "truncated_inputs": found.truncated_inputs},
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _result(result: EncodeResult, encoding: Encoding) -> dict[str, Any]:
    body: dict[str, Any] = {"token_count": result.token_count, "truncated": result.truncated}
    for name in ("tokens", "words"):
        if (listed := getattr(result, name)) is not None:
            body[name] = listed
    for name in ("pooled", "token_vectors", "word_vectors", "span_vectors", "static_vectors"):
        array: Array | None = getattr(result, name)
        if array is not None:
            body[name] = array.values if encoding == "float" else tensor(array)
    return body
