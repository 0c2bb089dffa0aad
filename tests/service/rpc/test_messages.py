"""Deserializing request messages: fields are counted before parsing, and errors are returned rather than raised."""

import pytest
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import EncodeRequest

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
