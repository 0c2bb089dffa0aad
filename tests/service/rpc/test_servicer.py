"""EncoderService: unset fields, the model, streams and their window, and Attend."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import EncodeRequest, EncodeResponse, TokenizeRequest, TokenizeResponse
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.errors import RequestTooLarge
from service.operations.inputs import Call
from service.operations.table import OPERATIONS
from service.request_log import RequestRecord, set_current
from service.rpc.servicer import EncoderServicer
from service.rpc.stream import respond_in_order
from tests.conftest import RunningServer, start_server, stop_server
from tests.service.conftest import ServiceHarness, fast_lane, open_harness
from tests.stubs import EncoderServiceStub


def make_request(*texts: str, **fields: Any) -> pb.EncodeRequest:
    return pb.EncodeRequest(inputs=[pb.Input(text=text) for text in texts], **fields)


def stream_request(text: str, request_id: str = "") -> pb.EncodeStreamRequest:
    return pb.EncodeStreamRequest(id=request_id, request=make_request(text))


def error_info(status: Status) -> ErrorInfo:
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


async def test_unset_field_is_the_default(stub: EncoderServiceStub) -> None:
    """Zero enum values and unset optional fields select the defaults."""
    explicit = make_request(
        "money", outputs=[pb.OUTPUT_POOLED], layers=[-1], layer_reduce=pb.LAYER_REDUCE_CONCAT,
        pooling=pb.POOLING_MEAN, normalize=True, dimensions=384, truncation=pb.TRUNCATION_ERROR,
        dtype=pb.DTYPE_FLOAT32, model="all-MiniLM-L6-v2",
    )  # fmt: skip
    unspecified = make_request("money", outputs=[pb.OUTPUT_UNSPECIFIED])
    responses = [await stub.Encode(request) for request in (make_request("money"), explicit, unspecified)]
    assert responses[0].results == responses[1].results == responses[2].results


OPENAI_FIELDS = {"id", "object", "created", "owned_by"}


def rest_value(enum: Any, value: Any) -> Any:
    """Return an enum value, or a list of them, in REST spelling."""
    if not isinstance(value, int):
        return [rest_value(enum, item) for item in value]
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    return enum.values_by_number[value].name.removeprefix(prefix).lower()


async def test_model_equals_that_of_rest(stub: EncoderServiceStub, rest_client: httpx.AsyncClient) -> None:
    info, expected = await stub.GetModel(pb.GetModelRequest()), (await rest_client.get("/v1/model")).json()
    assert {field.name for field in pb.Model.DESCRIPTOR.fields} == set(expected) - OPENAI_FIELDS
    assert list((await stub.ListModels(pb.ListModelsRequest())).models) == [info]
    enums = {field.name: field.enum_type for field in pb.Model.DESCRIPTOR.fields if field.enum_type}
    messages = {
        "limits",
        "prompts",
        "training",
        "evaluations",
        "multi_vector",
        "sparse",
        "role_max_tokens",
        "layer_structure",
    }
    for name in set(expected) - OPENAI_FIELDS - messages:
        value = getattr(info, name) or None
        if name in enums:
            value = rest_value(enums[name], value)
        assert (list(value or ()) or None if isinstance(expected[name], list) else value) == (expected[name] or None), (
            name
        )
    assert {name: getattr(info.limits, name) for name in expected["limits"]} == expected["limits"]
    form = {field.name: field.enum_type for field in pb.LayerStructure.DESCRIPTOR.fields}
    values = {name: getattr(info.layer_structure, name) for name in form}
    assert {name: rest_value(form[name], value) if form[name] else value for name, value in values.items()} == expected[
        "layer_structure"
    ]
    assert (info.HasField("training"), info.HasField("multi_vector"), list(info.evaluations)) == (False, False, [])
    assert (expected["training"], expected["multi_vector"], expected["evaluations"]) == (None, None, [])


async def stream(*requests: pb.EncodeStreamRequest) -> AsyncIterator[pb.EncodeStreamRequest]:
    for request in requests:
        yield request


async def test_stream_responds_in_order(stub: EncoderServiceStub) -> None:
    """There are more requests, long and short, than may be in progress."""
    sizes = [1 + (7 * n) % 40 for n in range(50)]
    requests = stream(*(stream_request("word " * size, str(index)) for index, size in enumerate(sizes)))
    responses = [response async for response in stub.EncodeStream(requests)]
    assert [response.response.results[0].token_count for response in responses] == [size + 2 for size in sizes]
    assert [response.id for response in responses] == [str(index) for index in range(50)]


async def test_errors_do_not_end_the_stream(stub: EncoderServiceStub) -> None:
    """Errors are messages in the stream."""
    invalid = [make_request(), make_request(""), make_request("a", layers=[7]), make_request("a", dtype=99)]
    requests = [pb.EncodeStreamRequest(request=request) for request in (make_request("a"), *invalid, make_request("b"))]
    responses = [response async for response in stub.EncodeStream(stream(*requests))]
    kinds = [response.WhichOneof("result") for response in responses]
    assert kinds == ["response", "error", "error", "error", "error", "response"]
    assert [response.error.code for response in responses[1:5]] == [3, 3, 3, 3]
    assert [error_info(response.error).reason for response in responses[1:3]] == ["EMPTY", "EMPTY"]
    assert responses[1].error.message == "inputs: empty. Send at least one item."


async def test_malformed_message_does_not_end_the_stream(channel: grpc.aio.Channel) -> None:
    call = channel.stream_stream(
        "/attendant.v1.EncoderService/EncodeStream", response_deserializer=pb.EncodeStreamResponse.FromString
    )

    async def messages() -> AsyncIterator[bytes]:
        for message in (b"\x0a\xff", stream_request("a").SerializeToString()):
            yield message

    first, second = [response async for response in call(messages())]
    assert (first.error.code, error_info(first.error).reason) == (3, "MALFORMED_REQUEST")
    assert second.response.results[0].token_count == 3


async def test_cancelled_stream_leaves_no_work(stub: EncoderServiceStub, server: RunningServer) -> None:
    requests = [pb.EncodeStreamRequest(request=make_request(*["word " * 200] * 4)) for _ in range(40)]
    call = stub.EncodeStream(stream(*requests))
    await call.read()
    call.cancel()
    async with httpx.AsyncClient(base_url=server.admin) as admin:
        lines: list[str] = []
        gauges = ("attendant_requests_in_flight", 'attendant_queue_size{lane="fast",model="all-MiniLM-L6-v2"}')
        async with asyncio.timeout(30):
            while not all(f"{name} 0.0" in lines for name in gauges):
                lines = (await admin.get("/metrics")).text.splitlines()
    assert (await stub.Encode(make_request("a"))).usage.tokens == 3


@pytest.fixture
def call_record() -> RequestRecord:
    record = RequestRecord("grpc", "call-1", endpoint="/attendant.v1.EncoderService/EncodeStream")
    set_current(record)
    return record


class CallContext:
    """Context of a call without a deadline."""

    def set_trailing_metadata(self, metadata: object) -> None:
        """Ignore the metadata."""

    def time_remaining(self) -> float | None:
        return None

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-request-id", "call-1"),)


@pytest.mark.usefixtures("call_record")
async def test_stream_ends_when_its_reader_fails(harness: ServiceHarness) -> None:
    """Requests before the failure must get responses."""

    async def broken() -> AsyncIterator[pb.EncodeStreamRequest]:
        yield stream_request("money")
        raise RuntimeError("connection lost")

    responses = EncoderServicer(harness.lifecycle, harness.requests).encode_stream(broken(), CallContext())
    async with asyncio.timeout(30):
        assert (await anext(responses)).WhichOneof("result") == "response"
        with pytest.raises(RuntimeError):
            await anext(responses)


@pytest.mark.usefixtures("call_record")
async def test_internal_error_in_stream_is_logged_and_counted(
    harness: ServiceHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the log record's request ID and no details. The stream continues."""

    original = OPERATIONS["encode"]

    async def broken(engine: Engine, request: EncodeRequest, call: Call) -> EncodeResponse:
        if request.inputs[0].text == "bad":
            raise KeyError("/home/secret/path")
        return await original.run(engine, request, call)

    monkeypatch.setitem(OPERATIONS, "encode", replace(original, run=broken))
    servicer = EncoderServicer(harness.lifecycle, harness.requests)
    requests = stream(stream_request("bad", "1"), stream_request("money", "2"), stream_request("", "3"))
    responses = [response async for response in servicer.encode_stream(requests, CallContext())]
    assert [(response.id, response.WhichOneof("result")) for response in responses] == [
        ("1", "error"),
        ("2", "response"),
        ("3", "error"),
    ]
    assert (responses[0].error.code, error_info(responses[0].error).reason) == (13, "INTERNAL")
    assert [error_info(response.error).metadata["request_id"] for response in responses[::2]] == ["call-1"] * 2
    assert "secret" not in str(responses)
    record, *lines = caplog.records
    assert (record.levelname, record.request_id) == ("ERROR", "call-1")  # type: ignore[attr-defined]
    assert [line.fields["reason"] for line in lines] == ["INTERNAL"]  # type: ignore[attr-defined]
    assert "KeyError" in caplog.text
    assert harness.sample("attendant_rejected_requests_total", reason="invalid") == 1


@pytest.mark.usefixtures("call_record")
async def test_rejection_in_stream_has_a_retry_delay(model: LoadedModel) -> None:
    """Other errors have no RetryInfo."""
    async with open_harness(model, max_queue_tokens=100) as harness:
        servicer = EncoderServicer(harness.lifecycle, harness.requests)
        with fast_lane(harness).reserve([100]):
            requests = stream(stream_request("money"), stream_request(""))
            full, empty = [response.error async for response in servicer.encode_stream(requests, CallContext())]
        assert error_info(full).reason == "QUEUE_FULL"
        retry = RetryInfo()
        assert full.details[-1].Unpack(retry)
        assert retry.retry_delay.ToMilliseconds() >= 1
        assert [detail.TypeName() for detail in empty.details] == ["google.rpc.ErrorInfo", "google.rpc.BadRequest"]
        assert harness.sample("attendant_rejected_requests_total", reason="queue_full") == 1


@pytest.mark.usefixtures("call_record")
async def test_requests_of_a_stream_wait_for_one_another(model: LoadedModel) -> None:
    """Two of them fill the queue. Retry policies of clients do not repeat a request of a stream."""
    async with open_harness(model, max_queue_tokens=60) as harness:
        servicer = EncoderServicer(harness.lifecycle, harness.requests)
        requests = stream(*(stream_request("money " * 25, str(number)) for number in range(40)))
        responses = [response async for response in servicer.encode_stream(requests, CallContext())]
        assert [(response.id, response.WhichOneof("result")) for response in responses] == [
            (str(number), "response") for number in range(40)
        ]


async def test_client_may_start_more_calls_than_a_connection_takes(server: RunningServer) -> None:
    """It queues the others; a call that has ended makes room at once. The client does not repeat refused calls."""
    async with grpc.aio.insecure_channel(server.grpc, options=[("grpc.enable_retries", 0)]) as channel:
        stub = EncoderServiceStub(channel)
        for _ in range(2):
            calls = [stub.Encode(make_request("money")) for _ in range(1000)]
            assert len(await asyncio.gather(*calls)) == 1000


@pytest.mark.usefixtures("call_record")
async def test_explanation_that_needs_too_much_memory_is_rejected(model: LoadedModel) -> None:
    async with open_harness(model, max_explain_bytes=1000) as harness:
        servicer = EncoderServicer(harness.lifecycle, harness.requests)
        request = pb.AttendRequest(inputs=[pb.Input(text="money bank grows")])
        with pytest.raises(RequestTooLarge) as caught:
            await anext(aiter(servicer.attend(request, CallContext())))
    assert (caught.value.field, caught.value.maximum) == ("inputs[0]", 1000)


async def test_stream_has_trailing_metadata(stub: EncoderServiceStub) -> None:
    call = stub.EncodeStream(stream(stream_request("money", "a")), metadata=(("x-request-id", "call-17"),))
    assert [response.id async for response in call] == ["a"]
    trailing = dict(await call.trailing_metadata())
    assert trailing["x-request-id"] == "call-17"
    assert trailing["x-attendant-model"].startswith("all-MiniLM-L6-v2@sha256:")


async def test_tokenize_has_the_deadline_of_the_call(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines: list[float | None] = []
    original = OPERATIONS["tokenize"]

    async def record(engine: Engine, request: TokenizeRequest, call: Call) -> TokenizeResponse:
        deadlines.append(call.deadline)
        return await original.run(engine, request, call)

    class ContextWithDeadline(CallContext):
        def time_remaining(self) -> float | None:
            return 5.0

    monkeypatch.setitem(OPERATIONS, "tokenize", replace(original, run=record))
    servicer = EncoderServicer(harness.lifecycle, harness.requests)
    for context in (CallContext(), ContextWithDeadline()):
        await servicer.methods["Tokenize"](pb.TokenizeRequest(inputs=[pb.Input(text="a")]), context)
    assert [deadline is not None for deadline in deadlines] == [False, True]


# The window of concurrent requests in a stream: order, limit, and cleanup.


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


def other_tasks() -> set["asyncio.Task[object]"]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_responses_are_in_order_and_limited_by_the_window() -> None:
    """The requests take different amounts of time."""
    running = peak = 0

    async def respond(number: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        for _ in range(number * 7 % 5):
            await asyncio.sleep(0)
        running -= 1
        return number

    assert [number async for number in respond_in_order(numbers(50), respond, 4)] == list(range(50))
    assert 1 < peak <= 4
    assert other_tasks() == set()


async def test_closing_a_full_window_leaves_no_task() -> None:
    """No task may be created for a request that waits for a slot."""
    started = 0
    full = asyncio.Event()

    async def respond(number: int) -> int:
        nonlocal started
        started += 1
        if started == 3:
            full.set()
        if number:
            await asyncio.Event().wait()
        return number

    responses = respond_in_order(numbers(10), respond, 2)
    assert await anext(responses) == 0
    waiting = asyncio.ensure_future(anext(responses))
    await asyncio.wait_for(full.wait(), 20)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert other_tasks() == set()
    assert started == 3


# Attend over gRPC: empty rows, enums, cancellation, and memory of a stream. test_products.py compares the values.

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

        async def read(gauge: str) -> float:
            lines = (await admin.get("/metrics")).text.splitlines()
            return float(next(line for line in lines if line.startswith(f"{gauge} ")).rpartition(" ")[2])

        # On a busy machine, some of the calls may be rejected because of their estimated wait.
        while await read("attendant_requests_in_flight") < sum(not call.done() for call in calls):
            pass
        assert not all(call.done() for call in calls)
        for call in calls:
            call.cancel()
        for gauge in ("attendant_requests_in_flight", 'attendant_queue_size{lane="explain",model="all-MiniLM-L6-v2"}'):
            while await read(gauge):
                pass
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
