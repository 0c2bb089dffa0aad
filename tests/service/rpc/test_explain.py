"""Attend and Compare over gRPC: values and errors match REST, and streaming uses little memory."""

import asyncio
import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from attendant_client.pb import encoder_pb2 as pb
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tests.conftest import RunningServer, start_server, stop_server
from tests.service.rpc.conftest import rest_spelling
from tests.stubs import EncoderServiceStub

CASHED = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."
MIB = 2**20
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


def compare_request(body: dict[str, Any]) -> pb.CompareRequest:
    occurrences = [
        pb.Occurrence(
            **{**item, **({"span": pb.Span(start=item["span"][0], end=item["span"][1])} if "span" in item else {})}
        )
        for item in body["occurrences"]
    ]
    return pb.CompareRequest(**{**body, "occurrences": occurrences})


@pytest.mark.parametrize(
    "fields",
    [
        {"layers": [3, 1], "heads": [0, 11]},
        {"kind": "scores", "layers": [2], "unit": "word"},
        {"kind": "norm", "head_reduce": "sum", "special_tokens": "drop", "dtype": "float16"},
        {"kind": "block_norm", "layer_reduce": "mean", "unit": "word"},
        {"kind": "projection", "special_tokens": "renormalize", "unit": "word"},
        {"kind": "probs", "layer_reduce": "rollout", "dtype": "sqrt_uint8"},
    ],
)
async def test_values_match_rest(
    stub: EncoderServiceStub, rest_client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    """Compares maps bit for bit, and units, for a text and a pair."""
    body = {"inputs": [CASHED, {"text": "river bank", "pair": "flows"}], **fields}
    response = await rest_client.post("/v1/attend", json={**body, "encoding_format": "base64"})
    expected = response.raise_for_status().json()
    header, *maps = [message async for message in stub.Attend(attend_request(body))]
    assert header.WhichOneof("message") == "header"
    assert (header.header.model, pb.Precision.Name(header.header.precision)) == (
        expected["model"],
        f"PRECISION_{expected['precision'].upper()}",
    )
    expected_maps = [(index, item) for index, result in enumerate(expected["results"]) for item in result["maps"]]
    assert len(maps) == len(expected_maps) == sum(info.map_count for info in header.header.inputs)
    for info, result in zip(header.header.inputs, expected["results"], strict=True):
        units = [
            [
                *(unit.text, unit.start, unit.end, unit.segment, unit.special),
                unit.word_index if unit.HasField("word_index") else None,
            ]
            for unit in info.units
        ]
        assert units == [list(unit.values()) for unit in result["units"]]
        assert (list(info.rows), list(info.columns)) == (result["rows"], result["columns"])
    for message, (index, expected_map) in zip(maps, expected_maps, strict=True):
        actual = message.map
        assert actual.input_index == index
        assert (actual.layer if actual.HasField("layer") else None) == expected_map["layer"]
        assert (actual.head if actual.HasField("head") else None) == expected_map["head"]
        assert actual.matrix.data == base64.b64decode(expected_map["matrix"]["data"])
        assert list(actual.matrix.shape) == expected_map["matrix"]["shape"]
        assert list(actual.excluded_mass) == pytest.approx(expected_map["excluded_mass"] or [], rel=1e-6)
        assert list(actual.bias_share) == pytest.approx(expected_map["bias_share"] or [], rel=1e-6)
        assert list(actual.empty_rows) == expected_map["empty_rows"]


async def test_sparse_rows_match_rest(stub: EncoderServiceStub, rest_client: httpx.AsyncClient) -> None:
    body = {"inputs": CASHED, "layers": [4], "heads": [2], "top_p": 0.6, "top_k": 4}
    (expected,) = (await rest_client.post("/v1/attend", json=body)).json()["results"][0]["maps"]
    _, message = [message async for message in stub.Attend(attend_request(body))]
    sparse = message.map.sparse
    rows = [list(sparse.indices)[start:end] for start, end in pairwise(sparse.indptr)]
    assert rows == expected["matrix"]["indices"]
    assert list(sparse.dropped_mass) == pytest.approx(expected["matrix"]["dropped_mass"], abs=1e-7)


async def test_comparison_matches_rest(stub: EncoderServiceStub, rest_client: httpx.AsyncClient) -> None:
    """Optional fields are unset in both requests."""
    body = {"occurrences": [{"text": CASHED, "span": [25, 29]}, {"text": RIVER, "word_index": 4}]}
    expected = (await rest_client.post("/v1/compare", json=body)).json()
    call = stub.Compare(compare_request(body))
    response = await call
    assert [[word.text for word in occurrence.contributors] for occurrence in response.occurrences] == [
        [word["text"] for word in occurrence["contributors"]] for occurrence in expected["occurrences"]
    ]
    assert [similarity.layer for similarity in response.layers] == [item["layer"] for item in expected["layers"]]
    for similarity, expected_layer in zip(response.layers, expected["layers"], strict=True):
        for name in ("cosine", "centered"):
            matrix = np.frombuffer(getattr(similarity, name).data, "<f4").reshape(2, 2)
            np.testing.assert_allclose(matrix, expected_layer[name], atol=1e-7)
    assert np.frombuffer(response.static.data, "<f4").tolist() == [1, 1, 1, 1]
    assert {"x-attendant-model", "server-timing"} <= {key for key, _ in await call.trailing_metadata()}


async def test_attend_covers_all_layers_and_heads_by_default(stub: EncoderServiceStub) -> None:
    request = pb.AttendRequest(inputs=[pb.Input(text="a")])
    assert len([message async for message in stub.Attend(request)]) == 1 + 6 * 12


async def test_attend_accepts_layers_from_the_end(stub: EncoderServiceStub) -> None:
    request = pb.AttendRequest(inputs=[pb.Input(text="a")], layers=[-1, -6], heads=[0])
    maps = [message.map async for message in stub.Attend(request)][1:]
    assert [attention_map.layer for attention_map in maps] == [6, 1]


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


WORD = {"text": "a", "word_index": 0}
INVALID_ATTEND: list[dict[str, Any]] = [
    {"layers": [7]},
    {"layers": [1, 1]},
    {"heads": [12]},
    {"unit": "span"},
    {"inputs": [{"text": "a b", "spans": [[0, 9]]}], "unit": "span"},
    {"inputs": [{"text": "a b c", "spans": [[0, 3], [2, 5]]}], "unit": "span"},
    {"inputs": [{"text": "a  b", "spans": [[1, 3]]}], "unit": "span"},
    {"inputs": [{"text": "a b", "spans": [[0, 1]]}]},
    {"inputs": [{"token_ids": [2924]}], "unit": "word"},
    {"kind": "scores", "top_p": 0.5},
    {"kind": "scores", "layer_reduce": "rollout"},
    {"kind": "scores", "special_tokens": "renormalize"},
    {"top_p": 0.0},
    {"top_k": 0},
    {"kind": "norm", "head_reduce": "mean"},
    {"kind": "projection", "heads": [0]},
    {"head_reduce": "max", "layer_reduce": "rollout"},
    {"segments": "a_to_b"},
    {"inputs": "word " * 300},
    {"inputs": ""},
    {"model": "another"},
]
INVALID_COMPARE: list[dict[str, Any]] = [
    {"occurrences": [WORD]},
    {"occurrences": [WORD] * 65},
    {"occurrences": [WORD, {"text": "b c", "word_index": 2}]},
    {"occurrences": [WORD, {"text": "b", "word_index": -1}]},
    {"occurrences": [WORD, {"text": "b"}]},
    {"occurrences": [WORD, {"text": "b", "span": [0, 2]}]},
    {"occurrences": [WORD, {"text": "a  b", "span": [1, 3]}]},
    {"occurrences": [WORD, {"text": " ", "word_index": 0}]},
    {"occurrences": [WORD, {"text": "word " * 300, "word_index": 0}]},
    {"occurrences": [WORD] * 2, "layers": [7]},
    {"occurrences": [WORD] * 2, "top_contributors": -1},
]


@pytest.mark.parametrize("fields", INVALID_ATTEND)
async def test_attend_errors_are_the_same_in_rest_and_grpc(
    stub: EncoderServiceStub, rest_client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    body = {"inputs": "hello there", **fields}
    response = await rest_client.post("/v1/attend", json=body)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        [message async for message in stub.Attend(attend_request(body))]
    assert_same_error(raised.value, response)
    assert (await rest_client.post("/v1/attend", json={"inputs": "fine"})).status_code == 200


@pytest.mark.parametrize("body", INVALID_COMPARE)
async def test_compare_errors_are_the_same_in_rest_and_grpc(
    stub: EncoderServiceStub, rest_client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    response = await rest_client.post("/v1/compare", json=body)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Compare(compare_request(body))

    assert_same_error(raised.value, response)


def assert_same_error(raised: grpc.aio.AioRpcError, response: httpx.Response) -> None:
    """Compare code, reason and message. The spelling of enum values differs."""
    error = response.json()["error"]
    trailing = dict(raised.trailing_metadata())
    status, info = Status.FromString(trailing["grpc-status-details-bin"]), ErrorInfo()
    status.details[0].Unpack(info)
    assert (raised.code().name, info.reason) == (error["code"], error["reason"])
    assert rest_spelling(str(raised.details())) == error["message"]


@pytest.mark.parametrize("field", sorted(ENUMS))
async def test_unknown_enum_value_is_rejected(stub: EncoderServiceStub, field: str) -> None:
    """The error must name the field."""
    request: Any = {"inputs": [pb.Input(text="a")], field: 99}
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        [message async for message in stub.Attend(pb.AttendRequest(**request))]
    assert (raised.value.details() or "").startswith(field)


async def test_map_dtype_is_rejected_for_embeddings(stub: EncoderServiceStub) -> None:
    request = pb.EncodeRequest(inputs=[pb.Input(text="a")], dtype=pb.DTYPE_SQRT_UINT8)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Encode(request)
    assert (raised.value.details() or "").startswith('dtype: unknown value ("DTYPE_SQRT_UINT8"). Use DTYPE_FLOAT32, ')


async def test_cancelled_calls_leave_no_work(stub: EncoderServiceStub, server: RunningServer) -> None:
    inputs = [pb.Input(text="word " * 254)]  # four of them fit into the explain queue of a slow or busy CPU too
    calls = [stub.Attend(pb.AttendRequest(inputs=inputs, head_reduce=pb.HEAD_REDUCE_MEAN)) for _ in range(4)]
    async with httpx.AsyncClient(base_url=server.admin) as admin, asyncio.timeout(30):
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
    """All maps of 256 tokens are 18 MiB in 72 messages, each below gRPC's default limit of 4 MiB."""
    server = start_server(model_dir=default_artifact)
    try:
        with grpc.insecure_channel(server.grpc) as channel:
            stub = EncoderServiceStub(channel)
            list(stub.Attend(pb.AttendRequest(inputs=[pb.Input(text="warm " * 100)])))
            Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # resets the peak
            before = peak_mib(server)
            messages = list(stub.Attend(pb.AttendRequest(inputs=[pb.Input(text="word " * 254)])))
            assert peak_mib(server) - before <= 64
        assert len(messages) == 73
        assert sum(len(message.map.matrix.data) for message in messages) == 6 * 12 * 256 * 256 * 4
    finally:
        assert stop_server(server) == 0


def peak_mib(server: RunningServer) -> float:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024
