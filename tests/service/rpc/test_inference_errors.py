"""Invalid Open Inference Protocol requests over gRPC: typed and raw contents, typed parameters, floods of fields.

The errors that REST and gRPC share are tested over REST, in test_oip_errors.py.
"""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from service.pb import inference_pb2 as pb
from service.rpc.inference import _varint
from service.rpc.messages import INFER_LAYOUT, MAX_FIELDS, Rejected, tolerant
from tests.oip_messages import Tensor, grpc_request, text, token_ids
from tests.service.rpc.conftest import call_error
from tests.stubs import GRPCInferenceServiceStub

MODEL = "all-MiniLM-L6-v2"
GOLDEN = "money bank grows"
IDS = [2769, 2924, 7502]


def changed(change: Callable[[pb.ModelInferRequest], Any], *tensors: Tensor, raw: bool = True) -> pb.ModelInferRequest:
    request = grpc_request(MODEL, tensors or [text(GOLDEN)], raw=raw)
    change(request)
    return request


def set_shape(*shape: int) -> Callable[[pb.ModelInferRequest], Any]:
    def change(request: pb.ModelInferRequest) -> None:
        request.inputs[0].shape[:] = shape

    return change


def set_raw(data: bytes) -> Callable[[pb.ModelInferRequest], Any]:
    def change(request: pb.ModelInferRequest) -> None:
        request.raw_input_contents[0] = data

    return change


def set_parameter(name: str, **value: Any) -> Callable[[pb.ModelInferRequest], Any]:
    def change(request: pb.ModelInferRequest) -> None:
        request.parameters[name].CopyFrom(pb.InferParameter(**value))

    return change


def move_ids(request: pb.ModelInferRequest) -> None:
    contents = request.inputs[0].contents
    contents.int_contents.extend(contents.int64_contents)
    contents.ClearField("int64_contents")


IDS_TENSORS = token_ids([IDS, IDS[:1]])
INVALID: dict[str, tuple[pb.ModelInferRequest, str]] = {
    "unknown model": (changed(lambda r: setattr(r, "model_name", "x")), 'model_name: not found ("x").'),
    "unknown version": (changed(lambda r: setattr(r, "model_version", "2")), 'model_version: not found ("2").'),
    "typed datatype": (
        changed(lambda r: setattr(r.inputs[0], "datatype", "FP32"), raw=False), "inputs[0].datatype: not supported"
    ),
    "ids in another field": (
        changed(move_ids, token_ids([IDS])[0], raw=False),
        "inputs[0].contents: wrong field (int_contents). INT64 uses int64_contents.",
    ),
    "many axes": (changed(set_shape(*[1] * 1000)), "inputs[0].shape: wrong number of axes (1000)."),
    "wrong product": (changed(set_shape(2)), "raw_input_contents[0]: 1 element, but the shape has 2"),
    "typed product": (changed(set_shape(2), raw=False), "inputs[0].contents: 1 element, but the shape has 2."),
    "wrong ids": (changed(set_raw(b"1234567"), *IDS_TENSORS), "raw_input_contents[0]: 7 bytes of binary data, but"),
    "length over the end": (changed(set_raw(b"\xff\xff\xff\xffab")), "raw_input_contents[0]: 6 bytes of binary data"),
    "long text": (grpc_request(MODEL, [text("word " * 300)]), "text[0]: too long (302 tokens, limit 256)."),
    "too many raw": (changed(lambda r: r.raw_input_contents.append(b"")), "raw_input_contents: length 2, but"),
    "too few raw": (changed(lambda r: r.raw_input_contents.pop(), *IDS_TENSORS), "raw_input_contents: length 1, but"),
    "both forms": (
        changed(lambda r: r.inputs[0].contents.bytes_contents.append(b"a")), "inputs[0].contents: set, but"
    ),
    "mask of twos": (
        grpc_request(MODEL, [IDS_TENSORS[0], Tensor("attention_mask", "INT64", [2, 3], [2, 1, 0, 1, 1, 1])]),
        "attention_mask[0]: not ones",
    ),
    "overflowing mask": (
        grpc_request(MODEL, [IDS_TENSORS[0], Tensor("attention_mask", "INT64", [2, 3], [2**62, -(2**62), 2, 1, 1, 1])]),
        "attention_mask[0]: not ones",
    ),
    "NaN": (changed(set_parameter("dimensions", double_param=float("nan"))), "parameters.dimensions: wrong type (num"),
    "no value": (changed(set_parameter("dimensions")), "parameters.dimensions: wrong type (null)."),
    "boolean as number": (changed(set_parameter("dimensions", bool_param=True)), "parameters.dimensions: wrong type ("),
    "sequence": (changed(set_parameter("sequence_id", int64_param=5)), "parameters.sequence_id: sequences"),
    "prompt": (changed(set_parameter("prompt_name", string_param="x")), 'parameters.prompt_name: not found ("x").'),
}  # fmt: skip

CODES = {
    **dict.fromkeys(("unknown model", "no model", "unknown version", "prompt"), "NOT_FOUND"),
    "sequence": "UNIMPLEMENTED",
}
"""Status codes other than INVALID_ARGUMENT."""


@pytest.mark.parametrize("name", INVALID)
async def test_invalid_request(inference: GRPCInferenceServiceStub, name: str) -> None:
    request, message = INVALID[name]
    error = await call_error(inference.ModelInfer(request))
    assert error.code().name == CODES.get(name, "INVALID_ARGUMENT")
    assert (error.details() or "").startswith(message)
    status = Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = ErrorInfo()
    status.details[0].Unpack(info)
    assert info.domain == "attendant"


async def test_output_and_input_parameters(inference: GRPCInferenceServiceStub) -> None:
    """KServe's client sends binary_data_size and binary_data, which have no effect here."""
    request = grpc_request(MODEL, [text(GOLDEN)], outputs=["pooled"])
    request.inputs[0].parameters["binary_data_size"].int64_param = 20
    request.outputs[0].parameters["binary_data"].bool_param = True
    await inference.ModelInfer(request)
    for name, code in (("classification", "UNIMPLEMENTED"), ("shared_memory_region", "UNIMPLEMENTED"),
                       ("other", "INVALID_ARGUMENT")):  # fmt: skip
        changed_request = grpc_request(MODEL, [text(GOLDEN)], outputs=["pooled"])
        changed_request.outputs[0].parameters[name].int64_param = 1
        error = await call_error(inference.ModelInfer(changed_request))
        assert (error.code().name, (error.details() or "")[:10]) == (code, "outputs[0]")


async def test_bytes_that_are_not_a_message_are_an_invalid_argument(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", request_serializer=bytes)
    for data in (b"\xff\xff\xff", b"\x0a\x02\xff\xff", b"\x2a\x05ab"):
        error = await call_error(call(data))
        assert (error.code().name, error.details()) == (
            "INVALID_ARGUMENT",
            "Message is not valid protobuf of this type. Check the client's proto file, and send strings in UTF-8.",
        )


def field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


FLOODS = {
    "inputs": field(5, b"") * 2**19,
    "raw contents": field(7, b"") * 2**19,
    "shape": field(5, field(3, b"\x01" * 5 * 2**20)),
    "numbers": field(5, field(5, field(3, b"\x01" * 5 * 2**20))),
    "strings": field(5, field(5, field(8, b"") * 2**19)),
    "parameters": field(4, b"") * 2**19,
    "empty parameters of one output": field(6, field(2, b"") * 2**19),
    "parameters of one input": field(5, field(4, b"") * 2**19),
}


@pytest.mark.parametrize("name", FLOODS)
def test_message_with_too_many_fields_is_not_parsed(name: str) -> None:
    """Parsing 8 MiB of empty fields would hold the GIL for more than 100 ms."""

    def parse(data: bytes) -> pb.ModelInferRequest:
        raise AssertionError("parsed")

    result = tolerant(parse, INFER_LAYOUT)(FLOODS[name])
    assert isinstance(result, Rejected)
    assert result.error.maximum == MAX_FIELDS


@pytest.mark.parametrize("raw", [True, False])
def test_largest_valid_messages_are_parsed(raw: bool) -> None:
    for tensors in ([text(*["a" * 16384] * 256)], token_ids([[300] * 1024] * 256), [text(*["a"] * 256)]):
        request = grpc_request(MODEL, tensors, raw=raw)
        assert tolerant(pb.ModelInferRequest.FromString, INFER_LAYOUT)(request.SerializeToString()) == request
