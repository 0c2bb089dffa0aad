"""The types of the contract and the messages of the proto have the same fields and values."""

from dataclasses import is_dataclass, replace
from typing import Annotated, Any, TypeVar, get_origin

import numpy as np
import pytest
from attendant_client import types
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.wire import allowed_values, dtype_name, enum_numbers, fields_of, item_type, strip
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from typing_extensions import TypeAliasType

OTHER_NAMES = {"Model": types.ModelInfo}
STREAMED = ("AttendResponse", "AttendHeader", "AttendInputInfo")
"""An attend response is a stream of messages."""
ONLY_JSON = {"encoding_format", "decimals"}
ONLY_PROTO = {"all_layers", "input_index"}
"""JSON uses `layers: "all"`, and an input's index is its position in a list."""
SCALARS = {
    str: {FieldDescriptor.CPPTYPE_STRING},
    bool: {FieldDescriptor.CPPTYPE_BOOL},
    int: {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64},
    float: {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE},
}
MESSAGES = {
    name: (kind, message)
    for name, message in pb.DESCRIPTOR.message_types_by_name.items()
    if name not in STREAMED and (kind := OTHER_NAMES.get(name, getattr(types, name, None))) is not None
}
Element = TypeVar("Element", bound=np.generic)


def test_all_types_have_messages() -> None:
    kinds: list[Any] = [
        kind for kind in vars(types).values() if is_dataclass(kind) and kind.__module__ == types.__name__
    ]
    without = {kind.__name__ for kind in kinds} - {kind.__name__ for kind, _ in MESSAGES.values()}
    assert without == {"AttendResponse", "AttendResult"}


@pytest.mark.parametrize("name", MESSAGES)
def test_fields_have_the_same_names_and_types(name: str) -> None:
    kind, message = MESSAGES[name]
    fields = {field.name: field for field in fields_of(kind)}
    targets: dict[str, FieldDescriptor] = dict(message.fields_by_name)
    assert fields.keys() - ONLY_JSON == targets.keys() - ONLY_PROTO
    for field_name in fields.keys() & targets.keys():
        check_type(fields[field_name].kind, targets[field_name])


def check_type(kind: Any, target: FieldDescriptor) -> None:
    """Check that messages can represent the values of a type."""
    described: Descriptor | None = target.message_type
    part: Any = strip(item_type(kind) or kind)[0]
    if target.enum_type is not None:
        values = set(allowed_values(part))
        assert values, target.full_name
        assert values <= enum_numbers(target.enum_type).keys(), target.full_name
    elif get_origin(kind) is np.ndarray:
        assert target.is_repeated or (described is not None and described.name == "Tensor"), target.full_name
    elif hasattr(part, "__dataclass_fields__"):
        assert described is not None, target.full_name
        assert described.name == part.__name__, target.full_name
        assert target.is_repeated == (item_type(kind) is not None), target.full_name
    elif kind in SCALARS:
        assert target.cpp_type in SCALARS[kind], target.full_name


@pytest.mark.parametrize(("dtype", "name"), [("<f4", "float32"), ("<f2", "float16"), ("i1", "int8"), ("u1", "ubinary")])
def test_arrays_name_their_dtype(dtype: str, name: str) -> None:
    assert dtype_name(np.zeros(3, dtype), "ubinary") == name


def test_type_aliases_are_resolved() -> None:
    """In numpy 2.5, NDArray is a type alias."""
    make_alias: Any = TypeAliasType
    alias = make_alias("alias", np.ndarray[Any, np.dtype[Element]], type_params=(Element,))  # type: ignore[valid-type]
    kind, optional, markers = strip(Annotated[alias[np.float32] | None, "A vector."])
    assert (get_origin(kind), optional, markers) == (np.ndarray, True, ("A vector.",))


@pytest.mark.parametrize("name", MESSAGES)
def test_results_with_equal_arrays_are_equal(name: str) -> None:
    """The `__eq__` of a dataclass raises an error for arrays."""
    kind: Any = MESSAGES[name][0]
    arrays = [field.name for field in fields_of(kind) if get_origin(field.kind) is np.ndarray]
    others = {field.name: None for field in fields_of(kind) if field.name not in arrays}
    first, second = (kind(**others, **{name: np.zeros(2) for name in arrays}) for _ in range(2))
    assert first == second
    for array in arrays:
        assert first != replace(first, **{array: np.ones(2)})
