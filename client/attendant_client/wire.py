"""The contract on the wire: converts its types to and from JSON and attendant.v1 messages, field by field.

Converters are built once per type from its fields. A field has the same name in JSON, in the proto and in Python.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, reduce
from itertools import accumulate, pairwise
from operator import attrgetter, or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import pybase64
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from attendant_client.types import (
    DTYPES,
    Alternative,
    Array,
    Encoding,
    Input,
    Nullable,
    PresentWith,
    SparseMatrix,
    TextInputs,
    shortest,
)

T = TypeVar("T")
Json = Any
Message = Any
Converter = Callable[[Any], Any]
JsonWriter = Callable[[Any, bool], Any]
"""Converts a value to types that JSON libraries support. The flag selects base64 for arrays that allow it."""
MessageWriter = Callable[[Message, Any], None]


class InvalidEnum(ValueError):
    """An enum field of a message has an unknown value, or one that this request does not support."""

    def __init__(self, field: str, actual: int | str, allowed: Sequence[str]) -> None:
        super().__init__(field)
        self.field = field
        self.actual = actual
        self.allowed = allowed


class ConflictingLayers(ValueError):
    """A message sets both `layers` and `all_layers`."""


class Base64:
    """The bytes of an array, to be rendered as a JSON string."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __str__(self) -> str:
        return pybase64.b64encode_as_string(np.ascontiguousarray(self.array).data)


# Types


@dataclass(frozen=True)
class Field:
    """One field of a contract type: its type without None and `Annotated`, and its markers."""

    name: str
    kind: Any
    optional: bool
    markers: tuple[Any, ...]
    default: Any
    """`MISSING` for a required field."""

    def find(self, kind: type[T]) -> T | None:
        """Return the marker of a kind, if any."""
        return next((marker for marker in self.markers if isinstance(marker, kind)), None)

    @property
    def description(self) -> str | None:
        """The human-readable description, if any."""
        return self.find(str)

    @property
    def omitted(self) -> bool:
        """True if JSON omits the field when it is None."""
        return self.default is None and self.find(Nullable) is None


@cache
def fields_of(kind: Any) -> tuple[Field, ...]:
    """Return the fields of a contract type."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(Field(item.name, *strip(hints[item.name]), item.default) for item in fields(kind))


def strip(hint: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """Return a type without `Annotated` and None, whether it may be None, and its markers."""
    markers: tuple[Any, ...] = ()
    optional = False
    while True:
        if get_origin(hint) is Annotated:
            hint, *added = get_args(hint)
            markers += tuple(added)
        elif (value := getattr(get_origin(hint), "__value__", None)) is not None:  # NDArray from numpy 2.5 on
            hint = value[get_args(hint)]
        elif get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
            optional = True
            hint = reduce(or_, (item for item in get_args(hint) if item is not NoneType))
        else:
            return hint, optional, markers


def item_type(kind: Any) -> Any:
    """Return the item type of a list type, or None for another type."""
    return get_args(kind)[0] if get_origin(kind) in (list, Sequence) else None


def allowed_values(kind: Any) -> tuple[str, ...]:
    """Return the values of a Literal type; empty for other types."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def _is_array(kind: Any) -> bool:
    return get_origin(kind) is np.ndarray


def _element(kind: Any) -> Any:
    """Return the dtype of an array type, by default float32."""
    (element,) = get_args(get_args(kind)[1])
    return np.float32 if element is Any else element


_NAMES = {dtype: name for name, dtype in DTYPES.items() if dtype != DTYPES["ubinary"]}


def dtype_name(array: Array, uint8: str) -> str:
    """Return the name of an array's dtype in the contract."""
    return _NAMES.get(array.dtype, uint8)


def to_array(data: bytes, dtype: str, shape: Sequence[int]) -> Array:
    """Decode an array; sqrt_uint8 becomes float32, `(value / 255) ** 2`."""
    array: Array = np.frombuffer(data, DTYPES[dtype]).reshape(tuple(shape))
    if dtype == "sqrt_uint8":
        roots = array.astype(np.float32) / 255
        return roots * roots
    return array


# To JSON


@cache
def json_writer(kind: Any, uint8: str = "") -> JsonWriter | None:
    """Return the writer of a type, or None if JSON libraries can render its values directly."""
    if _is_array(kind):
        return _array_writer(uint8) if uint8 else None
    if (item := item_type(kind)) is not None:
        write = json_writer(strip(item)[0])
        return None if write is None else lambda values, encoded: [write(value, encoded) for value in values]
    if kind is SparseMatrix:
        return _write_sparse_matrix
    return _object_writer(kind) if is_dataclass(kind) else None


def _array_writer(uint8: str) -> JsonWriter:
    def write(array: Array, encoded: bool) -> Json:
        if not encoded:
            return array
        return {"shape": array.shape, "dtype": dtype_name(array, uint8), "data": Base64(array)}

    return write


def _object_writer(kind: Any) -> JsonWriter | None:
    described = fields_of(kind)
    table = [
        (field.name, alternative.name if (alternative := field.find(Alternative)) else field.name, field.omitted, write)
        for field in described
        for encoding in (field.find(Encoding),)
        for write in (json_writer(field.kind, encoding.uint8 if encoding else ""),)
    ]
    # Other objects become dictionaries, so that long lists in them can be rendered in parts.
    has_lists = any(item_type(field.kind) is not None or _is_array(field.kind) for field in described)
    if not has_lists and all(name == key and write is None and not omitted for name, key, omitted, write in table):
        return None

    def write_object(value: Any, encoded: bool) -> Json:
        document: dict[str, Any] = {}
        for name, key, omitted, write in table:
            item = getattr(value, name)
            if item is None:
                if not omitted:
                    document.setdefault(key, None)
            else:
                document[key] = item if write is None else write(item, encoded)
        return document

    return write_object


def _write_sparse_matrix(matrix: SparseMatrix, encoded: bool) -> Json:
    """Return the entries per row. In base64, values are a single array over all rows, in the order of the indices."""
    bounds = matrix.indptr.tolist()
    rows = [slice(start, end) for start, end in pairwise(bounds)]
    values = _array_writer("sqrt_uint8")(matrix.values, True) if encoded else [matrix.values[row] for row in rows]
    return {
        "indices": [matrix.indices[row] for row in rows], "values": values, "dropped_mass": matrix.dropped_mass
    }  # fmt: skip


# From JSON


def from_json(kind: type[T], document: Json) -> T:
    """Convert a JSON object to a value of a contract type, ignoring unknown fields."""
    read: Converter = _json_reader(kind)  # type: ignore[arg-type]  # classes are hashable
    value: T = read(document)
    return value


@cache
def _json_reader(kind: Any) -> Converter:
    if _is_array(kind):
        element = _element(kind)
        return lambda value: (
            to_array(pybase64.b64decode(value["data"]), value["dtype"], value["shape"])
            if isinstance(value, dict)
            else np.asarray(value, element)
        )
    if (item := item_type(kind)) is not None:
        read = _json_reader(strip(item)[0])
        return lambda values: [read(value) for value in values]
    if kind is SparseMatrix:
        return _read_sparse_matrix
    return _object_reader(kind) if is_dataclass(kind) else lambda value: value


def _object_reader(kind: Any) -> Converter:
    table = []
    for field in fields_of(kind):
        alternative = field.find(Alternative)
        # Of two alternatives, the object has a name that the array, which may also be an object, does not.
        mark = "" if alternative is None or _is_array(field.kind) else fields_of(field.kind)[-1].name
        others = (item for item in fields_of(kind) if item is not field and item.find(Alternative) == alternative)
        excluded = fields_of(next(others).kind)[-1].name if alternative and not mark else ""
        key = alternative.name if alternative else field.name
        table.append((field.name, key, mark, excluded, _json_reader(field.kind)))

    def read_object(document: Json) -> Any:
        values = {}
        for name, key, mark, excluded, read in table:
            value = document.get(key)
            names = value if isinstance(value, dict) else ()
            present = value is not None and (not mark or mark in names) and (not excluded or excluded not in names)
            values[name] = read(value) if present else None
        return kind(**values)

    return read_object


def _read_sparse_matrix(document: Json) -> SparseMatrix:
    rows = document["indices"]
    values = document["values"]
    if not isinstance(values, dict):
        values = [value for row in values for value in row]
    return SparseMatrix(
        indptr=np.fromiter(accumulate(map(len, rows), initial=0), np.int32, len(rows) + 1),
        indices=np.asarray([index for row in rows for index in row], dtype=np.int32),
        values=_json_reader(Array)(values),
        dropped_mass=np.asarray(document["dropped_mass"], dtype=np.float32),
    )


# To messages


def to_message(value: Any, message: Message) -> Message:
    """Set a response message's fields from a value of a contract type, and return the message."""
    kind: Any = type(value)
    message_writer(kind, message.DESCRIPTOR)(message, value)
    return message


@cache
def message_writer(kind: Any, descriptor: Descriptor) -> MessageWriter:
    """Return the writer from a type to messages of this descriptor. Fields missing in the proto are omitted."""
    table = [
        (field.name, _field_writer(field, target))
        for field in fields_of(kind)
        if (target := descriptor.fields_by_name.get(field.name)) is not None
    ]

    def write(message: Message, value: Any) -> None:
        for name, write_field in table:
            item = getattr(value, name)
            if item is not None:
                write_field(message, item)

    return write


def _field_writer(field: Field, target: FieldDescriptor) -> MessageWriter:
    name = field.name
    if target.is_repeated:
        return _list_writer(field, target)
    if (described := target.message_type) is None:
        if target.enum_type is not None:
            numbers = enum_numbers(target.enum_type)
            return lambda message, value: setattr(message, name, numbers[value])
        return lambda message, value: setattr(message, name, value)
    encoding = field.find(Encoding)
    if described.name == "Tensor":
        uint8 = encoding.uint8 if encoding else ""
        numbers = enum_numbers(described.fields_by_name["dtype"].enum_type)

        def write_tensor(message: Message, array: Array) -> None:
            tensor = getattr(message, name)
            tensor.shape.extend(array.shape)
            tensor.dtype = numbers[dtype_name(array, uint8)]
            tensor.data = array.tobytes()

        return write_tensor
    write = message_writer(field.kind, described)

    def write_message(message: Message, value: Any) -> None:
        child = getattr(message, name)
        child.SetInParent()
        write(child, value)

    return write_message


def _list_writer(field: Field, target: FieldDescriptor) -> MessageWriter:
    name = field.name
    if target.message_type is not None and target.message_type.GetOptions().map_entry:
        return lambda message, values: getattr(message, name).update(values)
    if target.enum_type is not None:
        numbers = enum_numbers(target.enum_type)
        return lambda message, values: getattr(message, name).extend([numbers[value] for value in values])
    if target.message_type is None:
        if _is_array(field.kind):
            return lambda message, values: getattr(message, name).extend(values.tolist())
        return lambda message, values: getattr(message, name).extend(values)
    write = message_writer(strip(item_type(field.kind))[0], target.message_type)

    def write_messages(message: Message, values: Sequence[Any]) -> None:
        children = getattr(message, name)
        for value in values:
            write(children.add(), value)

    return write_messages


def write_in_pieces(value: Any, message: Message, depth: int = 2, without: str = "") -> Iterator[None]:
    """Like `to_message`, but yield after each list item; with a `depth` of 2, also in lists of lists.

    `without`: a field to leave out.
    """
    for name, write, write_item in _pieces(value.__class__, message.DESCRIPTOR):
        part = getattr(value, name)
        if part is None or name == without:
            continue
        if write_item is None:
            write(message, part)
            continue
        children = getattr(message, name)
        for item in part:
            if depth > 1:
                yield from write_in_pieces(item, children.add(), depth - 1)
            else:
                write_item(children.add(), item)
            yield


@cache
def _pieces(kind: Any, descriptor: Descriptor) -> list[tuple[str, MessageWriter, MessageWriter | None]]:
    """Return each field's name, its writer and, for lists of messages, the item writer."""
    table = []
    for field in fields_of(kind):
        if (target := descriptor.fields_by_name.get(field.name)) is None:
            continue
        described, item = target.message_type, item_type(field.kind)
        write_item = None if described is None or item is None else message_writer(strip(item)[0], described)
        table.append((field.name, _field_writer(field, target), write_item))
    return table


@cache
def enum_numbers(enum: EnumDescriptor) -> dict[str, int]:
    """Return the number of each value of an enum in the contract's spelling: 1 for "float32"."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in enum.values}


@cache
def enum_names(enum: EnumDescriptor) -> dict[int, str]:
    """Return the contract's spelling of each value of an enum except the unspecified one."""
    return {number: name for name, number in enum_numbers(enum).items() if number}


# From messages


def from_message(kind: type[T], message: Message, *, lenient: bool = False) -> T:
    """Convert a message to a value of a contract type.

    `lenient`: an unknown enum value becomes its number as a string, because the server may be newer. Otherwise raises
    `InvalidEnum` for it. Raises `ConflictingLayers`.
    """
    read: Converter = _message_reader(kind, message.DESCRIPTOR, lenient)  # type: ignore[arg-type]  # classes are hashable
    value: T = read(message)
    return value


@cache
def _message_reader(kind: Any, descriptor: Descriptor, lenient: bool) -> Converter:
    """Return the reader of messages. Unset fields get the type's default, or the zero value if required.

    `ListFields` yields set fields: scalars with presence, other scalars if not zero, and nonempty lists.
    """
    described = [(field, descriptor.fields_by_name.get(field.name)) for field in fields_of(kind)]
    if (read_scalars := _scalars_reader(kind, described)) is not None:
        return read_scalars
    readers = {field.name: _field_reader(field, target, lenient) for field, target in described if target is not None}
    zeros = {field.name: _zero(field) for field, _ in described if field.default is MISSING}
    lists = [(field.name, other.field) for field, _ in described if (other := field.find(PresentWith)) is not None]
    has_all_layers = "all_layers" in descriptor.fields_by_name

    def read(message: Message) -> Any:
        values = dict(zeros)
        for target, value in message.ListFields():
            reader = readers.get(target.name)
            if reader is not None:
                values[target.name] = reader(value)
        if has_all_layers and message.all_layers:
            if message.layers:
                raise ConflictingLayers
            values["layers"] = "all"
        for name, companion in lists:
            if name not in values and message.HasField(companion):
                values[name] = []
        return kind(**values)

    return read


def _scalars_reader(kind: Any, described: Sequence[tuple[Field, FieldDescriptor | None]]) -> Converter | None:
    """Return a faster reader for messages with only scalar fields, such as tokens; None for other messages."""
    targets = [target for _, target in described if target is not None]
    plain = all(not (target.is_repeated or target.message_type or target.enum_type) for target in targets)
    if not plain or len(targets) < max(2, len(described)):
        return None
    get_all = attrgetter(*(target.name for target in targets))
    floats = [place for place, target in enumerate(targets) if target.cpp_type == FieldDescriptor.CPPTYPE_FLOAT]
    present = [(place, target.name) for place, target in enumerate(targets) if target.has_presence]
    empty = [place for place, (field, target) in enumerate(described) if field.optional and not target.has_presence]  # type: ignore[union-attr]

    def read(message: Message) -> Any:
        values: Any = get_all(message)
        if floats or present or empty:
            values = list(values)
            for place in floats:
                values[place] = shortest(values[place])
            for place, name in present:
                if not message.HasField(name):
                    values[place] = described[place][0].default if described[place][0].default is not MISSING else None
            for place in empty:
                values[place] = values[place] or None
        return kind(*values)

    return read


def _zero(field: Field) -> Any:
    """Return proto3's value of an unset field."""
    if field.optional or is_dataclass(field.kind):
        return None
    if item_type(field.kind) is not None:
        return [] if get_origin(field.kind) is list else ()
    if _is_array(field.kind):
        return np.zeros(0, _element(field.kind))
    origin = get_origin(field.kind)
    return origin() if origin is dict else {str: "", bool: False, float: 0.0}.get(field.kind, 0)


def _field_reader(field: Field, target: FieldDescriptor, lenient: bool) -> Converter:
    if target.enum_type is not None:
        return _enum_reader(field, target, lenient)
    if target.is_repeated:
        return _list_reader(field, target, lenient)
    if target.message_type is not None:
        return _submessage_reader(field, target.message_type, lenient)
    if target.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return shortest
    return (lambda value: value or None) if field.optional and not target.has_presence else (lambda value: value)


def _submessage_reader(field: Field, described: Descriptor, lenient: bool) -> Converter:
    if described.name == "Tensor":
        names = enum_names(described.fields_by_name["dtype"].enum_type)
        return lambda tensor: to_array(tensor.data, names[tensor.dtype], tensor.shape)
    if described.name == "Span":
        return lambda span: (span.start, span.end)
    if described.name == "TokenIds":
        return lambda ids: tuple(ids.ids)
    read = _message_reader(field.kind, described, lenient)

    def read_named(message: Message) -> Any:
        try:
            return read(message)
        except InvalidEnum as error:
            error.field = f"{field.name}.{error.field}"
            raise

    return read_named


def _list_reader(field: Field, target: FieldDescriptor, lenient: bool) -> Converter:
    described = target.message_type
    if described is None:
        if _is_array(field.kind):
            element = _element(field.kind)
            return lambda values: np.asarray(values, element)
        return list if get_origin(field.kind) is list else tuple
    if described.GetOptions().map_entry:
        return dict
    if described.name == "Span":
        return lambda spans: tuple((span.start, span.end) for span in spans)
    item = strip(item_type(field.kind))[0]
    read = _message_reader(item, described, lenient)

    def read_all(messages: Sequence[Message]) -> Sequence[Any]:
        if item is Input and all([len(message.ListFields()) == 1 and message.text for message in messages]):  # noqa: C419
            return TextInputs([message.text for message in messages])
        return [read(message) for message in messages]

    return read_all


def _enum_reader(field: Field, target: FieldDescriptor, lenient: bool) -> Converter:
    assert target.enum_type is not None
    names = enum_names(target.enum_type)
    allowed = allowed_values(strip(item_type(field.kind) or field.kind)[0]) or tuple(names.values())
    prefix = target.enum_type.values[0].name.removesuffix("UNSPECIFIED")

    def read(number: int, path: str) -> str:
        value = names.get(number, str(number) if lenient else "")
        if value not in allowed and not lenient:
            labels = [prefix + item.upper() for item in allowed]
            raise InvalidEnum(path, prefix + value.upper() if value else number, labels)
        return value

    if not target.is_repeated:
        return lambda number: read(number, field.name)
    make = list if get_origin(field.kind) is list else tuple
    return lambda numbers: make(
        [read(number, f"{field.name}[{index}]") if number else allowed[0] for index, number in enumerate(numbers)]
    )


def present(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set. Tuples, ranges and iterators, which can be read only once, become lists."""
    return {
        name: list(value) if isinstance(value, range | tuple | Iterator) else value
        for name, value in options.items()
        if value is not None
    }
