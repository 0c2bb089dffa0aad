"""What the messages of several methods have in common: inputs and enums on the way in, tensors on the way out."""

from collections.abc import Sequence
from typing import Any, get_args

from model.tokenizer import Source
from service.engine.schema.encode import Array, DType, Input, MapDType, Truncation
from service.errors import InvalidArgument
from service.pb import encoder_pb2 as pb

# What each number of an enum means; the first is the default. The proto lists them in the order of the Literals.
TRUNCATIONS = ("error", *get_args(Truncation))
DTYPE_NUMBERS: dict[DType | MapDType, int] = {
    **{name: number for number, name in enumerate(get_args(DType), start=1)},
    "sqrt_uint8": pb.DTYPE_SQRT_UINT8,
}


def meaning(meanings: Sequence[Any], number: int, field: str) -> Any:
    """What an enum's number means; raises `InvalidArgument` for one that is not there."""
    if not 0 <= number < len(meanings):
        raise InvalidArgument(
            f"{field} has a value this version does not know; it takes {', '.join(meanings[1:])}.",
            reason="invalid_field",
        )
    return meanings[number]


def inputs_of(inputs: Sequence[pb.Input]) -> tuple[Input, ...]:
    """Raises `InvalidArgument` for one that is both a text and ids."""
    return tuple(_input(item, index) for index, item in enumerate(inputs))


def _input(item: pb.Input, index: int) -> Input:
    if not item.token_ids:
        pair = item.pair if item.HasField("pair") else None
        return Input(Source(item.text, pair), tuple((span.start, span.end) for span in item.spans))
    if item.text or item.HasField("pair"):
        raise InvalidArgument(f"inputs[{index}] must have either text or token_ids.", reason="invalid_field")
    return Input(Source(token_ids=tuple(item.token_ids)), tuple((span.start, span.end) for span in item.spans))


def tensor(array: Array | None) -> pb.Tensor | None:
    """An array as it travels."""
    if array is None:
        return None
    return pb.Tensor(shape=array.shape, dtype=DTYPE_NUMBERS[array.dtype], data=array.to_bytes())  # type: ignore[arg-type]
