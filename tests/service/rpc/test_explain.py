"""Attend over gRPC: empty rows, enums, cancellation, and memory of a stream. test_products.py compares the values."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from attendant_client.pb import encoder_pb2 as pb

from tests.conftest import RunningServer, start_server, stop_server
from tests.stubs import EncoderServiceStub

CASHED = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."
ENUMS = {
    "kind": "ATTENTION_KIND_",
    "head_reduce": "HEAD_REDUCE_",
    "layer_reduce": "MAP_LAYER_REDUCE_",
    "unit": "UNIT_KIND_",
    "special_tokens": "SPECIAL_TOKENS_",
    "segments": "SEGMENTS_",
    "truncation": "TRUNCATION_",
    "dtype": "DTYPE_",
}


def attend_request(body: dict[str, Any]) -> pb.AttendRequest:
    """Convert a REST body to a request message."""
    fields = {name: ENUMS[name] + value.upper() if name in ENUMS else value for name, value in body.items()}
    inputs = fields.pop("inputs")
    return pb.AttendRequest(
        inputs=[to_input(item) for item in (inputs if isinstance(inputs, list) else [inputs])], **fields
    )


def to_input(item: Any) -> pb.Input:
    if isinstance(item, str):
        return pb.Input(text=item)
    spans = [pb.Span(start=start, end=end) for start, end in item.get("spans", [])]
    ids = {"token_ids": pb.TokenIds(ids=item["token_ids"])} if "token_ids" in item else {}
    return pb.Input(**{**item, **ids, "spans": spans})


PAIRS_WITHOUT_TOKENS = [
    ({"text": "a b", "pair": "\u200d"}, "a_to_b"),
    ({"text": "\u200d", "pair": "b"}, "b_to_a"),
]


@pytest.mark.parametrize(("pair", "segments"), PAIRS_WITHOUT_TOKENS)
@pytest.mark.parametrize("fields", [{}, {"top_p": 0.5}, {"top_k": 2}, {"special_tokens": "renormalize", "top_p": 1.0}])
async def test_pair_with_a_text_without_tokens_has_empty_rows(
    stub: EncoderServiceStub,
    rest_client: httpx.AsyncClient,
    pair: dict[str, str],
    segments: str,
    fields: dict[str, Any],
) -> None:
    """The rows have no columns, in REST and gRPC."""
    body = {"inputs": [pair], "segments": segments, "special_tokens": "drop", "layers": [1], "heads": [0], **fields}
    (result,) = (await rest_client.post("/v1/attend", json=body)).raise_for_status().json()["results"]
    assert result["columns"] == []
    assert result["maps"][0]["empty_rows"] == list(range(len(result["rows"])))
    header, message = [message async for message in stub.Attend(attend_request(body))]
    assert list(header.header.inputs[0].rows) == result["rows"]
    assert list(message.map.empty_rows) == result["maps"][0]["empty_rows"]


async def test_map_dtype_is_rejected_for_embeddings(stub: EncoderServiceStub) -> None:
    request = pb.EncodeRequest(inputs=[pb.Input(text="a")], dtype=pb.DTYPE_SQRT_UINT8)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Encode(request)
    assert (raised.value.details() or "").startswith('dtype: unknown value ("DTYPE_SQRT_UINT8"). Use DTYPE_FLOAT32, ')


async def test_cancelled_calls_leave_no_work(stub: EncoderServiceStub, server: RunningServer) -> None:
    inputs = [pb.Input(text="word " * 254)]  # 18 MiB of maps, which this client does not read
    calls = [stub.Attend(pb.AttendRequest(inputs=inputs)) for _ in range(4)]
    async with httpx.AsyncClient(base_url=server.admin) as admin, asyncio.timeout(60):
        lines: list[str] = []
        while "attendant_requests_in_flight 4.0" not in lines:
            lines = (await admin.get("/metrics")).text.splitlines()
        for call in calls:
            call.cancel()
        gauges = ("attendant_requests_in_flight", 'attendant_queue_size{lane="explain",model="all-MiniLM-L6-v2"}')
        while not all(f"{name} 0.0" in lines for name in gauges):
            lines = (await admin.get("/metrics")).text.splitlines()
    assert len([message async for message in stub.Attend(pb.AttendRequest(inputs=[pb.Input(text="a")]))]) == 73


async def test_malformed_attend_message_is_an_invalid_argument(channel: grpc.aio.Channel) -> None:
    call = channel.unary_stream("/attendant.v1.EncoderService/Attend", request_serializer=bytes)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        [message async for message in call(b"\xff\xff\xff")]
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.slow
def test_large_response_streams_within_64_mib(default_artifact: Path) -> None:
    """All maps of 256 tokens are 18 MiB in 72 messages, each below gRPC's default limit of 4 MiB.

    The first request has as many tokens, so the runtime's own memory has grown to its size before the measurement.
    """
    inputs = [pb.Input(text="word " * 254)]
    server = start_server(model_dir=default_artifact)
    try:
        with grpc.insecure_channel(server.grpc) as channel:
            stub = EncoderServiceStub(channel)
            list(stub.Attend(pb.AttendRequest(inputs=inputs, head_reduce=pb.HEAD_REDUCE_MEAN)))
            Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # resets the peak
            before = peak_mib(server)
            messages = list(stub.Attend(pb.AttendRequest(inputs=inputs)))
            assert peak_mib(server) - before <= 64
        assert len(messages) == 73
        assert sum(len(message.map.matrix.data) for message in messages) == 6 * 12 * 256 * 256 * 4
    finally:
        assert stop_server(server) == 0


def peak_mib(server: RunningServer) -> float:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024
