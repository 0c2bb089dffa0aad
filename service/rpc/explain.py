"""Attend and Compare: their messages as the engine's requests, and its answers as messages."""

from collections.abc import Iterator, Sequence
from typing import get_args

from model.artifact import KINDS
from service.engine.schema.encode import Array
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
from service.errors import InvalidArgument
from service.pb import encoder_pb2 as pb
from service.rpc.inputs import TRUNCATIONS, inputs_of, meaning, tensor

# What each number of an enum means; the first is the default. The proto lists them in the order of the Literals.
ATTENTION_KINDS = ("probs", *KINDS)
HEAD_REDUCES = ("none", *get_args(HeadReduce))
MAP_LAYER_REDUCES = ("none", *get_args(MapLayerReduce))
UNIT_KINDS = ("token", *get_args(UnitKind))
SPECIALS = ("keep", *get_args(SpecialTokens))
SEGMENTS = ("all", *get_args(Segments))
MAP_DTYPES = {
    pb.DTYPE_UNSPECIFIED: "float32",
    pb.DTYPE_FLOAT32: "float32",
    pb.DTYPE_FLOAT16: "float16",
    pb.DTYPE_SQRT_UINT8: "sqrt_uint8",
}


def attend_request(request: pb.AttendRequest, deadline: float | None) -> AttendRequest:
    """Raises `InvalidArgument` for what no message should say."""
    if request.dtype not in MAP_DTYPES:
        raise InvalidArgument("dtype must be DTYPE_FLOAT32, DTYPE_FLOAT16 or DTYPE_SQRT_UINT8.", reason="invalid_field")
    return AttendRequest(
        inputs=inputs_of(request.inputs),
        model=request.model or None,
        kind=meaning(ATTENTION_KINDS, request.kind, "kind"),
        layers=_chosen(request.layers, request.all_layers, "layers"),
        heads=_chosen(request.heads, request.all_heads, "heads"),
        head_reduce=meaning(HEAD_REDUCES, request.head_reduce, "head_reduce"),
        layer_reduce=meaning(MAP_LAYER_REDUCES, request.layer_reduce, "layer_reduce"),
        unit=meaning(UNIT_KINDS, request.unit, "unit"),
        special=meaning(SPECIALS, request.special, "special"),
        segments=meaning(SEGMENTS, request.segments, "segments"),
        top_p=request.top_p if request.HasField("top_p") else None,
        top_k=request.top_k if request.HasField("top_k") else None,
        truncation=meaning(TRUNCATIONS, request.truncation, "truncation"),
        dtype=MAP_DTYPES[request.dtype],  # type: ignore[arg-type]  # its values are the Literal's
        wire="binary",
        deadline=deadline,
    )


def attend_responses(found: AttendResponse) -> Iterator[pb.AttendResponse]:
    """The header, then one message a map, each made when it is asked for and its map let go."""
    inputs = [_attended_input(result) for result in found.results]
    yield pb.AttendResponse(header=pb.AttendHeader(model=found.model, precision=found.precision, inputs=inputs))
    for index, result in enumerate(found.results):
        result.maps.reverse()
        while result.maps:
            yield pb.AttendResponse(map=_map(result.maps.pop(), index))


def compare_request(request: pb.CompareRequest, deadline: float | None) -> CompareRequest:
    """Raises `InvalidArgument` for what no message should say."""
    return CompareRequest(
        occurrences=tuple(
            Occurrence(
                found.text,
                (found.span.start, found.span.end) if found.HasField("span") else None,
                found.word if found.HasField("word") else None,
            )
            for found in request.occurrences
        ),
        model=request.model or None,
        layers=_chosen(request.layers, request.all_layers, "layers"),
        draws_on=request.draws_on if request.HasField("draws_on") else DRAWS_ON,
        wire="binary",
        deadline=deadline,
    )


def compare_response(found: CompareResponse) -> pb.CompareResponse:
    """The answer as a message."""
    return pb.CompareResponse(
        model=found.model,
        precision=found.precision,
        occurrences=[
            pb.ComparedOccurrence(
                text=each.text,
                start=each.start,
                end=each.end,
                draws_on=[
                    pb.DrawnWord(text=word.text, start=word.start, end=word.end, share=word.share)
                    for word in each.draws_on
                ],
            )
            for each in found.occurrences
        ],
        static=tensor(found.static),
        layers=[
            pb.LayerSimilarity(layer=each.layer, cosine=tensor(each.cosine), centered=tensor(each.centered))
            for each in found.layers
        ],
    )


def _chosen(numbers: Sequence[int], every: bool, field: str) -> tuple[int, ...] | None:
    if every and numbers:
        raise InvalidArgument(
            f"all_{field} is set, and {field} names some; send one of the two.", reason="invalid_field"
        )
    return tuple(numbers) or None


def _attended_input(result: AttendResult) -> pb.AttendedInput:
    return pb.AttendedInput(
        truncated=result.truncated,
        units=[
            pb.Unit(text=unit.text, start=unit.start, end=unit.end, segment=unit.segment, special=unit.special)
            for unit in result.units
        ],
        rows=result.rows,
        columns=result.columns,
        map_count=len(result.maps),
    )


def _map(found: AttentionMap, index: int) -> pb.AttentionMap:
    return pb.AttentionMap(
        input_index=index,
        layer=found.layer,
        head=found.head,
        matrix=tensor(found.matrix),
        sparse=None if found.sparse is None else _sparse(found.sparse),
        excluded_mass=_floats(found.excluded_mass),
        bias_share=_floats(found.bias_share),
        no_mass_rows=found.no_mass_rows,
    )


def _sparse(found: SparseMatrix) -> pb.SparseMatrix:
    return pb.SparseMatrix(
        row_starts=found.row_starts,
        indices=found.indices,
        values=tensor(found.values),
        rest_mass=_floats(found.rest_mass),
    )


def _floats(array: Array | None) -> list[float]:
    return [] if array is None else array.to_list()
