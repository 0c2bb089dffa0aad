"""The native API: /v1/encode and /v1/tokenize."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from model.artifact.manifest import Pooling
from service.engine.schema.encode import (
    Array,
    DType,
    EncodeRequest,
    EncodeResult,
    LayerReduce,
    Side,
    TokenizeRequest,
    Truncation,
)
from service.engine.schema.operations import Output
from service.lifecycle import Lifecycle
from service.limits import reject_spans
from service.rest.codec import (
    ENCODING_DESCRIPTION,
    INPUTS_DESCRIPTION,
    MODEL_DESCRIPTION,
    TRUNCATION_DESCRIPTION,
    EncodingFormat,
    FirstError,
    Inputs,
    LayersOrAll,
    StrictModel,
    at_most,
    body_schema,
    to_inputs,
)
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers, tensor, usage_body
from service.rest.schemas import EncodeResponseBody, TokenizeResponseBody, responses
from service.steps import convert

API = "rest"
ENCODE_PATH = "/v1/encode"
POOLED: Any = ("pooled",)
LAST_LAYER: Any = (-1,)
"""Default values. Pydantic would copy a list for each request."""
MODEL_FIELD = re.compile(rb'"model"\s*:\s*"([^"\\]*)"')
"""In valid JSON, quotes within strings are escaped, so this matches fields only."""


class EncodeBody(StrictModel):
    """The body of POST /v1/encode."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    inputs: Inputs = Field(description=INPUTS_DESCRIPTION)
    outputs: Annotated[list[Output], FirstError(), at_most("outputs")] = Field(
        default=POOLED, description="Outputs to return, at least one."
    )
    layers: LayersOrAll = Field(
        default=LAST_LAYER, description="Layers 0 (embedding output) to L, -L-1 to -1 from the end, or `all`."
    )
    layer_reduce: LayerReduce = Field("concat", description="How to combine several layers.")
    pooling: Pooling | None = Field(None, description="How to pool token vectors; null selects the model's pooling.")
    normalize: bool | None = Field(
        None, description="Whether to scale pooled vectors to length 1; null selects the model's setting."
    )
    dimensions: int | None = Field(
        None,
        description="Number of leading components of pooled vectors to return (Matryoshka truncation).",
        json_schema_extra={"minimum": 1},
    )
    truncation: Truncation = Field("error", description=TRUNCATION_DESCRIPTION)
    prompt_name: str | None = Field(
        None, description="Name of a prompt of the model. Mutually exclusive with `prompt`."
    )
    prompt: str | None = Field(None, description="Prompt to prepend to each text. An empty prompt selects none.")
    role: Side | None = Field(
        None,
        description="What the texts are for a model that reads queries and documents differently. It selects the "
        "prompt, and the marker and expansion of the output `multi_vector`.",
    )
    encoding_format: EncodingFormat = Field("float", description=ENCODING_DESCRIPTION)
    dtype: DType = Field("float32", description="Element type. int8 and ubinary are for pooled vectors only.")


class TokenizeBody(StrictModel):
    """The body of POST /v1/tokenize."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    inputs: Inputs = Field(description=INPUTS_DESCRIPTION)


BODIES = (EncodeBody, TokenizeBody)


def is_for_fast_lane(body: bytes) -> bool:
    """Return whether a body asks for the last layer alone, without parsing it."""
    return b'"layers"' not in body


def model_of(body: bytes) -> str | None:
    """Return the model that a JSON body names, without parsing it; None if it names none."""
    match = MODEL_FIELD.search(body)
    return None if match is None else match[1].decode(errors="replace")


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["native"])

    @router.post(
        ENCODE_PATH,
        operation_id="encode",
        summary="Encode",
        responses=responses(EncodeResponseBody),
        openapi_extra=body_schema(EncodeBody),
    )
    async def encode(request: Request) -> Response:
        """Return embeddings of the inputs: pooled, of tokens, words or spans, static."""
        body = await reader.read(request, EncodeBody)
        engine = lifecycle.models.find(body.model)
        response = await engine.encode(_encode_request(body, reader.deadline(request)))
        encoding_format = body.encoding_format
        document = {
            "model": response.model,
            "precision": response.precision,
            "results": await convert(lambda result: _result(result, encoding_format), response.results),
            "usage": usage_body(response.token_count, response.truncated_inputs),
            "prompt_name": None if response.prompt is None else response.prompt.name,
            "prompt": None if response.prompt is None else response.prompt.text,
        }
        headers = metadata_headers(response, engine.info.digest)
        return await json_response(request, document, headers, compress=encoding_format == "float")

    @router.post(
        "/v1/tokenize",
        operation_id="tokenize",
        summary="Tokenize",
        responses=responses(TokenizeResponseBody),
        openapi_extra=body_schema(TokenizeBody),
    )
    async def tokenize(request: Request) -> Response:
        """Return the tokens and words of each input, untruncated."""
        body = await reader.read(request, TokenizeBody)
        inputs = to_inputs(body.inputs)
        reject_spans(inputs)
        deadline = reader.deadline(request)
        engine = lifecycle.models.find(body.model)
        response = await engine.tokenize(TokenizeRequest(inputs, deadline=deadline))
        results = [
            {"token_count": result.token_count, "tokens": result.tokens, "words": result.words}
            for result in response.results
        ]
        document = {"model": response.model, "results": results, "usage": usage_body(response.token_count)}
        return await json_response(request, document)

    return router


def _encode_request(body: EncodeBody, deadline: float | None) -> EncodeRequest:
    return EncodeRequest(
        inputs=to_inputs(body.inputs),
        outputs=tuple(body.outputs),
        layers=None if body.layers == "all" else tuple(body.layers),
        layer_reduce=body.layer_reduce,
        pooling=body.pooling,
        normalize=body.normalize,
        dimensions=body.dimensions,
        truncation=body.truncation,
        prompt_name=body.prompt_name,
        prompt=body.prompt,
        role=body.role,
        dtype=body.dtype,
        wire="json" if body.encoding_format == "float" else "base64",
        deadline=deadline,
    )


def _result(result: EncodeResult, encoding_format: EncodingFormat) -> dict[str, Any]:
    body: dict[str, Any] = {"token_count": result.token_count, "truncated": result.truncated}
    for name in ("tokens", "words", "multi_vector_tokens"):
        if (items := getattr(result, name)) is not None:
            body[name] = items
    for name in ("pooled", "token_vectors", "word_vectors", "span_vectors", "static_vectors", "multi_vector"):
        array: Array | None = getattr(result, name)
        if array is not None:
            body[name] = _array(array, encoding_format)
    if (sparse := result.sparse) is not None:
        weights = _array(sparse.weights, encoding_format)
        body["sparse"] = {"token_ids": sparse.token_ids, "tokens": sparse.tokens, "weights": weights}
    return body


def _array(array: Array, encoding_format: EncodingFormat) -> Any:
    return array.values if encoding_format == "float" else tensor(array)
