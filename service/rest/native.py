"""The native door: /v1/encode, /v1/tokenize, /v1/model, as API.md section 1."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import Discriminator, Tag, TypeAdapter

from model.artifact import Pooling
from model.tokenizer import Source
from service.config import Settings
from service.engine.host import Host
from service.engine.requests import (
    Array,
    DType,
    EncodeRequest,
    EncodeResponse,
    EncodeResult,
    Input,
    LayerReduce,
    Output,
    TokenizeRequest,
    Truncation,
)
from service.errors import Invalid, NotOffered
from service.rest.wire import (
    OBJECT_BRANCH,
    TEXT_BRANCH,
    StrictModel,
    answer,
    body_of,
    deadline_of,
    marks,
    read_json,
    while_connected,
)

NAME = "rest"


class InputBody(StrictModel):
    """A text, a pair of texts, or token ids without special tokens."""

    text: str | None = None
    pair: str | None = None
    spans: list[tuple[int, int]] | None = None
    token_ids: list[int] | None = None


def _branch(value: object) -> str:
    return TEXT_BRANCH if isinstance(value, str) else OBJECT_BRANCH


Element = Annotated[Annotated[str, Tag(TEXT_BRANCH)] | Annotated[InputBody, Tag(OBJECT_BRANCH)], Discriminator(_branch)]


class EncodeBody(StrictModel):
    """What POST /v1/encode takes."""

    model: str | None = None
    inputs: str | list[Element]
    outputs: Sequence[Output] = ("pooled",)
    layers: Sequence[int] = (-1,)
    layer_reduce: LayerReduce = "concat"
    pooling: Pooling | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    truncation: Truncation = "error"
    encoding: Literal["float", "base64"] = "float"
    dtype: DType = "float32"


class TokenizeBody(StrictModel):
    """What POST /v1/tokenize takes."""

    model: str | None = None
    inputs: str | list[Element]


ENCODE = TypeAdapter(EncodeBody)
TOKENIZE = TypeAdapter(TokenizeBody)
BODIES = (EncodeBody, TokenizeBody)


def make_router(host: Host, settings: Settings) -> APIRouter:
    """The routes of this door."""
    router = APIRouter(tags=["native"])

    @router.post("/v1/encode", openapi_extra=body_of(EncodeBody))
    async def encode(request: Request) -> Response:
        """Vectors of the inputs: pooled, of tokens, words or spans, static."""
        body = await read_json(request, ENCODE, settings)
        engine = host.engine
        asked = _encode_request(body, deadline_of(request))
        found = await while_connected(request, asyncio.ensure_future(engine.encode(asked)))
        return await answer(request, _render(found, body.encoding), marks(found, engine.facts.digest))

    @router.post("/v1/tokenize", openapi_extra=body_of(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """The tokens and words of each input, whole."""
        body = await read_json(request, TOKENIZE, settings)
        found = await host.engine.tokenize(TokenizeRequest(_inputs(body.inputs), body.model))
        return await answer(request, orjson.dumps(found))

    @router.get("/v1/model")
    async def model(request: Request) -> Response:
        """What is served: facts, digest, precision and limits."""
        return await answer(request, orjson.dumps(asdict(host.engine.facts)))

    @router.post("/v1/attend")
    async def attend(request: Request) -> Response:
        """Attention maps; not offered yet."""
        raise NotOffered("Attention maps are not offered by this version.")

    @router.post("/v1/compare")
    async def compare(request: Request) -> Response:
        """One word in several texts; not offered yet."""
        raise NotOffered("Comparing words is not offered by this version.")

    return router


def _encode_request(body: EncodeBody, deadline: float | None) -> EncodeRequest:
    return EncodeRequest(
        inputs=_inputs(body.inputs),
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


def _inputs(inputs: str | list[Element]) -> tuple[Input, ...]:
    if isinstance(inputs, str):
        return (Input(Source(inputs)),)
    return tuple(
        Input(Source(element)) if isinstance(element, str) else _input(element, index)
        for index, element in enumerate(inputs)
    )


def _input(body: InputBody, index: int) -> Input:
    if (body.text is None) == (body.token_ids is None):
        raise Invalid(f"inputs[{index}] must have either text or token_ids.", reason="invalid_field")
    if body.token_ids is not None and body.pair is not None:
        raise Invalid(f"inputs[{index}].pair goes with text, not with token_ids.", reason="invalid_field")
    ids = None if body.token_ids is None else tuple(body.token_ids)
    return Input(Source(body.text or "", body.pair, ids), tuple(body.spans or ()))


def _render(found: EncodeResponse, encoding: Literal["float", "base64"]) -> bytes:
    return orjson.dumps(
        {
            "model": found.model,
            "precision": found.precision,
            "results": [_result(result, encoding) for result in found.results],
            "usage": {"tokens": found.token_count, "truncated_inputs": found.truncated_inputs},
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _result(result: EncodeResult, encoding: Literal["float", "base64"]) -> dict[str, Any]:
    body: dict[str, Any] = {"token_count": result.token_count, "truncated": result.truncated}
    for name in ("tokens", "words"):
        if (listed := getattr(result, name)) is not None:
            body[name] = listed
    for name in ("pooled", "token_vectors", "word_vectors", "span_vectors", "static_vectors"):
        array: Array | None = getattr(result, name)
        if array is not None:
            body[name] = array.values if encoding == "float" else _tensor(array)
    return body


def _tensor(array: Array) -> dict[str, Any]:
    return {"shape": array.shape, "dtype": array.dtype, "data": array.to_base64()}
