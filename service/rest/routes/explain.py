"""The native API of attention maps and comparisons: /v1/attend and /v1/compare."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response

from model.artifact import Kind
from service.engine.schema.encode import Array, MapDType, Truncation
from service.engine.schema.explain import (
    DRAWS_ON,
    AttendRequest,
    AttendResponse,
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
from service.lifecycle import Lifecycle
from service.rest.codec import (
    Encoding,
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
from service.rest.requests import RequestReader, while_connected
from service.rest.responses import json_response, metadata_headers, tensor


class AttendBody(StrictModel):
    """The body of POST /v1/attend."""

    model: str | None = None
    inputs: Inputs
    kind: Kind = "probs"
    layers: LayersOrAll = "all"
    heads: HeadsOrAll = "all"
    head_reduce: HeadReduce = "none"
    layer_reduce: MapLayerReduce = "none"
    unit: UnitKind = "token"
    special: SpecialTokens = "keep"
    segments: Segments = "all"
    top_p: float | None = None
    top_k: int | None = None
    decimals: int | None = None
    truncation: Truncation = "error"
    encoding: Encoding = "float"
    dtype: MapDType = "float32"


class OccurrenceBody(StrictModel):
    """One use of a word: a text, and a range of its characters or the index of one of its words."""

    text: str
    span: Span | None = None
    word: int | None = None


class CompareBody(StrictModel):
    """The body of POST /v1/compare."""

    model: str | None = None
    occurrences: Annotated[
        list[OccurrenceBody],
        FirstError(),
        at_most("occurrences"),
    ]
    layers: LayersOrAll = "all"
    draws_on: int = DRAWS_ON


BODIES = (AttendBody, CompareBody)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["native"])

    @router.post("/v1/attend", openapi_extra=body_schema(AttendBody))
    async def attend(request: Request) -> Response:
        """Return attention maps of the inputs."""
        body = await reader.read(request, AttendBody)
        engine = lifecycle.engine
        work = engine.attend(_attend_request(body, reader.deadline(request)))
        response = await while_connected(request, asyncio.ensure_future(work))
        headers = metadata_headers(response, engine.info.digest)
        document = _document(response, body.encoding)
        return await json_response(request, document, headers, compress=body.encoding == "float")

    @router.post("/v1/compare", openapi_extra=body_schema(CompareBody))
    async def compare(request: Request) -> Response:
        """Return how similar a word is to itself in several texts, contextual and static, per layer."""
        body = await reader.read(request, CompareBody)
        engine = lifecycle.engine
        work = engine.compare(_compare_request(body, reader.deadline(request)))
        response = await while_connected(request, asyncio.ensure_future(work))
        return await json_response(request, _comparison(response), metadata_headers(response, engine.info.digest))

    return router


def _attend_request(body: AttendBody, deadline: float | None) -> AttendRequest:
    return AttendRequest(
        inputs=to_inputs(body.inputs),
        model=body.model,
        kind=body.kind,
        layers=_chosen(body.layers),
        heads=_chosen(body.heads),
        head_reduce=body.head_reduce,
        layer_reduce=body.layer_reduce,
        unit=body.unit,
        special=body.special,
        segments=body.segments,
        top_p=body.top_p,
        top_k=body.top_k,
        decimals=body.decimals,
        truncation=body.truncation,
        dtype=body.dtype,
        wire="json" if body.encoding == "float" else "base64",
        deadline=deadline,
    )


def _compare_request(body: CompareBody, deadline: float | None) -> CompareRequest:
    return CompareRequest(
        occurrences=tuple(
            Occurrence(item.text, None if item.span is None else (item.span[0], item.span[1]), item.word)
            for item in body.occurrences
        ),
        model=body.model,
        layers=_chosen(body.layers),
        draws_on=body.draws_on,
        deadline=deadline,
    )


def _chosen(numbers: Literal["all"] | Sequence[int]) -> tuple[int, ...] | None:
    return None if numbers == "all" else tuple(numbers)


def _document(response: AttendResponse, encoding: Encoding) -> dict[str, Any]:
    results = [
        {
            "truncated": result.truncated,
            "units": result.units,
            "rows": result.rows,
            "columns": result.columns,
            "maps": [_map(attention_map, encoding) for attention_map in result.maps],
        }
        for result in response.results
    ]
    return {"model": response.model, "precision": response.precision, "results": results}


def _map(attention_map: AttentionMap, encoding: Encoding) -> dict[str, Any]:
    body: dict[str, Any] = {"layer": attention_map.layer, "head": attention_map.head}
    if attention_map.matrix is not None:
        matrix = attention_map.matrix
        body["matrix"] = matrix.values if encoding == "float" else tensor(matrix)
    if attention_map.sparse is not None:
        body["matrix"] = _sparse(attention_map.sparse, encoding)
    body["excluded_mass"] = _values(attention_map.excluded_mass)
    body["bias_share"] = _values(attention_map.bias_share)
    body["no_mass_rows"] = attention_map.no_mass_rows
    return body


def _sparse(matrix: SparseMatrix, encoding: Encoding) -> dict[str, Any]:
    """Return lists of each row's entries; values in base64 are one array of all rows, in the order of the indices."""
    rows = [slice(start, end) for start, end in pairwise(matrix.row_starts)]
    return {
        "indices": [matrix.indices[row] for row in rows],
        "values": [matrix.values.values[row] for row in rows] if encoding == "float" else tensor(matrix.values),
        "rest_mass": matrix.rest_mass.values,
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
    }


def _values(array: Array | None) -> Any:
    return None if array is None else array.values
