"""The native door's explanations: /v1/attend and /v1/compare, as API.md section 1."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import TypeAdapter

from model.artifact import Kind
from service.config import Settings
from service.engine.schema.encode import Array, MapDType, Truncation
from service.engine.schema.explain import (
    DRAWS_ON,
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
from service.lifecycle import Lifecycle
from service.rest.inputs import Encoding, Inputs, inputs_of, tensor
from service.rest.wire import StrictModel, answer, body_of, deadline_of, marks, read_json, while_connected


class AttendBody(StrictModel):
    """What POST /v1/attend takes."""

    model: str | None = None
    inputs: Inputs
    kind: Kind = "probs"
    layers: Literal["all"] | list[int] = "all"
    heads: Literal["all"] | list[int] = "all"
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
    span: tuple[int, int] | None = None
    word: int | None = None


class CompareBody(StrictModel):
    """What POST /v1/compare takes."""

    model: str | None = None
    occurrences: Sequence[OccurrenceBody]
    layers: Literal["all"] | list[int] = "all"
    draws_on: int = DRAWS_ON


ATTEND = TypeAdapter(AttendBody)
COMPARE = TypeAdapter(CompareBody)
BODIES = (AttendBody, CompareBody)


def make_router(host: Lifecycle, settings: Settings) -> APIRouter:
    """The routes of this door."""
    router = APIRouter(tags=["native"])

    @router.post("/v1/attend", openapi_extra=body_of(AttendBody))
    async def attend(request: Request) -> Response:
        """Attention maps of the inputs: which units each unit takes from."""
        body = await read_json(request, ATTEND, settings)
        engine = host.engine
        asked = _attend_request(body, deadline_of(request))
        found = await while_connected(request, asyncio.ensure_future(engine.attend(asked)))
        return await answer(request, await _render(found, body.encoding), marks(found, engine.info.digest))

    @router.post("/v1/compare", openapi_extra=body_of(CompareBody))
    async def compare(request: Request) -> Response:
        """One word in several texts: contextual and static similarity in each layer."""
        body = await read_json(request, COMPARE, settings)
        engine = host.engine
        asked = _compare_request(body, deadline_of(request))
        found = await while_connected(request, asyncio.ensure_future(engine.compare(asked)))
        return await answer(request, _render_comparison(found), marks(found, engine.info.digest))

    return router


def _attend_request(body: AttendBody, deadline: float | None) -> AttendRequest:
    return AttendRequest(
        inputs=inputs_of(body.inputs),
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
        occurrences=tuple(Occurrence(each.text, each.span, each.word) for each in body.occurrences),
        model=body.model,
        layers=_chosen(body.layers),
        draws_on=body.draws_on,
        deadline=deadline,
    )


def _chosen(numbers: Literal["all"] | Sequence[int]) -> tuple[int, ...] | None:
    return None if numbers == "all" else tuple(numbers)


async def _render(found: AttendResponse, encoding: Encoding) -> bytes:
    """As JSON, map by map: the loop turns between them, for together they may take a second."""
    results = []
    for result in found.results:
        maps = []
        for each in result.maps:
            maps.append(orjson.Fragment(_dump(_map(each, result, encoding))))
            await asyncio.sleep(0)
        results.append(
            {
                "truncated": result.truncated,
                "units": result.units,
                "rows": result.rows,
                "columns": result.columns,
                "maps": maps,
            }
        )
    return _dump({"model": found.model, "precision": found.precision, "results": results})


def _map(found: AttentionMap, result: AttendResult, encoding: Encoding) -> dict[str, Any]:
    body: dict[str, Any] = {"layer": found.layer, "head": found.head}
    if found.matrix is not None:
        body["matrix"] = _spell(found.matrix, encoding)
    if found.sparse is not None:
        body["matrix"] = _sparse(found.sparse, encoding)
    body["excluded_mass"] = _values(found.excluded_mass)
    body["bias_share"] = _values(found.bias_share)
    body["no_mass_rows"] = found.no_mass_rows
    return body


def _sparse(found: SparseMatrix, encoding: Encoding) -> dict[str, Any]:
    """Lists of each row's entries; values in base64 are one array of all rows, in the order of the indices."""
    starts = found.row_starts
    rows = [slice(start, end) for start, end in pairwise(starts)]
    return {
        "indices": [found.indices[row] for row in rows],
        "values": [found.values.values[row] for row in rows] if encoding == "float" else tensor(found.values),
        "rest_mass": found.rest_mass.values,
    }


def _render_comparison(found: CompareResponse) -> bytes:
    return _dump(
        {
            "model": found.model,
            "precision": found.precision,
            "occurrences": found.occurrences,
            "static": found.static.values,
            "layers": [
                {"layer": each.layer, "cosine": each.cosine.values, "centered": each.centered.values}
                for each in found.layers
            ],
        }
    )


def _spell(array: Array, encoding: Encoding) -> Any:
    return array.values if encoding == "float" else tensor(array)


def _values(array: Array | None) -> Any:
    return None if array is None else array.values


def _dump(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
