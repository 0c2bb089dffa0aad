"""Responses of every operation survive both codecs: the server writes them, the client reads them.

Values are random in every field, as the types allow them: a field that one codec drops, renames or rounds fails here.
"""

import json
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

import numpy as np
import pytest
from attendant_client import types
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.responses import read_message
from attendant_client.types import Alternative, Encoding, Nullable, PresentWith, SparseMatrix
from attendant_client.wire import (
    Field,
    allowed_values,
    fields_of,
    from_json,
    from_message,
    item_type,
    strip,
    to_message,
)  # fmt: skip
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.rest.responses import SLICE, render, to_document

RESPONSES = {
    "encode": types.EncodeResponse, "tokenize": types.TokenizeResponse, "attend": types.AttendResponse,
    "compare": types.CompareResponse, "similarity": types.SimilarityResponse, "rerank": types.RerankResponse,
    "classify": types.ClassifyResponse, "token_classify": types.TokenClassifyResponse,
    "fill_mask": types.FillMaskResponse, "model": types.ModelInfo,
}  # fmt: skip
MESSAGES = {kind: getattr(pb, kind.__name__, None) or pb.Model for kind in RESPONSES.values()}
STREAMED = types.AttendResponse
FLOATS = st.floats(-(2.0**14), 2.0**14, width=32).map(types.shortest)
INTEGERS = st.integers(1, 2**31 - 1)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


@st.composite
def values(draw: st.DrawFn, kind: Any, markers: Sequence[Any] = (), *, encoded: bool) -> Any:
    """Draw a value of a contract type.

    No list is empty: proto3 cannot tell an empty list from a missing one. No array is quantized: the client restores
    float32 from sqrt_uint8.
    """
    if get_origin(kind) is np.ndarray:
        encoding = next((marker for marker in markers if isinstance(marker, Encoding)), Encoding((1,)))
        shape = draw(hnp.array_shapes(min_dims=min(encoding.axes), max_dims=max(encoding.axes), max_side=3))
        element = get_args(get_args(kind)[1])[0]
        if element is Any:
            dtypes = [np.float32, np.float16, np.int8] if encoded and encoding.uint8 else [np.float32]
            element = draw(st.sampled_from([*dtypes, np.uint8] if encoded and encoding.uint8 == "ubinary" else dtypes))
        return draw(hnp.arrays(element, shape, elements=st.integers(0, 100)))
    if (item := item_type(kind)) is not None:
        part, _, inner = strip(item)
        return draw(st.lists(values(part, inner, encoded=encoded), min_size=1, max_size=3))
    if get_origin(kind) is dict:
        return draw(st.dictionaries(TEXTS, INTEGERS if get_args(kind)[1] is int else TEXTS, min_size=1, max_size=3))
    if get_origin(kind) is tuple:
        return (draw(INTEGERS), draw(INTEGERS))
    if kind is SparseMatrix:
        counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
        dtype = draw(st.sampled_from([np.float32, np.float16])) if encoded else np.float32
        return SparseMatrix(
            np.cumsum([0, *counts], dtype=np.int32),
            np.arange(sum(counts), dtype=np.int32),
            np.arange(sum(counts)).astype(dtype),
            np.arange(len(counts), dtype=np.float32),
        )
    if is_dataclass(kind):
        return draw(instances(kind, encoded=encoded))
    if options := allowed_values(kind):
        return draw(st.sampled_from(options))
    return draw({str: TEXTS, int: INTEGERS, float: FLOATS, bool: st.booleans()}[kind])


@st.composite
def instances(draw: st.DrawFn, kind: Any, *, encoded: bool) -> Any:
    """Draw an object of a contract type with random optional fields."""
    drawn: dict[str, Any] = {}
    for field in sorted(fields_of(kind), key=lambda field: field.find(PresentWith) is not None):
        present = draw(presence(field, drawn, kind))
        drawn[field.name] = draw(values(field.kind, field.markers, encoded=encoded)) if present else None
    return kind(**drawn)


def presence(field: Field, drawn: dict[str, Any], kind: Any) -> st.SearchStrategy[bool]:
    """Return whether a field may be set, given the fields drawn before."""
    if (companion := field.find(PresentWith)) is not None:
        return st.just(drawn[companion.field] is not None)
    if (alternative := field.find(Alternative)) is not None:
        others = [item.name for item in fields_of(kind) if item.find(Alternative) == alternative]
        if any(drawn.get(name) is not None for name in others):
            return st.just(False)
    return st.booleans() if field.optional else st.just(True)


def check_equal(left: Any, right: Any, path: str) -> None:
    if isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape), path
        assert np.array_equal(left, right), path
    elif is_dataclass(left):
        assert left.__class__ is right.__class__, path
        for field in fields_of(right.__class__):
            check_equal(getattr(left, field.name), getattr(right, field.name), f"{path}.{field.name}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for index, (item, other) in enumerate(zip(left, right, strict=True)):
            check_equal(item, other, f"{path}[{index}]")
    else:
        assert left == right, path


@pytest.mark.parametrize("operation", RESPONSES)
@given(data=st.data(), encoded=st.booleans(), long=st.booleans())
async def test_response_survives_both_codecs(operation: str, data: st.DataObject, encoded: bool, long: bool) -> None:
    kind: Any = RESPONSES[operation]
    response = data.draw(instances(kind, encoded=encoded))
    await check_json(kind, response, encoded, long)
    if encoded and kind is not STREAMED:
        check_protobuf(kind, response)


async def check_json(kind: Any, response: Any, encoded: bool, long: bool) -> None:
    """`long` makes the document so heavy that it is rendered in pieces. Fields of a newer server are ignored."""
    document = await to_document(response, encoded=encoded)
    padding = {"padding": list(range(SLICE))} if long else {}
    rendered = b"".join(await render({**padding, **document}))
    received = json.loads(rendered)
    check_equal(response, from_json(kind, received), "JSON")
    for field in fields_of(kind):
        if getattr(response, field.name) is None and field.find(Alternative) is None:
            assert (field.name in received) == (field.default is not None or field.find(Nullable) is not None)
    newer = json.loads(rendered, object_hook=lambda item: item | {"new_field": {"any": [1]}})
    for name in MAPS & newer.keys():
        newer[name].pop("new_field")
    check_equal(response, from_json(kind, newer), "newer JSON")


MAPS = {"prompts", "role_max_tokens"}
"""Fields that are no objects with fields."""
NEW_VALUE = 987_654_321
"""The number of an enum value that this version does not know."""


def set_enums(message: Message) -> int:
    """Set each present enum field to `NEW_VALUE`, except tensor dtypes; return the number of changed values."""
    changed = 0
    for field, value in message.ListFields():
        if field.enum_type is not None:
            changed += len(value) if field.is_repeated else 1
            if field.is_repeated:
                value[:] = [NEW_VALUE] * len(value)
            else:
                setattr(message, field.name, NEW_VALUE)
        elif field.message_type is not None and field.message_type.name != "Tensor":
            if field.message_type.GetOptions().map_entry:
                continue
            changed += sum(map(set_enums, value if field.is_repeated else [value]))
    return changed


def check_protobuf(kind: Any, response: Any) -> None:
    """The client reads the number of a newer server's value; over REST, it reads the name."""
    message = to_message(response, MESSAGES[kind]())
    check_equal(response, from_message(kind, MESSAGES[kind].FromString(message.SerializeToString())), "protobuf")
    changed = set_enums(message)
    received: Any = read_message(kind, MESSAGES[kind].FromString(message.SerializeToString()))
    assert repr(received).count(f"'{NEW_VALUE}'") == changed
