"""tei.v1: metadata, errors and streams. test_tei_products.py compares the results."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status

from service import tei
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.pb import tei_pb2 as pb
from service.request_log import RequestRecord, set_current
from service.rpc.tei import TeiServicer
from tests.conftest import RunningServer
from tests.service.conftest import open_harness
from tests.service.rpc.conftest import call_error
from tests.stubs import EmbedStub, InfoStub

TEXT = "money bank grows"


class NoDeadline:
    """The context of a call without a deadline."""

    def time_remaining(self) -> None:
        return None


@pytest.fixture
def embed(channel: grpc.aio.Channel) -> Any:
    return EmbedStub(channel)


async def test_info_matches_rest(channel: grpc.aio.Channel, rest_client: httpx.AsyncClient) -> None:
    stub = InfoStub(channel)
    info: pb.InfoResponse = await stub.Info(pb.InfoRequest())
    expected = (await rest_client.get("/info")).json()
    assert info.model_type == pb.MODEL_TYPE_EMBEDDING
    for field in info.DESCRIPTOR.fields:
        if field.name != "model_type":
            value = getattr(info, field.name) if not field.has_presence or info.HasField(field.name) else None
            assert value == expected[field.name]


async def test_response_has_the_headers_of_rest(embed: Any, rest_client: httpx.AsyncClient) -> None:
    call = embed.Embed(pb.EmbedRequest(inputs=TEXT))
    response, headers = await call, dict(await call.initial_metadata())
    expected = (await rest_client.post("/embed", json={"inputs": TEXT})).headers
    for name in ("x-compute-type", "x-compute-characters", "x-compute-tokens"):
        assert headers[name] == expected[name]
    assert headers.keys() == {name for name in expected if name.startswith("x-") and name in headers}
    assert int(headers["x-total-time"]) == response.metadata.total_time_ns // 1_000_000
    trailing = dict(await call.trailing_metadata())
    assert trailing["x-attendant-model"] == expected["x-attendant-model"]


async def test_unset_normalize_is_true_and_unset_truncate_is_false(embed: Any) -> None:
    unset, off = [
        (await embed.Embed(pb.EmbedRequest(inputs=TEXT, normalize=value))).embeddings for value in (None, False)
    ]
    assert sum(value * value for value in unset) == pytest.approx(1, abs=1e-4)
    assert sum(value * value for value in off) != pytest.approx(1, abs=1e-2)
    error = await call_error(embed.Embed(pb.EmbedRequest(inputs="word " * 300)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "inputs: too long (302 tokens, limit 256). Shorten it or set truncate to true."


@pytest.mark.parametrize(
    ("request_fields", "field", "reason"),
    [
        ({"inputs": " "}, "inputs", "EMPTY"),
        ({"inputs": TEXT, "dimensions": 0}, "dimensions", "OUT_OF_RANGE"),
        ({"inputs": TEXT, "truncation_direction": 7}, "truncation_direction", "UNKNOWN_VALUE"),
    ],
)
async def test_errors_have_details(embed: Any, request_fields: dict[str, Any], field: str, reason: str) -> None:
    error = await call_error(embed.Embed(pb.EmbedRequest(**request_fields)))
    trailing = dict(error.trailing_metadata())
    info, violations = ErrorInfo(), BadRequest()
    details = Status.FromString(trailing["grpc-status-details-bin"]).details
    assert details[0].Unpack(info)
    assert details[1].Unpack(violations)
    assert (info.reason, info.metadata["field"], violations.field_violations[0].field) == (reason, field, field)


async def test_stream_names_the_model(embed: Any, rest_client: httpx.AsyncClient) -> None:
    call = embed.EmbedStream([pb.EmbedRequest(inputs=TEXT)] * 2)
    assert len([response async for response in call]) == 2
    expected = (await rest_client.post("/embed", json={"inputs": TEXT})).headers["x-attendant-model"]
    assert dict(await call.trailing_metadata())["x-attendant-model"] == expected


async def test_first_error_ends_a_stream_after_the_earlier_responses(embed: Any) -> None:
    async def requests() -> AsyncIterator[pb.EmbedRequest]:
        for text in [*[TEXT] * 20, "", TEXT]:
            yield pb.EmbedRequest(inputs=text)

    call = embed.EmbedStream(requests())
    for _ in range(20):
        assert isinstance(await call.read(), pb.EmbedResponse)
    assert "inputs: empty or blank" in ((await call_error(call.read())).details() or "")


async def test_stream_uses_a_model_only_during_a_message(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle stream must not delay a change of the model, nor may the next message release the model of this one."""
    record, uses, embed = RequestRecord("tei", "one"), [], tei.embed

    async def observe(engine: Engine, *arguments: Any, **options: Any) -> Any:
        record.release()  # as the next message would if it used another model
        uses.append(not engine._unused.is_set())
        return await embed(engine, *arguments, **options)

    async def requests() -> AsyncIterator[pb.EmbedRequest]:
        yield pb.EmbedRequest(inputs=TEXT)
        await asyncio.Event().wait()

    monkeypatch.setattr(tei, "embed", observe)
    async with open_harness(model) as harness:
        set_current(record)
        responses = TeiServicer(harness.lifecycle).methods["EmbedStream"](requests(), NoDeadline())
        async with contextlib.aclosing(responses):
            await anext(responses)
            assert (uses, harness.engine._unused.is_set()) == ([True], True)


@pytest.mark.parametrize("method", ["Embed", "EmbedStream"])
async def test_malformed_message_is_an_error(channel: grpc.aio.Channel, method: str) -> None:
    kind = "stream_stream" if method.endswith("Stream") else "unary_unary"
    call = getattr(channel, kind)(f"/tei.v1.Embed/{method}")
    sent = b"\x0a\xff"
    error = await call_error(call([sent]).read() if kind == "stream_stream" else call(sent))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not valid protobuf" in (error.details() or "")


async def test_requests_are_counted_as_tei(embed: Any, server: RunningServer) -> None:
    async with httpx.AsyncClient(base_url=server.admin) as admin:

        async def count() -> float:
            lines = (await admin.get("/metrics")).text.splitlines()
            name = 'attendant_requests_total{api="tei",code="OK",endpoint="/tei.v1.Embed/EmbedAll"'
            return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

        before = await count()
        await embed.EmbedAll(pb.EmbedAllRequest(inputs=TEXT))
        assert await count() == before + 1
