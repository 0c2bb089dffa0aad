"""Attend and Compare: messages as the engine's requests, and its responses as messages."""

from collections.abc import AsyncIterator, Mapping
from typing import get_args

from model.artifact.manifest import KINDS
from service.engine.schema.encode import Array
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
from service.errors import UnknownValue
from service.pb import encoder_pb2 as pb
from service.rpc.codec import TRUNCATIONS, check_count, enum_label, enum_value, tensor, to_inputs, unit_message
from service.steps import convert

# The value of each number of an enum; the first is the default. The proto lists them in the order of the Literals.
ATTENTION_KINDS = ("probs", *KINDS)
HEAD_REDUCES = ("none", *get_args(HeadReduce))
MAP_LAYER_REDUCES = ("none", *get_args(MapLayerReduce))
UNIT_KINDS = ("token", *get_args(UnitKind))
SPECIAL_TOKENS = ("keep", *get_args(SpecialTokens))
SEGMENTS = ("all", *get_args(Segments))
MAP_DTYPES = {
    pb.DTYPE_UNSPECIFIED: "float32",
    pb.DTYPE_FLOAT32: "float32",
    pb.DTYPE_FLOAT16: "float16",
    pb.DTYPE_SQRT_UINT8: "sqrt_uint8",
}


def attend_request(request: pb.AttendRequest, limits: Mapping[str, int], deadline: float | None) -> AttendRequest:
    """Return the engine's request; raises `InvalidArgument` for values that no message should have."""
    for name in ("layers", "heads"):
        check_count(name, len(getattr(request, name)), limits)
    if request.dtype not in MAP_DTYPES:
        raise UnknownValue(
            "not supported for attention maps", "Use DTYPE_FLOAT32, DTYPE_FLOAT16 or DTYPE_SQRT_UINT8.", field="dtype"
        )
    return AttendRequest(
        inputs=to_inputs(request.inputs, limits),
        kind=enum_value(ATTENTION_KINDS, request.kind, "kind"),
        layers=tuple(request.layers) or None,
        heads=tuple(request.heads) or None,
        head_reduce=enum_value(HEAD_REDUCES, request.head_reduce, "head_reduce"),
        layer_reduce=enum_value(MAP_LAYER_REDUCES, request.layer_reduce, "layer_reduce"),
        unit=enum_value(UNIT_KINDS, request.unit, "unit"),
        special_tokens=enum_value(SPECIAL_TOKENS, request.special_tokens, "special_tokens"),
        segments=enum_value(SEGMENTS, request.segments, "segments"),
        top_p=request.top_p if request.HasField("top_p") else None,
        top_k=request.top_k if request.HasField("top_k") else None,
        truncation=enum_value(TRUNCATIONS, request.truncation, "truncation"),
        dtype=MAP_DTYPES[request.dtype],  # type: ignore[arg-type]  # its values are the Literal's
        wire="binary",
        deadline=deadline,
    )


async def attend_responses(response: AttendResponse) -> AsyncIterator[pb.AttendResponse]:
    """Yield the header, then one message per map; each map is freed once its message exists."""
    inputs = await convert(_attend_input_info, response.results)
    usage = pb.Usage(tokens=response.token_count, truncated_inputs=response.truncated_inputs)
    header = pb.AttendHeader(
        model=response.model, precision=enum_label("PRECISION", response.precision), inputs=inputs, usage=usage
    )
    yield pb.AttendResponse(header=header)
    for index, result in enumerate(response.results):
        result.maps.reverse()
        while result.maps:
            yield pb.AttendResponse(map=_map(result.maps.pop(), index))


def compare_request(request: pb.CompareRequest, limits: Mapping[str, int], deadline: float | None) -> CompareRequest:
    """Return the engine's request; raises `InvalidArgument` for values that no message should have."""
    for name in ("occurrences", "layers"):
        check_count(name, len(getattr(request, name)), limits)
    return CompareRequest(
        occurrences=tuple(
            Occurrence(
                item.text,
                (item.span.start, item.span.end) if item.HasField("span") else None,
                item.word_index if item.HasField("word_index") else None,
            )
            for item in request.occurrences
        ),
        layers=tuple(request.layers) or None,
        top_contributors=request.top_contributors if request.HasField("top_contributors") else TOP_CONTRIBUTORS,
        wire="binary",
        deadline=deadline,
    )


def compare_response(response: CompareResponse) -> pb.CompareResponse:
    """Return the response as a message."""
    return pb.CompareResponse(
        model=response.model,
        precision=enum_label("PRECISION", response.precision),
        occurrences=[
            pb.OccurrenceResult(
                text=item.text,
                start=item.start,
                end=item.end,
                contributors=[
                    pb.Contributor(text=word.text, start=word.start, end=word.end, share=word.share)
                    for word in item.contributors
                ],
            )
            for item in response.occurrences
        ],
        static=tensor(response.static),
        layers=[
            pb.LayerSimilarity(layer=layer.layer, cosine=tensor(layer.cosine), centered=tensor(layer.centered))
            for layer in response.layers
        ],
        usage=pb.Usage(tokens=response.token_count),
    )


def _attend_input_info(result: AttendResult) -> pb.AttendInputInfo:
    return pb.AttendInputInfo(
        truncated=result.truncated,
        units=[unit_message(unit) for unit in result.units],
        rows=result.rows,
        columns=result.columns,
        map_count=len(result.maps),
    )


def _map(attention_map: AttentionMap, index: int) -> pb.AttentionMap:
    return pb.AttentionMap(
        input_index=index,
        layer=attention_map.layer,
        head=attention_map.head,
        matrix=tensor(attention_map.matrix),
        sparse=None if attention_map.sparse is None else _sparse(attention_map.sparse),
        excluded_mass=_floats(attention_map.excluded_mass),
        bias_share=_floats(attention_map.bias_share),
        empty_rows=attention_map.empty_rows,
    )


def _sparse(matrix: SparseMatrix) -> pb.SparseMatrix:
    return pb.SparseMatrix(
        indptr=matrix.indptr,
        indices=matrix.indices,
        values=tensor(matrix.values),
        dropped_mass=_floats(matrix.dropped_mass),
    )


def _floats(array: Array | None) -> list[float]:
    return [] if array is None else array.to_list()
