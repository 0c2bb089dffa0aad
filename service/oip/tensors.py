"""Tensors of requests and responses. The adapters handle bytes and messages; this module handles elements.

Shapes are checked first, so that no more elements are converted than a valid request can contain.
"""

import math
import sys
from array import array
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from attendant_client.types import Array

from service.errors import (
    Empty,
    MalformedRequest,
    OutOfRange,
    UnknownValue,
    WrongShape,
    WrongType,
    echo,
    json_type,
)
from service.operations.inputs import too_many

LENGTH_BYTES = 4
"""Size of the little-endian length that precedes each BYTES element."""
TYPECODES = {"INT64": "q", "INT32": "i", "BOOL": "B"}
"""Type codes of `array` by datatype."""
ELEMENT_TYPES = {"INT64": int, "INT32": int, "BOOL": bool, "BYTES": (str, bytes)}
REMEDIES = {"INT64": "Send integers.", "INT32": "Send integers.", "BOOL": "Send booleans.", "BYTES": "Send strings."}
MAX_AXES = 8


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input as the client sent it.

    Attributes:
        field: The path of the tensor in the request.
        name: One of the inputs of the model.
        datatype: The element type.
        shape: The sizes of the axes.
        parameters: Options.
        elements: The path of the elements in the request, or of the tensor if the elements follow the JSON.
        raw: The elements as little-endian bytes; None if `items` contains them.
        items: The elements in row-major order, flat or nested.
    """

    field: str
    name: str
    datatype: str
    shape: Sequence[int]
    parameters: dict[str, Any]
    elements: str
    raw: bytes | None = None
    items: Any = None


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """An output: float32 or int64."""

    name: str
    values: Array

    @property
    def datatype(self) -> str:
        return "INT64" if self.values.dtype.kind == "i" else "FP32"

    @property
    def shape(self) -> list[int]:
        return list(self.values.shape)

    def to_bytes(self) -> bytes:
        """Return the elements as little-endian bytes."""
        return self.values.astype(self.values.dtype.newbyteorder("<"), copy=False).tobytes()


def check_datatype(tensor: InputTensor, allowed: Sequence[str]) -> None:
    """Raise `InvalidArgument` unless the element type matches."""
    if tensor.datatype not in allowed:
        raise UnknownValue(
            f'not supported for "{tensor.name}"', f"Use {' or '.join(allowed)}.",
            field=f"{tensor.field}.datatype", actual=echo(tensor.datatype),
        )  # fmt: skip


def check_axes(tensor: InputTensor, limits: Sequence[tuple[str, int]], shapes: str) -> None:
    """Check the number of axes and their sizes.

    `limits` are limit names, as in `too_many`, and values; `shapes` describes valid shapes in error messages.
    """
    field, shape = f"{tensor.field}.shape", tensor.shape
    if len(shape) != len(limits):
        raise WrongShape("wrong number of axes", f"Use {shapes}.", field=field, actual=len(shape))
    for index, (size, (name, limit)) in enumerate(zip(shape, limits, strict=True)):
        if size < 0:
            raise OutOfRange("negative", "Send the size.", field=f"{field}[{index}]", actual=size, minimum=0)
        if size > limit:
            raise too_many(f"{field}[{index}]", name, size, limit)
        if size == 0:
            raise Empty("empty", "Send at least one item.", field=f"{field}[{index}]")


def strings_of(tensor: InputTensor) -> list[str]:
    """Decode the elements of a BYTES tensor, whose axes have been checked."""
    count = math.prod(tensor.shape)
    if tensor.raw is not None:
        items: Sequence[Any] = list(_delimited(tensor.raw, count, tensor))
    else:
        items = _flat_items(tensor, count)
    return [item if isinstance(item, str) else _decoded(item, f"{tensor.name}[{n}]") for n, item in enumerate(items)]


def integers_of(tensor: InputTensor) -> Sequence[int]:
    """Decode the elements of an integer or boolean tensor, whose axes have been checked."""
    count = math.prod(tensor.shape)
    if tensor.raw is None:
        return _flat_items(tensor, count)
    numbers = array(TYPECODES[tensor.datatype])
    expected = count * numbers.itemsize
    if len(tensor.raw) != expected:
        problem = f"{len(tensor.raw)} bytes of binary data, but the shape needs {expected}"
        raise WrongShape(problem, "Correct one of them.", field=tensor.elements)
    numbers.frombytes(tensor.raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _flat_items(tensor: InputTensor, count: int) -> Sequence[Any]:
    """Flatten a list. Raises `InvalidArgument` unless there are `count` items of the right type."""
    items, field = tensor.items, tensor.elements
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise WrongType("wrong type", "Send an array.", field=field, actual=json_type(items))
    if items and isinstance(items[0], list) and len(tensor.shape) > 1:
        rows, columns = tensor.shape
        _check_length(items, rows, field, "row")
        for index, row in enumerate(items):
            if not isinstance(row, list):
                raise WrongType("wrong type", "Send an array.", field=f"{field}[{index}]", actual=json_type(row))
            _check_length(row, columns, f"{field}[{index}]")
        items = [item for row in items for item in row]
    _check_length(items, count, field)
    kinds = ELEMENT_TYPES[tensor.datatype]
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    if not set(map(type, items)) <= set(allowed):  # bool is a subclass of int
        actual = next(json_type(item) for item in items if type(item) not in allowed)
        raise WrongType("wrong type of an element", REMEDIES[tensor.datatype], field=field, actual=actual)
    flat: Sequence[Any] = items
    return flat


def _check_length(items: Sized, expected: int, field: str, noun: str = "element") -> None:
    if len(items) != expected:
        problem = f"{len(items)} {noun}{'' if len(items) == 1 else 's'}, but the shape has {expected}"
        raise WrongShape(problem, "Correct one of them.", field=field)


def _delimited(raw: bytes, count: int, tensor: InputTensor) -> Iterator[bytes]:
    """Yield `count` length-prefixed elements."""
    start = 0
    for index in range(count):
        if start == len(raw):
            _check_length(range(index), count, tensor.elements)
        begin = start + LENGTH_BYTES
        end = begin + int.from_bytes(raw[start:begin], "little")
        if max(begin, end) > len(raw):
            problem = f"{len(raw)} bytes of binary data, but element {index} ends after {max(begin, end)}"
            remedy = "Send the length of each element before it, as 4 bytes, little-endian."
            raise WrongShape(problem, remedy, field=tensor.elements)
        yield raw[begin:end]
        start = end
    if start != len(raw):
        problem = f"{len(raw)} bytes of binary data, but the elements of the shape have {start}"
        raise WrongShape(problem, "Correct one of them.", field=tensor.elements)


def _decoded(item: bytes, field: str) -> str:
    try:
        return item.decode()
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"not UTF-8 (byte {error.start})", "Encode it in UTF-8.", field=field) from None
