"""Inputs and enums of request messages as the engine's types, and arrays as messages."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from model.tokenizer import Source
from service.engine.schema.encode import Array, DType, Input, MapDType, Truncation
from service.errors import InvalidArgument
from service.limits import too_many
from service.pb import encoder_pb2 as pb

# The meaning of each number of an enum; the first is the default. The proto lists them in the order of the Literals.
TRUNCATIONS = ("error", *get_args(Truncation))
DTYPE_NUMBERS: dict[DType | MapDType, int] = {
    **{name: number for number, name in enumerate(get_args(DType), start=1)},
    "sqrt_uint8": pb.DTYPE_SQRT_UINT8,
}


def enum_value(values: Sequence[Any], number: int, field: str) -> Any:
    """Return the meaning of an enum's number; raises `InvalidArgument` for an unknown number."""
    if not 0 <= number < len(values):
        raise InvalidArgument(
            f"{field}: unknown value ({number}, limit {len(values) - 1}). Use {', '.join(values[1:])}.",
            reason="invalid_field",
        )
    return values[number]


def check_count(name: str, actual: int, limits: Mapping[str, int], field: str | None = None) -> None:
    """Raise the error of a list over its limit, before any item is converted."""
    if actual > limits[name]:
        raise too_many(field or name, name, actual, limits[name])


def to_inputs(inputs: Sequence[pb.Input], limits: Mapping[str, int]) -> tuple[Input, ...]:
    """Return the engine's inputs; raises `InvalidArgument` for an item that is both a text and ids."""
    check_count("inputs", len(inputs), limits)
    check_count("spans_per_request", sum(len(item.spans) for item in inputs), limits, "inputs")
    return tuple(_to_input(item, f"inputs[{index}]", limits) for index, item in enumerate(inputs))


def _to_input(item: pb.Input, field: str, limits: Mapping[str, int]) -> Input:
    check_count("spans", len(item.spans), limits, f"{field}.spans")
    spans = tuple((span.start, span.end) for span in item.spans)
    if not item.token_ids:
        return Input(Source(item.text, item.pair if item.HasField("pair") else None), spans)
    for name, is_set in (("text", bool(item.text)), ("pair", item.HasField("pair"))):
        if is_set:
            raise InvalidArgument(f"{field}: {name} and token_ids are both set. Send one.", reason="invalid_field")
    check_count("token_ids", len(item.token_ids), limits, f"{field}.token_ids")
    return Input(Source(token_ids=tuple(item.token_ids)), spans)


def tensor(array: Array | None) -> pb.Tensor | None:
    """Return an array as a message."""
    if array is None:
        return None
    return pb.Tensor(shape=array.shape, dtype=DTYPE_NUMBERS[array.dtype], data=array.to_bytes())  # type: ignore[arg-type]
