"""The native API: /v1/encode, /v1/tokenize, /v1/model."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from model.artifact import Pooling
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
from service.rest.codec import Encoding, FirstError, Inputs, Layers, StrictModel, at_most, body_schema, to_inputs
from service.rest.requests import RequestReader, while_connected
from service.rest.responses import json_response, metadata_headers, tensor

API = "rest"
ENCODE_PATH = "/v1/encode"


class EncodeBody(StrictModel):
    """The body of POST /v1/encode."""

    model: str | None = None
    inputs: Inputs
    outputs: Annotated[list[Output], FirstError(), at_most("outputs")] = Field(default=["pooled"])
    layers: Layers = Field(default=[-1])
    layer_reduce: LayerReduce = "concat"
    pooling: Pooling | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    truncation: Truncation = "error"
    encoding: Encoding = "float"
    dtype: DType = "float32"


class TokenizeBody(StrictModel):
    """The body of POST /v1/tokenize."""

    model: str | None = None
    inputs: Inputs


BODIES = (EncodeBody, TokenizeBody)


def is_for_fast_lane(body: bytes) -> bool:
    """Return whether a body of /v1/encode asks for the last layer alone, without parsing it."""
    return b'"layers"' not in body


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["native"])

    @router.post(ENCODE_PATH, openapi_extra=body_schema(EncodeBody))
    async def encode(request: Request) -> Response:
        """Return embeddings of the inputs: pooled, of tokens, words or spans, static."""
        body = await reader.read(request, EncodeBody)
        engine = lifecycle.engine
        work = engine.encode(_encode_request(body, reader.deadline(request)))
        response = await while_connected(request, asyncio.ensure_future(work))
        headers = metadata_headers(response, engine.info.digest)
        document = _document(response, body.encoding)
        return await json_response(request, document, headers, compress=body.encoding == "float")

    @router.post("/v1/tokenize", openapi_extra=body_schema(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """Return the tokens and words of each input, untruncated."""
        body = await reader.read(request, TokenizeBody)
        deadline = reader.deadline(request)
        work = lifecycle.engine.tokenize(TokenizeRequest(to_inputs(body.inputs), body.model, deadline=deadline))
        response = await while_connected(request, asyncio.ensure_future(work))
        results = [
            {"token_count": result.token_count, "tokens": result.tokens, "words": result.words}
            for result in response.results
        ]
        return await json_response(request, {"model": response.model, "results": results})

    @router.get("/v1/model")
    async def model(request: Request) -> Response:
        """Return the served model: its properties, digest, precision and limits."""
        return await json_response(request, asdict(lifecycle.engine.info))

    return router


def _encode_request(body: EncodeBody, deadline: float | None) -> EncodeRequest:
    return EncodeRequest(
        inputs=to_inputs(body.inputs),
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


def _document(response: EncodeResponse, encoding: Encoding) -> dict[str, Any]:
    return {
        "model": response.model,
        "precision": response.precision,
        "results": [_result(result, encoding) for result in response.results],
        "usage": {"tokens": response.token_count, "truncated_inputs": response.truncated_inputs},
    }


def _result(result: EncodeResult, encoding: Encoding) -> dict[str, Any]:
    body: dict[str, Any] = {"token_count": result.token_count, "truncated": result.truncated}
    for name in ("tokens", "words"):
        if (items := getattr(result, name)) is not None:
            body[name] = items
    for name in ("pooled", "token_vectors", "word_vectors", "span_vectors", "static_vectors"):
        array: Array | None = getattr(result, name)
        if array is not None:
            body[name] = array.values if encoding == "float" else tensor(array)
    return body
