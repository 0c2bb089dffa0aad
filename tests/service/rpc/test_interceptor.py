"""gRPC errors of messages, deadlines and methods, without input text. test_products.py compares others with REST."""

from typing import Any

import grpc
import pytest
from attendant_client.pb import encoder_pb2 as pb
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tests.stubs import EncoderServiceStub

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
