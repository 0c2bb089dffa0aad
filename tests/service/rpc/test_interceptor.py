"""Faults over gRPC: the code and message that REST gives, with details, and nothing of the input."""

import asyncio
from typing import Any

import grpc
import httpx
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from service.pb import encoder_pb2 as pb
from service.pb.encoder_pb2_grpc import EncoderServiceStub

SECRET = "Sesame-9"
ENCODE = "/attendant.v1.EncoderService/Encode"


def described(error: grpc.aio.AioRpcError) -> tuple[str, str, str, ErrorInfo]:
    """Code, reason and message of an error, all three told alike in status and details."""
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


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no inputs": ({"inputs": []}, {}),
    "empty text": ({"inputs": [{"text": ""}]}, {}),
    "too many inputs": ({"inputs": [{"text": "a"}] * 257}, {}),
    "too many tokens": ({"inputs": [{"text": "word " * 300}]}, {}),
    "too many characters": ({"inputs": [{"text": "a" * 16385}]}, {}),
    "ids out of range": ({"inputs": [{"token_ids": [-1]}]}, {}),
    "text and ids": ({"inputs": [{"text": "a", "token_ids": [1]}]}, {}),
    "span outside": ({"inputs": [{"text": SECRET, "spans": [(3, 99)]}], "outputs": ["spans"]}, {"outputs": [4]}),
    "blank span": ({"inputs": [{"text": "a   b", "spans": [(2, 3)]}], "outputs": ["spans"]}, {"outputs": [4]}),
    "unknown model": ({"inputs": [{"text": "a"}], "model": SECRET}, {"model": SECRET}),
    "a layer twice": ({"inputs": [{"text": "a"}], "layers": [2, -5]}, {"layers": [2, -5]}),
    "layer out of range": ({"inputs": [{"text": "a"}], "layers": [7]}, {"layers": [7]}),
    "dimensions": ({"inputs": [{"text": "a"}], "dimensions": 0}, {"dimensions": 0}),
    "dtype": ({"inputs": [{"text": "a"}], "dtype": "int8", "outputs": ["tokens"]}, {"dtype": 3, "outputs": [2]}),
}


def message_of(inputs: list[dict[str, Any]], fields: dict[str, Any]) -> pb.EncodeRequest:
    made = [
        pb.Input(**{**item, "spans": [pb.Span(start=start, end=end) for start, end in item.get("spans", ())]})
        for item in inputs
    ]
    return pb.EncodeRequest(inputs=made, **fields)


@pytest.mark.parametrize("name", FAULTS)
async def test_encode_errors_are_the_same_in_rest_and_grpc(
    stub: EncoderServiceStub, rest_door: httpx.AsyncClient, name: str
) -> None:
    """Code, reason and message."""
    body, fields = FAULTS[name]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Encode(message_of(body["inputs"], fields))
    error = (await rest_door.post("/v1/encode", json=body)).json()["error"]
    assert described(refused.value)[:3] == (error["code"], error["reason"], error["message"])


async def refuse(channel: grpc.aio.Channel, message: bytes, **options: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await channel.unary_unary(ENCODE, response_deserializer=pb.EncodeResponse.FromString)(message, **options)
    return refused.value


NESTED = b""
for _ in range(300):
    NESTED = b"\x0b" + NESTED + b"\x0c"  # groups, 300 deep


@pytest.mark.parametrize("message", [b"\x0a\xff\xff", b"Sesame-9", b"\x12\x03\x0a\x01\xff", NESTED[:-1]],
                         ids=["cut", "random", "not UTF-8", "nested"])  # fmt: skip
async def test_malformed_messages(channel: grpc.aio.Channel, message: bytes) -> None:
    """INVALID_ARGUMENT in our words, not UNKNOWN in the library's."""
    code, reason, text, _ = described(await refuse(channel, message))
    assert (code, reason) == ("INVALID_ARGUMENT", "unreadable")
    assert text == "Message: not valid protobuf of this type. Correct it."


async def test_message_is_rejected_when_over_the_limit(channel: grpc.aio.Channel, stub: EncoderServiceStub) -> None:
    """RESOURCE_EXHAUSTED, and the channel serves on."""
    error = await refuse(channel, pb.EncodeRequest(inputs=[pb.Input(text="a" * 9 * 2**20)]).SerializeToString())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await stub.Encode(pb.EncodeRequest(inputs=[pb.Input(text="a")]))).usage.tokens == 3


@pytest.mark.parametrize("field", ["outputs", "layer_reduce", "pooling", "truncation", "dtype"])
async def test_enum_values_of_the_future(stub: EncoderServiceStub, field: str) -> None:
    """Refused by the name of the field, not taken for a default."""
    fields: dict[str, Any] = {field: [99] if field == "outputs" else 99}
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Encode(pb.EncodeRequest(inputs=[pb.Input(text="a")], **fields))
    code, reason, message, *_ = described(refused.value)
    assert (code, reason) == ("INVALID_ARGUMENT", "invalid_field")
    assert message.startswith(f"{field}: unknown value (99, limit ")


async def test_unknown_method_is_unimplemented(channel: grpc.aio.Channel) -> None:
    """UNIMPLEMENTED, with the details that every error of ours has."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await channel.unary_unary("/attendant.v1.EncoderService/Nothing")(b"")
    assert described(refused.value)[:2] == ("UNIMPLEMENTED", "no_such_method")


async def test_near_deadline_is_exceeded(stub: EncoderServiceStub) -> None:
    """DEADLINE_EXCEEDED, and the server serves on."""
    texts = [pb.Input(text="word " * 250) for _ in range(64)]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Encode(pb.EncodeRequest(inputs=texts), timeout=0.02)
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await stub.Encode(pb.EncodeRequest(inputs=[pb.Input(text="a")]), timeout=60)).usage.tokens == 3


async def test_trailing_metadata_of_an_answer(stub: EncoderServiceStub, golden: pb.EncodeRequest) -> None:
    """The request id, what answered, and where the time went."""
    call = stub.Encode(golden, metadata=(("x-request-id", "call-17"),))
    await call
    trailing = dict(await call.trailing_metadata())
    assert trailing["x-request-id"] == "call-17"
    assert trailing["x-attendant-model"].startswith("all-MiniLM-L6-v2@sha256:")
    assert trailing["server-timing"].startswith("tokenize;dur=")


@pytest.mark.parametrize("sent", ["a b", "a" * 129, "<script>"])
async def test_hostile_request_id_is_replaced(stub: EncoderServiceStub, golden: pb.EncodeRequest, sent: str) -> None:
    """By one of ours."""
    call = stub.Encode(golden, metadata=(("x-request-id", sent),))
    await call
    assert len(dict(await call.trailing_metadata())["x-request-id"]) == 16


async def test_calls_run_at_once(stub: EncoderServiceStub, golden: pb.EncodeRequest) -> None:
    """A hundred on one channel."""
    found = await asyncio.gather(*(stub.Encode(golden) for _ in range(100)))
    assert {answer.usage.tokens for answer in found} == {5}
