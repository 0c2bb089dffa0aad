"""Attend and Compare over gRPC: the numbers of REST, a stream that is lean, and the same errors."""

import asyncio
import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from service.pb import encoder_pb2 as pb
from service.pb.encoder_pb2_grpc import EncoderServiceStub
from tests.conftest import RunningServer, start_server, stop_server

CASHED = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."
MIB = 2**20
ENUMS = {
    "kind": "ATTENTION_KIND_",
    "head_reduce": "HEAD_REDUCE_",
    "layer_reduce": "MAP_LAYER_REDUCE_",
    "unit": "UNIT_KIND_",
    "special": "SPECIAL_TOKENS_",
    "segments": "SEGMENTS_",
    "truncation": "TRUNCATION_",
    "dtype": "DTYPE_",
}


def attend_request(body: dict[str, Any]) -> pb.AttendRequest:
    """A REST body as a message."""
    fields = {name: ENUMS[name] + value.upper() if name in ENUMS else value for name, value in body.items()}
    inputs = fields.pop("inputs")
    return pb.AttendRequest(
        inputs=[message_of(item) for item in (inputs if isinstance(inputs, list) else [inputs])], **fields
    )


def message_of(item: Any) -> pb.Input:
    if isinstance(item, str):
        return pb.Input(text=item)
    spans = [pb.Span(start=start, end=end) for start, end in item.get("spans", [])]
    return pb.Input(**{**item, "spans": spans})


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
        {"kind": "norm", "head_reduce": "sum", "special": "drop", "dtype": "float16"},
        {"kind": "block_norm", "layer_reduce": "mean", "unit": "word"},
        {"kind": "projection", "special": "renormalize", "unit": "word"},
        {"kind": "probs", "layer_reduce": "rollout", "dtype": "sqrt_uint8"},
    ],
)
async def test_values_equal_those_of_rest(
    stub: EncoderServiceStub, rest_door: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    """Bit for bit, map by map, with the same units; two inputs, one of them a pair."""
    body = {"inputs": [CASHED, {"text": "river bank", "pair": "flows"}], **fields}
    theirs = (await rest_door.post("/v1/attend", json={**body, "encoding": "base64"})).raise_for_status().json()
    header, *maps = [message async for message in stub.Attend(attend_request(body))]
    assert header.WhichOneof("message") == "header"
    assert (header.header.model, header.header.precision) == (theirs["model"], theirs["precision"])
    flat = [(index, each) for index, result in enumerate(theirs["results"]) for each in result["maps"]]
    assert len(maps) == len(flat) == sum(item.map_count for item in header.header.inputs)
    for ours, result in zip(header.header.inputs, theirs["results"], strict=True):
        assert [[unit.text, unit.start, unit.end, unit.segment, unit.special] for unit in ours.units] == [
            list(unit.values()) for unit in result["units"]
        ]
        assert (list(ours.rows), list(ours.columns)) == (result["rows"], result["columns"])
    for message, (index, each) in zip(maps, flat, strict=True):
        ours = message.map
        assert ours.input_index == index
        assert (ours.layer if ours.HasField("layer") else None) == each["layer"]
        assert (ours.head if ours.HasField("head") else None) == each["head"]
        assert ours.matrix.data == base64.b64decode(each["matrix"]["data"])
        assert list(ours.matrix.shape) == each["matrix"]["shape"]
        assert list(ours.excluded_mass) == pytest.approx(each["excluded_mass"] or [], rel=1e-6)
        assert list(ours.bias_share) == pytest.approx(each["bias_share"] or [], rel=1e-6)
        assert list(ours.no_mass_rows) == each["no_mass_rows"]


async def test_sparse_rows_are_those_of_rest(stub: EncoderServiceStub, rest_door: httpx.AsyncClient) -> None:
    """Row by row."""
    body = {"inputs": CASHED, "layers": [4], "heads": [2], "top_p": 0.6, "top_k": 4}
    (theirs,) = (await rest_door.post("/v1/attend", json=body)).json()["results"][0]["maps"]
    _, message = [message async for message in stub.Attend(attend_request(body))]
    ours, starts = message.map.sparse, list(message.map.sparse.row_starts)
    rows = [list(ours.indices)[start:end] for start, end in pairwise(starts)]
    assert rows == theirs["matrix"]["indices"]
    assert list(ours.rest_mass) == pytest.approx(theirs["matrix"]["rest_mass"], abs=1e-7)


async def test_comparison_equals_that_of_rest(stub: EncoderServiceStub, rest_door: httpx.AsyncClient) -> None:
    """The same cosines and words; unset is the default."""
    body = {"occurrences": [{"text": CASHED, "span": [25, 29]}, {"text": RIVER, "word": 4}]}
    theirs = (await rest_door.post("/v1/compare", json=body)).json()
    call = stub.Compare(compare_request(body))
    ours = await call
    assert [[word.text for word in each.draws_on] for each in ours.occurrences] == [
        [word["text"] for word in each["draws_on"]] for each in theirs["occurrences"]
    ]
    assert [each.layer for each in ours.layers] == [each["layer"] for each in theirs["layers"]]
    for each, expected in zip(ours.layers, theirs["layers"], strict=True):
        for name in ("cosine", "centered"):
            found = np.frombuffer(getattr(each, name).data, "<f4").reshape(2, 2)
            np.testing.assert_allclose(found, expected[name], atol=1e-7)
    assert np.frombuffer(ours.static.data, "<f4").tolist() == [1, 1, 1, 1]
    assert {"x-attendant-model", "server-timing"} <= {key for key, _ in await call.trailing_metadata()}


async def test_all_layers_is_a_flag(stub: EncoderServiceStub) -> None:
    """The same as leaving the list out, and never beside it."""
    flagged = pb.AttendRequest(inputs=[pb.Input(text="a")], all_layers=True, all_heads=True)
    assert len([message async for message in stub.Attend(flagged)]) == 73
    both = pb.AttendRequest(inputs=[pb.Input(text="a")], all_layers=True, layers=[1])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        [message async for message in stub.Attend(both)]
    assert refused.value.details() == "all_layers: set, but layers is not empty. Send one."


SILENT_PAIRS = [
    ({"text": "a b", "pair": "\u200d"}, "a_to_b"),
    ({"text": "\u200d", "pair": "b"}, "b_to_a"),
]


@pytest.mark.parametrize(("pair", "segments"), SILENT_PAIRS)
@pytest.mark.parametrize("fields", [{}, {"top_p": 0.5}, {"top_k": 2}, {"special": "renormalize", "top_p": 1.0}])
async def test_pair_is_rejected_when_a_text_has_no_token(
    stub: EncoderServiceStub, rest_door: httpx.AsyncClient, pair: dict[str, str], segments: str, fields: dict[str, Any]
) -> None:
    """Rows without columns: nothing is kept of them, and they are named; the same through both doors."""
    body = {"inputs": [pair], "segments": segments, "special": "drop", "layers": [1], "heads": [0], **fields}
    (result,) = (await rest_door.post("/v1/attend", json=body)).raise_for_status().json()["results"]
    assert result["columns"] == []
    assert result["maps"][0]["no_mass_rows"] == list(range(len(result["rows"])))
    header, message = [message async for message in stub.Attend(attend_request(body))]
    assert list(header.header.inputs[0].rows) == result["rows"]
    assert list(message.map.no_mass_rows) == result["maps"][0]["no_mass_rows"]


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"layers": [7]}, "layers[0] must be 1..6."),
    ({"layers": [0]}, "layers[0] must be 1..6."),
    ({"layers": [1, 1]}, "layers names the same one twice."),
    ({"heads": [12]}, "heads[0] must be 0..11."),
    ({"unit": "spans"}, "unit spans needs spans, but an input has none. Give every input its spans."),
    (
        {"inputs": [{"text": "a b", "spans": [[0, 9]]}], "unit": "spans"},
        "inputs[0].spans[0] must satisfy 0 <= start < end <= 3, the number of characters of its text.",
    ),
    (
        {"inputs": [{"text": "a b c", "spans": [[0, 3], [2, 5]]}], "unit": "spans"},
        "inputs[0].spans[0] and spans[1] overlap; as units spans must be apart.",
    ),
    (
        {"inputs": [{"text": "a  b", "spans": [[1, 3]]}], "unit": "spans"},
        "inputs[0].spans[0] covers no token of its own: only blanks, or part of a token that another span has more of.",
    ),
    (
        {"inputs": [{"text": "a b", "spans": [[0, 1]]}]},
        "An input has spans, but unit does not ask for them. Send unit: spans.",
    ),
    (
        {"inputs": [{"token_ids": [2924]}], "unit": "word"},
        "unit word needs text; token_ids have no characters. Use token.",
    ),
    ({"kind": "scores", "top_p": 0.5}, "top_p is not for scores, which are no shares; leave it out."),
    ({"kind": "scores", "top_k": 5}, "top_k is not for scores, which are no shares; leave it out."),
    (
        {"kind": "scores", "layer_reduce": "rollout"},
        "layer_reduce rollout is not for scores, which are no shares; use none or mean.",
    ),
    (
        {"kind": "scores", "special": "renormalize"},
        "special renormalize is not for scores, which are no shares; use keep or drop.",
    ),
    ({"top_p": 0.0}, "top_p must be above 0 and at most 1: the share of a row that the values kept must cover."),
    ({"top_k": 0}, "top_k must be at least 1: how many values of a row to keep."),
    ({"kind": "norm", "head_reduce": "mean"}, "head_reduce mean is not for norm; it takes none, sum."),
    ({"kind": "probs", "head_reduce": "sum"}, "head_reduce sum is not for probs; it takes none, mean, max."),
    ({"kind": "projection", "heads": [0]}, 'kind projection is of all heads together; leave heads at "all".'),
    (
        {"head_reduce": "max", "layer_reduce": "rollout"},
        "layer_reduce rollout takes the mean of the heads; leave head_reduce out.",
    ),
    ({"segments": "a_to_b"}, "segments a_to_b needs a pair, and inputs[0] has none. Use all."),
    (
        {"inputs": "word " * 300},
        'inputs[0]: too long (302 tokens, limit 256). Shorten it or set truncation to "right".',
    ),
    ({"inputs": ""}, "inputs[0] is empty or blank; send some text."),
    ({"model": "another"}, 'model: not found. This server serves "all-MiniLM-L6-v2".'),
]

COMPARE_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"occurrences": [{"text": "a", "word": 0}]}, "occurrences takes 2 to 64 elements; it has 1."),
    (
        {"occurrences": [{"text": "a", "word": 0}] * 65},
        "occurrences: too many items (65, limit 64). Split the request.",
    ),
    (
        {"occurrences": [{"text": "a", "word": 0}, {"text": "b c", "word": 2}]},
        "occurrences[1].word must be 0..1, the index of one of its text's words.",
    ),
    (
        {"occurrences": [{"text": "a", "word": 0}, {"text": "b", "word": -1}]},
        "occurrences[1].word must be 0..0, the index of one of its text's words.",
    ),
    ({"occurrences": [{"text": "a", "word": 0}, {"text": "b"}]}, "occurrences[1] must have either span or word."),
    (
        {"occurrences": [{"text": "a", "word": 0}, {"text": "b", "span": [0, 2]}]},
        "occurrences[1].span must satisfy 0 <= start < end <= 1, the number of characters of its text.",
    ),
    (
        {"occurrences": [{"text": "a", "word": 0}, {"text": "a  b", "span": [1, 3]}]},
        "occurrences[1] covers no token; name a range or a word that the model reads.",
    ),
    (
        {"occurrences": [{"text": "a", "word": 0}, {"text": " ", "word": 0}]},
        "occurrences[1] is empty or blank; send some text.",
    ),
    (
        {"occurrences": [{"text": "a", "word": 0}, {"text": "word " * 300, "word": 0}]},
        "occurrences[1].text: too long (302 tokens, limit 256). Shorten it.",
    ),
    ({"occurrences": [{"text": "a", "word": 0}] * 2, "layers": [7]}, "layers[0] must be 0..6, or -7..-1 from the end."),
    (
        {"occurrences": [{"text": "a", "word": 0}] * 2, "draws_on": -1},
        "draws_on must be 0 or more: how many words to name.",
    ),
]


@pytest.mark.parametrize(("fields", "message"), FAULTS)
async def test_attend_errors_are_the_same_in_rest_and_grpc(
    stub: EncoderServiceStub, rest_door: httpx.AsyncClient, fields: dict[str, Any], message: str
) -> None:
    """Code, reason and message; and the next request is fine."""
    body = {"inputs": "hello there", **fields}
    answer = await rest_door.post("/v1/attend", json=body)
    assert answer.json()["error"]["message"] == message
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        [message async for message in stub.Attend(attend_request(body))]
    assert_same(refused.value, answer)
    assert (await rest_door.post("/v1/attend", json={"inputs": "fine"})).status_code == 200


@pytest.mark.parametrize(("body", "message"), COMPARE_FAULTS)
async def test_compare_errors_are_the_same_in_rest_and_grpc(
    stub: EncoderServiceStub, rest_door: httpx.AsyncClient, body: dict[str, Any], message: str
) -> None:
    """Code, reason and message."""
    answer = await rest_door.post("/v1/compare", json=body)
    assert answer.json()["error"]["message"] == message
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Compare(compare_request(body))
    assert_same(refused.value, answer)


def assert_same(error: grpc.aio.AioRpcError, answer: httpx.Response) -> None:
    told = answer.json()["error"]
    trailing = dict(error.trailing_metadata())
    status, info = Status.FromString(trailing["grpc-status-details-bin"]), ErrorInfo()
    status.details[0].Unpack(info)
    assert (error.code().name, error.details(), info.reason) == (told["code"], told["message"], told["reason"])


@pytest.mark.parametrize("field", sorted(ENUMS))
async def test_enum_values_of_the_future(stub: EncoderServiceStub, field: str) -> None:
    """Refused by the name of the field, not taken for a default."""
    request: Any = {"inputs": [pb.Input(text="a")], field: 99}
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        [message async for message in stub.Attend(pb.AttendRequest(**request))]
    assert (refused.value.details() or "").startswith(field)


async def test_map_dtype_is_rejected_for_embeddings(stub: EncoderServiceStub) -> None:
    """A component may be below 0."""
    request = pb.EncodeRequest(inputs=[pb.Input(text="a")], dtype=pb.DTYPE_SQRT_UINT8)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Encode(request)
    assert "attention maps" in (refused.value.details() or "")


async def test_leaving_leaves_nothing_behind(stub: EncoderServiceStub, server: RunningServer) -> None:
    """What has not run is dropped once the server has noticed."""
    inputs = [pb.Input(text="word " * 254)] * 2
    calls = [stub.Attend(pb.AttendRequest(inputs=inputs, head_reduce=pb.HEAD_REDUCE_MEAN)) for _ in range(4)]
    async with httpx.AsyncClient(base_url=server.admin) as admin, asyncio.timeout(30):
        lines: list[str] = []
        while "attendant_requests_in_flight 4.0" not in lines:
            lines = (await admin.get("/metrics")).text.splitlines()
        for call in calls:
            call.cancel()
        wanted = ("attendant_requests_in_flight", 'attendant_queue_texts{lane="explain"}')
        while not all(f"{name} 0.0" in lines for name in wanted):
            lines = (await admin.get("/metrics")).text.splitlines()
    assert len([message async for message in stub.Attend(pb.AttendRequest(inputs=[pb.Input(text="a")]))]) == 73


async def test_bytes_that_are_no_message(channel: grpc.aio.Channel) -> None:
    """Answered as such, not as a fault of ours."""
    call = channel.unary_stream("/attendant.v1.EncoderService/Attend", request_serializer=bytes)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        [message async for message in call(b"\xff\xff\xff")]
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_large_response_streams_within_64_mib(default_artifact: Path) -> None:
    """256 tokens, all layers and heads: 18 MiB in 72 messages, none over gRPC's default limit of 4 MiB."""
    server = start_server(model_dir=default_artifact)
    try:
        with grpc.insecure_channel(server.grpc) as channel:
            stub = EncoderServiceStub(channel)  # type: ignore[no-untyped-call]
            list(stub.Attend(pb.AttendRequest(inputs=[pb.Input(text="warm " * 100)])))
            Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # the peak starts anew
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
