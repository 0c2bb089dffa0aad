"""The native API of attention maps and comparisons: /v1/attend and /v1/compare."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from model.artifact.manifest import Kind
from service.engine.operations.attend import MAX_DECIMALS
from service.engine.operations.compare import MAX_OCCURRENCES, MIN_OCCURRENCES
from service.engine.schema.encode import Array, MapDType, Truncation
from service.engine.schema.explain import (
    TOP_CONTRIBUTORS,
    AttendRequest,
    AttendResponse,
    AttendResult,
    AttentionMap,
    CompareRequest,
    CompareResponse,
    HeadReduce,
    MapLayerReduce,
    Occurrence,
    Segments,
    SparseMatrix,
    SpecialTokens,
    UnitKind,
)
from service.errors import ConflictingFields
from service.lifecycle import Lifecycle
from service.rest.codec import (
    ENCODING_DESCRIPTION,
    INPUTS_DESCRIPTION,
    MODEL_DESCRIPTION,
    TRUNCATION_DESCRIPTION,
    EncodingFormat,
    FirstError,
    HeadsOrAll,
    Inputs,
    LayersOrAll,
    Span,
    StrictModel,
    at_most,
    body_schema,
    to_inputs,
)
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers, tensor, usage_body
from service.rest.schemas import AttendResponseBody, CompareResponseBody, responses
from service.steps import convert


class AttendBody(StrictModel):
    """The body of POST /v1/attend."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    inputs: Inputs = Field(description=INPUTS_DESCRIPTION)
    kind: Kind = Field("probs", description="Kind of attention map; docs/maps.md has the formulas.")
    layers: LayersOrAll = Field("all", description="Layers 1 to L, -L to -1 from the end, or `all`.")
    heads: HeadsOrAll = Field("all", description="Heads 0 to H-1, or `all`.")
    head_reduce: HeadReduce = Field("none", description="How to combine several heads.")
    layer_reduce: MapLayerReduce = Field("none", description="How to combine several layers.")
    unit: UnitKind = Field("token", description="Units that rows and columns stand for.")
    special_tokens: SpecialTokens = Field("keep", description="What to do with special tokens.")
    segments: Segments = Field("all", description="Segments of a pair to use as rows and columns.")
    top_p: float | None = Field(
        None,
        description="Keep the largest values of each row, as few as reach this fraction of its total magnitude.",
        json_schema_extra={"exclusiveMinimum": 0, "maximum": 1},
    )
    top_k: int | None = Field(
        None,
        description="Keep at most this many of the largest values of each row.",
        json_schema_extra={"minimum": 1},
    )
    decimals: int | None = Field(
        None,
        description="Decimal places of values, with `encoding_format` float.",
        json_schema_extra={"minimum": 1, "maximum": MAX_DECIMALS},
    )
    truncation: Truncation = Field("error", description=TRUNCATION_DESCRIPTION)
    encoding_format: EncodingFormat = Field("float", description=ENCODING_DESCRIPTION)
    dtype: MapDType = Field("float32", description="Element type. sqrt_uint8 requires values from 0 to 1 and base64.")


class OccurrenceBody(StrictModel):
    """A text, and a range of its characters or the index of one of its words."""

    text: str = Field(description="The text.")
    span: Span | None = Field(None, description="Character range `[start, end)`. Mutually exclusive with `word_index`.")
    word_index: int | None = Field(
        None, description="Index of a word in the list that /v1/tokenize returns.", json_schema_extra={"minimum": 0}
    )


class CompareBody(StrictModel):
    """The body of POST /v1/compare."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    occurrences: Annotated[list[OccurrenceBody], FirstError(), at_most("occurrences")] = Field(
        description="Occurrences of a word.",
        json_schema_extra={"minItems": MIN_OCCURRENCES, "maxItems": MAX_OCCURRENCES},
    )
    layers: LayersOrAll = Field(
        "all", description="Layers 0 (embedding output) to L, -L-1 to -1 from the end, or `all`."
    )
    top_contributors: int = Field(
        TOP_CONTRIBUTORS,
        description="Number of top contributing words to return per occurrence.",
        json_schema_extra={"minimum": 0},
    )


BODIES = (AttendBody, CompareBody)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["native"])

    @router.post(
        "/v1/attend",
        operation_id="attend",
        summary="Attend",
        responses=responses(AttendResponseBody),
        openapi_extra=body_schema(AttendBody),
    )
    async def attend(request: Request) -> Response:
        """Return attention maps of the inputs."""
        body = await reader.read(request, AttendBody)
        engine = lifecycle.models.find(body.model)
        work = engine.attend(_attend_request(body, reader.deadline(request)))
        response = await work
        headers = metadata_headers(response, engine.info.digest)
        document = await _document(response, body.encoding_format)
        return await json_response(request, document, headers, compress=body.encoding_format == "float")

    @router.post(
        "/v1/compare",
        operation_id="compare",
        summary="Compare",
        responses=responses(CompareResponseBody),
        openapi_extra=body_schema(CompareBody),
    )
    async def compare(request: Request) -> Response:
        """Return cosine similarities between occurrences of a word in several texts, per layer."""
        body = await reader.read(request, CompareBody)
        engine = lifecycle.models.find(body.model)
        work = engine.compare(_compare_request(body, reader.deadline(request)))
        response = await work
        return await json_response(request, _comparison(response), metadata_headers(response, engine.info.digest))

    return router


def _attend_request(body: AttendBody, deadline: float | None) -> AttendRequest:
    if body.decimals is not None and body.encoding_format != "float":
        raise ConflictingFields('set, but encoding_format is not "float"', "Leave it out.", field="decimals")
    if body.dtype == "sqrt_uint8" and body.encoding_format == "float":
        raise ConflictingFields('"sqrt_uint8" requires encoding_format "base64"', "Set encoding_format.", field="dtype")
    return AttendRequest(
        inputs=to_inputs(body.inputs),
        kind=body.kind,
        layers=_numbers(body.layers),
        heads=_numbers(body.heads),
        head_reduce=body.head_reduce,
        layer_reduce=body.layer_reduce,
        unit=body.unit,
        special_tokens=body.special_tokens,
        segments=body.segments,
        top_p=body.top_p,
        top_k=body.top_k,
        decimals=body.decimals,
        truncation=body.truncation,
        dtype=body.dtype,
        wire="json" if body.encoding_format == "float" else "base64",
        deadline=deadline,
    )


def _compare_request(body: CompareBody, deadline: float | None) -> CompareRequest:
    return CompareRequest(
        occurrences=tuple(
            Occurrence(item.text, None if item.span is None else (item.span[0], item.span[1]), item.word_index)
            for item in body.occurrences
        ),
        layers=_numbers(body.layers),
        top_contributors=body.top_contributors,
        deadline=deadline,
    )


def _numbers(numbers: Literal["all"] | Sequence[int]) -> tuple[int, ...] | None:
    return None if numbers == "all" else tuple(numbers)


async def _document(response: AttendResponse, encoding_format: EncodingFormat) -> dict[str, Any]:
    results = await convert(lambda result: _result(result, encoding_format), response.results)
    usage = usage_body(response.token_count, response.truncated_inputs)
    return {"model": response.model, "precision": response.precision, "results": results, "usage": usage}


def _result(result: AttendResult, encoding_format: EncodingFormat) -> dict[str, Any]:
    return {
        "truncated": result.truncated,
        "units": result.units,
        "rows": result.rows,
        "columns": result.columns,
        "maps": [_map(attention_map, encoding_format) for attention_map in result.maps],
    }


def _map(attention_map: AttentionMap, encoding_format: EncodingFormat) -> dict[str, Any]:
    body: dict[str, Any] = {"layer": attention_map.layer, "head": attention_map.head}
    if attention_map.matrix is not None:
        matrix = attention_map.matrix
        body["matrix"] = matrix.values if encoding_format == "float" else tensor(matrix)
    if attention_map.sparse is not None:
        body["matrix"] = _sparse(attention_map.sparse, encoding_format)
    body["excluded_mass"] = _values(attention_map.excluded_mass)
    body["bias_share"] = _values(attention_map.bias_share)
    body["empty_rows"] = attention_map.empty_rows
    return body


def _sparse(matrix: SparseMatrix, encoding_format: EncodingFormat) -> dict[str, Any]:
    """Return the entries per row; values in base64 are one array over all rows, in the order of the indices."""
    rows = [slice(start, end) for start, end in pairwise(matrix.indptr)]
    return {
        "indices": [matrix.indices[row] for row in rows],
        "values": [matrix.values.values[row] for row in rows] if encoding_format == "float" else tensor(matrix.values),
        "dropped_mass": matrix.dropped_mass.values,
    }


def _comparison(response: CompareResponse) -> dict[str, Any]:
    return {
        "model": response.model,
        "precision": response.precision,
        "occurrences": response.occurrences,
        "static": response.static.values,
        "layers": [
            {"layer": layer.layer, "cosine": layer.cosine.values, "centered": layer.centered.values}
            for layer in response.layers
        ],
        "usage": usage_body(response.token_count),
    }


def _values(array: Array | None) -> Any:
    return None if array is None else array.values
