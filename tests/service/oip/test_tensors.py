"""Tensor elements: the same values in each form, and shape and size errors."""

import time
from typing import Any

import numpy as np
import pytest

from service.errors import Empty, InvalidArgument, MalformedRequest, ServiceError
from service.oip.tensors import InputTensor, OutputTensor, check_axes, integers_of, strings_of
from tests.oip_messages import Tensor, text

LIMITS = [("inputs", 256), ("token_ids", 16384)]


def tensor(shape: list[int], raw: bytes | None = None, items: Any = None, datatype: str = "INT64") -> InputTensor:
    name, elements = "text" if datatype == "BYTES" else "input_ids", "inputs[0].data"
    return InputTensor("inputs[0]", name, datatype, shape, {}, elements, raw, items)


@pytest.mark.parametrize("datatype", ["INT64", "INT32"])
def test_integers_are_the_same_in_every_form(datatype: str) -> None:
    numbers = [0, 1, -1, 2**31 - 1, -(2**31), 5]
    sent = Tensor("input_ids", datatype, [2, 3], numbers)
    for form in ({"raw": sent.raw}, {"items": numbers}, {"items": sent.nested}):
        assert list(integers_of(tensor([2, 3], datatype=datatype, **form))) == numbers


def test_strings_are_the_same_in_every_form() -> None:
    texts = ["money", "", "déjà", "\x00"]
    sent = text(*texts)
    encoded = [item.encode() for item in texts]
    for form in ({"raw": sent.raw}, {"items": texts}, {"items": encoded}):
        assert strings_of(tensor([4], datatype="BYTES", **form)) == texts
    assert strings_of(tensor([4, 1], datatype="BYTES", items=[[item] for item in texts])) == texts


@pytest.mark.parametrize("raw", [b"", b"\x01\x00\x00", b"\x05\x00\x00\x00abc", b"\xff\xff\xff\xffabc",
                                 b"\x01\x00\x00\x00abc", b"\x00\x00\x00\x00" * 3])  # fmt: skip
def test_bytes_that_do_not_match_the_shape_are_rejected(raw: bytes) -> None:
    with pytest.raises(
        InvalidArgument,
        match=r"\d bytes of binary data, but (the elements of the shape have|element 0 ends after) \d+|0 elements, but",
    ):
        strings_of(tensor([1], raw, datatype="BYTES"))


def test_invalid_utf_8_is_malformed() -> None:
    with pytest.raises(MalformedRequest, match=r"^text\[0\]: not UTF-8 \(byte 1\)"):
        strings_of(tensor([1], b"\x02\x00\x00\x00a\xff", datatype="BYTES"))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("abcdef", r"wrong type \(string\). Send"), ({"a": 1}, r"wrong type \(object\). Send"), (7, "wrong type"),
        ([1] * 5, "data: 5 elements, but the shape has 6. Correct"), ([], "0 elements, but the shape has 6"),
        ([[1] * 3] * 3, "3 rows, but the shape has 2"), ([[1] * 3, [1] * 4], r"data\[1\]: 4 elements, but"),
        ([[1] * 3, 1], r"data\[1\]: wrong type"), ([1, 2, 3, 4, 5, True], r"element \(boolean\). Send int"),
        ([1, 2, 3, 4, 5, 6.0], "wrong type of an element"), ([1, 2, 3, 4, 5, None], "wrong type of an element"),
        ([[1, 2, 3], [4, 5, [6]]], "wrong type of an element"), ([[[1, 2, 3]], [[4, 5, 6]]], "1 element, but the"),
    ],
)  # fmt: skip
def test_items_that_do_not_match_the_shape_are_rejected(items: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        integers_of(tensor([2, 3], items=items))


@pytest.mark.parametrize(
    ("shape", "kind", "message"),
    [
        ([2], InvalidArgument, r"shape: wrong number of axes \(1\). Use \[N, T"), ([1, 1, 1], InvalidArgument, "axes"),
        ([-1, 3], InvalidArgument, r"shape\[0\]: negative \(-1, minimum 0\)"), ([2**40, 1], InvalidArgument, "256"),
        ([257, 1], InvalidArgument, r"too many items \(257, limit 256\)"), ([2**62, 2**62], InvalidArgument, "256"),
        ([1, 2**62], ServiceError, r"shape\[1\]: too many items"), ([0, 3], Empty, r"shape\[0\]: empty"),
        ([3, 0], Empty, r"shape\[1\]: empty"),
    ],
)  # fmt: skip
def test_invalid_shapes_are_rejected(shape: list[int], kind: type[ServiceError], message: str) -> None:
    with pytest.raises(kind, match=message):
        check_axes(tensor(shape), LIMITS, "[N, T]")


def test_largest_tensors_are_converted_in_less_than_a_second() -> None:
    """1,048,576 ids are 8 MiB, the largest message. Converting them holds the GIL."""
    count = 2**20
    started = time.thread_time()
    integers_of(tensor([256, count // 256], bytes(8 * count)))
    integers_of(tensor([256, count // 256], items=[1] * count))
    assert time.thread_time() - started < 1


def test_outputs_are_little_endian() -> None:
    floats = OutputTensor("pooled", np.array([[1.0, 2.0]], np.float32))
    assert (floats.datatype, floats.shape, floats.to_bytes()) == ("FP32", [1, 2], b"\0\0\x80?\0\0\0@")
    counts = OutputTensor("token_counts", np.array([1, 258]))
    assert (counts.datatype, counts.shape) == ("INT64", [2])
    assert counts.to_bytes() == b"\x01" + bytes(7) + b"\x02\x01" + bytes(6)
