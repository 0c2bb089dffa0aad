"""EncoderService: the numbers of REST, streams in order, and faults that end nothing but themselves."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import EncodeRequest, EncodeResponse, TokenizeRequest, TokenizeResponse
from service.pb import encoder_pb2 as pb
from service.pb.encoder_pb2_grpc import EncoderServiceStub
from service.rpc.servicer import EncoderServicer
from tests.conftest import RunningServer
from tests.service.conftest import House, fast_lane, open_house

TEXTS = ["money bank grows", "nul \x00 inside", "👩\u200d💻 joined", "\u202eright to left"]
VECTORS = ("pooled", "token_vectors", "word_vectors", "span_vectors", "static_vectors")


def request_of(*texts: str, **fields: Any) -> pb.EncodeRequest:
    return pb.EncodeRequest(inputs=[pb.Input(text=text) for text in texts], **fields)


@pytest.mark.parametrize("text", TEXTS)
async def test_values_equal_those_of_rest(stub: EncoderServiceStub, rest_door: httpx.AsyncClient, text: str) -> None:
    """Bit for bit, with the same tokens and words."""
    spans = [{"start": 0, "end": 3}]
    body = {"inputs": [{"text": text, "spans": [[0, 3]]}], "outputs": ["pooled", "tokens", "words", "spans", "static"]}
    (theirs,) = (await rest_door.post("/v1/encode", json={**body, "encoding": "base64"})).json()["results"]
    (ours,) = (await stub.Encode(pb.EncodeRequest(
        inputs=[pb.Input(text=text, spans=[pb.Span(**span) for span in spans])], outputs=pb.Output.keys()[1:]
    ))).results  # fmt: skip
    for name in VECTORS:
        tensor = getattr(ours, name)
        assert (list(tensor.shape), tensor.dtype) == (theirs[name]["shape"], pb.DTYPE_FLOAT32)
        assert tensor.data == base64.b64decode(theirs[name]["data"])
    tokens = [[token.id, token.text, token.start, token.end, token.special] for token in ours.tokens]
    assert tokens == [[token[key] for key in ("id", "text", "start", "end", "special")] for token in theirs["tokens"]]
    assert [token.word if token.HasField("word") else None for token in ours.tokens] == [
        token["word"] for token in theirs["tokens"]
    ]
    assert [word.text for word in ours.words] == [word["text"] for word in theirs["words"]]
    assert (ours.token_count, ours.truncated) == (theirs["token_count"], theirs["truncated"])


async def test_unset_field_is_the_default(stub: EncoderServiceStub) -> None:
    """Zeros of every enum, and none of the optional ones."""
    named = request_of(
        "money", outputs=[pb.OUTPUT_POOLED], layers=[-1], layer_reduce=pb.LAYER_REDUCE_CONCAT,
        pooling=pb.POOLING_MEAN, normalize=True, dimensions=384, truncation=pb.TRUNCATION_ERROR,
        dtype=pb.DTYPE_FLOAT32, model="all-MiniLM-L6-v2",
    )  # fmt: skip
    plain = request_of("money", outputs=[pb.OUTPUT_UNSPECIFIED])
    answers = [await stub.Encode(request) for request in (request_of("money"), named, plain)]
    assert answers[0].results == answers[1].results == answers[2].results


@pytest.mark.parametrize(("number", "numpy_type", "size"), [(1, "<f4", 384), (2, "<f2", 384), (3, "i1", 384),
                                                            (4, "u1", 48)])  # fmt: skip
async def test_element_types(stub: EncoderServiceStub, number: Any, numpy_type: str, size: int) -> None:
    """The bytes are little-endian elements of the type named."""
    (result,) = (await stub.Encode(request_of("money", dtype=number))).results
    assert np.frombuffer(result.pooled.data, numpy_type).shape == (size,)
    assert (list(result.pooled.shape), result.pooled.dtype) == ([size], number)


async def test_truncation_and_usage(stub: EncoderServiceStub) -> None:
    """Counted as in REST."""
    found = await stub.Encode(request_of("word " * 300, "a", truncation=pb.TRUNCATION_LEFT))
    assert [result.truncated for result in found.results] == [True, False]
    assert (found.usage.tokens, found.usage.truncated_inputs) == (259, 1)


async def test_tokenize_is_that_of_rest(stub: EncoderServiceStub, rest_door: httpx.AsyncClient) -> None:
    """The same tokens and words."""
    theirs = (await rest_door.post("/v1/tokenize", json={"inputs": TEXTS})).json()["results"]
    found = await stub.Tokenize(pb.TokenizeRequest(inputs=[pb.Input(text=text) for text in TEXTS]))
    assert [result.token_count for result in found.results] == [result["token_count"] for result in theirs]
    assert [[token.text for token in result.tokens] for result in found.results] == [
        [token["text"] for token in result["tokens"]] for result in theirs
    ]


async def test_model_equals_that_of_rest(stub: EncoderServiceStub, rest_door: httpx.AsyncClient) -> None:
    """Every field that both tell."""
    found, theirs = await stub.GetModel(pb.GetModelRequest()), (await rest_door.get("/v1/model")).json()
    assert {field.name for field in pb.GetModelResponse.DESCRIPTOR.fields} == set(theirs)
    for name in set(theirs) - {"limits", "pooling", "prompts"}:
        value = getattr(found, name)
        assert (list(value) if isinstance(theirs[name], list) else value) == theirs[name], name
    assert pb.Pooling.Name(found.pooling) == f"POOLING_{theirs['pooling'].upper()}"
    assert {name: getattr(found.limits, name) for name in theirs["limits"]} == theirs["limits"]


async def stream(*requests: pb.EncodeRequest) -> AsyncIterator[pb.EncodeRequest]:
    for request in requests:
        yield request


async def test_stream_responds_in_order(stub: EncoderServiceStub) -> None:
    """Long ones before short ones, and more than are worked on at a time."""
    sizes = [1 + (7 * n) % 40 for n in range(50)]
    requests = stream(*(request_of("word " * size) for size in sizes))
    found = [reply.response.results[0].token_count async for reply in stub.EncodeStream(requests)]
    assert found == [size + 2 for size in sizes]


async def test_errors_in_a_stream_end_only_themselves(stub: EncoderServiceStub) -> None:
    """As a message in the place of the answer."""
    bad = (request_of(), request_of(""), request_of("a", layers=[7]), request_of("a", dtype=99))
    replies = [reply async for reply in stub.EncodeStream(stream(request_of("a"), *bad, request_of("b")))]
    kinds = [reply.WhichOneof("reply") for reply in replies]
    assert kinds == ["response", "error", "error", "error", "error", "response"]
    assert [reply.error.code for reply in replies[1:5]] == [3, 3, 3, 3]
    assert [reply.error.reason for reply in replies[1:3]] == ["empty_input", "empty_input"]
    assert replies[1].error.message == "inputs is empty; send at least one."


async def test_bytes_that_are_no_message_do_not_end_the_stream(channel: grpc.aio.Channel) -> None:
    """INVALID_ARGUMENT in their place."""
    call = channel.stream_stream(
        "/attendant.v1.EncoderService/EncodeStream", response_deserializer=pb.EncodeStreamResponse.FromString
    )

    async def sent() -> AsyncIterator[bytes]:
        for part in (b"\x0a\xff", request_of("a").SerializeToString()):
            yield part

    first, second = [reply async for reply in call(sent())]
    assert (first.error.code, first.error.reason) == (3, "unreadable")
    assert second.response.results[0].token_count == 3


async def test_leaving_a_stream_leaves_nothing_behind(stub: EncoderServiceStub, server: RunningServer) -> None:
    """The queue is empty and nothing is in flight once the server has noticed."""
    requests = [request_of(*["word " * 200] * 4) for _ in range(40)]
    call = stub.EncodeStream(stream(*requests))
    await call.read()
    call.cancel()
    async with httpx.AsyncClient(base_url=server.admin) as admin:
        lines: list[str] = []
        wanted = ("attendant_requests_in_flight", 'attendant_queue_texts{lane="fast"}')
        async with asyncio.timeout(30):
            while not all(f"{name} 0.0" in lines for name in wanted):
                lines = (await admin.get("/metrics")).text.splitlines()
    assert (await stub.Encode(request_of("a"))).usage.tokens == 3


class CallContext:
    """A context of a call without a deadline."""

    def time_remaining(self) -> float | None:
        return None

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-request-id", "call-1"),)


async def test_stream_ends_when_its_reader_fails(house: House) -> None:
    """What was read is answered, and the fault is told instead of being waited for."""

    async def broken() -> AsyncIterator[pb.EncodeRequest]:
        yield request_of("money")
        raise RuntimeError("the connection broke")

    replies = EncoderServicer(house.host, house.settings, house.metrics).EncodeStream(broken(), CallContext())
    async with asyncio.timeout(30):
        assert (await anext(replies)).WhichOneof("reply") == "response"
        with pytest.raises(RuntimeError):
            await anext(replies)


async def test_internal_error_in_stream_is_logged_and_counted(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """The message has the request ID of the log record and nothing else; the stream goes on."""

    async def broken(request: EncodeRequest) -> EncodeResponse:
        if request.inputs[0].source.text == "bad":
            raise KeyError("/home/secret/path")
        return await encode(request)

    encode = house.engine.encode
    house.engine.encode = broken  # type: ignore[method-assign]
    servicer = EncoderServicer(house.host, house.settings, house.metrics)
    requests = stream(request_of("bad"), request_of("money"), request_of(""))
    replies = [reply async for reply in servicer.EncodeStream(requests, CallContext())]
    assert [reply.WhichOneof("reply") for reply in replies] == ["error", "response", "error"]
    assert (replies[0].error.code, replies[0].error.reason) == (13, "internal")
    assert [reply.error.request_id for reply in replies] == ["call-1", "", "call-1"]
    assert "secret" not in str(replies)
    (record,) = caplog.records
    assert (record.levelname, record.request_id) == ("ERROR", "call-1")  # type: ignore[attr-defined]
    assert "KeyError" in caplog.text
    assert house.sample("attendant_rejected_total", reason="invalid") == 1


async def test_rejection_in_stream_has_a_retry_delay(model: LoadedModel) -> None:
    """As the pushback of Encode; other errors have none."""
    async with open_house(model, max_queue_tokens=100) as house:
        servicer = EncoderServicer(house.host, house.settings, house.metrics)
        with fast_lane(house).reserve(100):
            requests = stream(request_of("money"), request_of(""))
            full, empty = [reply.error async for reply in servicer.EncodeStream(requests, CallContext())]
        assert (full.reason, full.HasField("retry_after_ms")) == ("queue_full", True)
        assert full.retry_after_ms >= 1
        assert not empty.HasField("retry_after_ms")
        assert house.sample("attendant_rejected_total", reason="queue_full") == 1


async def test_tokenize_has_the_deadline_of_the_call(house: House) -> None:
    deadlines: list[float | None] = []
    tokenize = house.engine.tokenize

    async def note(request: TokenizeRequest) -> TokenizeResponse:
        deadlines.append(request.deadline)
        return await tokenize(request)

    class Timed(CallContext):
        def time_remaining(self) -> float | None:
            return 5.0

    house.engine.tokenize = note  # type: ignore[method-assign]
    servicer = EncoderServicer(house.host, house.settings, house.metrics)
    for context in (CallContext(), Timed()):
        await servicer.Tokenize(pb.TokenizeRequest(inputs=[pb.Input(text="a")]), context)
    assert [deadline is not None for deadline in deadlines] == [False, True]
