"""Messages: fields are counted before parsing, and errors are returned rather than raised."""

from typing import Any

import grpc
import pytest
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import EncodeRequest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from service.errors import InvalidArgument, MalformedRequest, ServiceError
from service.rpc import messages
from service.rpc.messages import (
    MAX_FIELDS,
    REQUEST_LAYOUT,
    SCAN_FROM_BYTES,
    STREAM_LAYOUT,
    Layout,
    Rejected,
    serialize,
    tolerant,
)
from tests.stubs import EncoderServiceStub

LIMITS = {"inputs": 256, "outputs": 7, "layers": 7, "spans": 1024, "spans_per_request": 4096, "token_ids": 16384}
SIZE = 2**20


def delimited(number: int, payload: bytes) -> bytes:
    size, length = len(payload), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + payload


FLOODS = {
    "inputs": b"\x12\x00" * (SIZE // 2),
    "spans": delimited(2, b"\x22\x00" * (SIZE // 2)),
    "spans of many inputs": delimited(2, b"\x22\x00" * 300) * (SIZE // 604),
    "unknown fields": b"\xf8\x01\x01" * (SIZE // 3),
    "ids": delimited(2, delimited(2, delimited(1, b"\x01" * 5 * SIZE))),
    "unpacked ids": delimited(2, delimited(2, b"\x08\x01" * (SIZE // 2))),
}


@pytest.mark.parametrize("layout", [REQUEST_LAYOUT, STREAM_LAYOUT], ids=["unary", "stream"])
@pytest.mark.parametrize("name", FLOODS)
def test_message_with_too_many_fields_is_not_parsed(name: str, layout: Layout) -> None:
    data = FLOODS[name] if layout is REQUEST_LAYOUT else delimited(2, FLOODS[name])
    parsed: list[bytes] = []

    def parse(data: bytes) -> pb.EncodeRequest:
        parsed.append(data)
        return pb.EncodeRequest.FromString(data)

    result = tolerant(parse, layout)(data)
    assert isinstance(result, Rejected)
    assert isinstance(result.error, InvalidArgument)
    assert result.error.message == f"Message has too many fields (limit {MAX_FIELDS}). Split the request."
    assert parsed == []


@pytest.mark.parametrize(
    "request_message",
    [
        pb.EncodeRequest(inputs=[pb.Input(text="a" * SIZE)] * 2),
        pb.EncodeRequest(inputs=[pb.Input(text="[" * 4000, spans=[pb.Span(end=300)] * 16)] * 256, layers=[1] * 7),
        pb.EncodeRequest(inputs=[pb.Input(token_ids=pb.TokenIds(ids=[300] * 16384))] * 20, dimensions=8),
    ],
    ids=["texts", "spans", "ids"],
)  # fmt: skip
def test_large_message_is_parsed(request_message: pb.EncodeRequest) -> None:
    data = request_message.SerializeToString()
    assert len(data) > SCAN_FROM_BYTES
    assert tolerant(pb.EncodeRequest.FromString, REQUEST_LAYOUT)(data) == request_message


@pytest.mark.parametrize("data", [b"\x0a\xff" * SCAN_FROM_BYTES, b"\xff" * 8 * SIZE, b"\x0f" * SIZE,
                                  b"\x12\xff\xff\xff\xff\xff\x0f" + b"a" * SIZE])  # fmt: skip
def test_invalid_message_is_rejected(data: bytes) -> None:
    result = tolerant(pb.EncodeRequest.FromString, REQUEST_LAYOUT)(data)
    assert isinstance(result, Rejected)
    assert isinstance(result.error, MalformedRequest)


def test_inputs_are_counted_before_they_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "from_message", None)
    request = pb.EncodeRequest(inputs=[pb.Input(text="a")] * 257)
    with pytest.raises(InvalidArgument, match=r"^inputs: too many items \(257, limit 256\)\. Split the request\.$"):
        messages.read_request(EncodeRequest, request, LIMITS)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([pb.Input(text="a", spans=[pb.Span()] * 1025)], "inputs[0].spans: too many items (1025, limit 1024)."),
        ([pb.Input(text="a", spans=[pb.Span()] * 1024)] * 5, "inputs: too many spans in the request (5120, limit"),
        (
            [pb.Input(token_ids=pb.TokenIds(ids=[1] * 16385))],
            "inputs[0].token_ids: too many items (16385, limit 16384).",
        ),
    ],
)
def test_invalid_inputs_are_rejected(inputs: list[pb.Input], expected: str) -> None:
    with pytest.raises(ServiceError) as raised:
        messages.read_request(EncodeRequest, pb.EncodeRequest(inputs=inputs), LIMITS)
    assert raised.value.message.startswith(expected)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
async def test_results_serialized_one_by_one_parse_as_one_message(count: int) -> None:
    response = pb.EncodeResponse(model="a", prompt="", usage=pb.Usage(tokens=7))
    for number in range(count):
        words = [pb.Word(text=f"{number}", start=0, end=1)] * number
        response.results.add(token_count=number, words=words, pooled=pb.Tensor(shape=[2], data=b"\0" * 8))
    expected = pb.EncodeResponse()
    expected.CopyFrom(response)
    assert pb.EncodeResponse.FromString(await serialize(response)) == expected


def test_selected_outputs_equal_the_default() -> None:
    request = messages.read_request(EncodeRequest, pb.EncodeRequest(outputs=[pb.OUTPUT_POOLED]), LIMITS)
    assert request == EncodeRequest(())


# gRPC errors of messages, deadlines and methods, without input text. test_products.py compares others with REST.

SECRET = "Sesame-9"
ENCODE = "/attendant.v1.EncoderService/Encode"


def parse_error(error: grpc.aio.AioRpcError) -> tuple[str, str, str, ErrorInfo]:
    """Check an error's status and details, and return code, reason, message and ErrorInfo."""
    trailing = dict(error.trailing_metadata())
    status = Status.FromString(trailing["grpc-status-details-bin"])
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    assert info.domain == "attendant"
    assert info.metadata["request_id"] == trailing["x-request-id"]
    assert status.ByteSize() <= 1024
    assert SECRET not in str(status)
    return error.code().name, info.reason, status.message, info


async def rejection(channel: grpc.aio.Channel, message: bytes, **options: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(ENCODE, response_deserializer=pb.EncodeResponse.FromString)(message, **options)
    return raised.value


NESTED = b""
for _ in range(300):
    NESTED = b"\x0b" + NESTED + b"\x0c"  # groups nested 300 deep


@pytest.mark.parametrize("message", [b"\x0a\xff\xff", b"Sesame-9", b"\x12\x03\x0a\x01\xff", NESTED[:-1]],
                         ids=["truncated", "random", "not UTF-8", "nested"])  # fmt: skip
async def test_malformed_message_is_an_invalid_argument(channel: grpc.aio.Channel, message: bytes) -> None:
    """grpc itself would return UNKNOWN."""
    code, reason, text, _ = parse_error(await rejection(channel, message))
    assert (code, reason) == ("INVALID_ARGUMENT", "MALFORMED_REQUEST")
    remedy = "Check the client's proto file, and send strings in UTF-8."
    assert text == f"Message is not valid protobuf of this type. {remedy}"


async def test_message_is_rejected_when_over_the_limit(channel: grpc.aio.Channel, stub: EncoderServiceStub) -> None:
    """The channel must stay usable."""
    error = await rejection(channel, pb.EncodeRequest(inputs=[pb.Input(text="a" * 9 * 2**20)]).SerializeToString())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await stub.Encode(pb.EncodeRequest(inputs=[pb.Input(text="a")]))).usage.tokens == 3


@pytest.mark.parametrize("field", ["outputs", "layer_reduce", "pooling", "truncation", "dtype"])
async def test_unknown_enum_value_is_rejected(stub: EncoderServiceStub, field: str) -> None:
    fields: dict[str, Any] = {field: [99] if field == "outputs" else 99}
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Encode(pb.EncodeRequest(inputs=[pb.Input(text="a")], **fields))
    code, reason, message, *_ = parse_error(raised.value)
    assert (code, reason) == ("INVALID_ARGUMENT", "UNKNOWN_VALUE")
    path = "outputs[0]" if field == "outputs" else field
    assert message.startswith(f"{path}: unknown value (99). ")


async def test_unknown_method_is_unimplemented(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary("/attendant.v1.EncoderService/Nothing")(b"")
    assert parse_error(raised.value)[:2] == ("UNIMPLEMENTED", "METHOD_NOT_FOUND")


async def test_near_deadline_is_exceeded(stub: EncoderServiceStub) -> None:
    """The server must stay usable."""
    texts = [pb.Input(text="word " * 250) for _ in range(64)]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Encode(pb.EncodeRequest(inputs=texts), timeout=0.02)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await stub.Encode(pb.EncodeRequest(inputs=[pb.Input(text="a")]), timeout=60)).usage.tokens == 3


async def test_response_has_trailing_metadata(stub: EncoderServiceStub, golden: pb.EncodeRequest) -> None:
    call = stub.Encode(golden, metadata=(("x-request-id", "call-17"),))
    await call
    trailing = dict(await call.trailing_metadata())
    assert trailing["x-request-id"] == "call-17"
    assert trailing["x-attendant-model"].startswith("all-MiniLM-L6-v2@sha256:")
    assert trailing["server-timing"].startswith("tokenize;dur=")


@pytest.mark.parametrize("request_id", ["a b", "a" * 129, "<script>"])
async def test_invalid_request_id_is_replaced(
    stub: EncoderServiceStub, golden: pb.EncodeRequest, request_id: str
) -> None:
    call = stub.Encode(golden, metadata=(("x-request-id", request_id),))
    await call
    assert len(dict(await call.trailing_metadata())["x-request-id"]) == 16
