"""Receiving messages: calls without a message, idle calls, the byte budget, and calls without a key."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import grpc
import pytest
from attendant_client.pb import encoder_pb2 as pb

from service.auth import Access
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.errors import MalformedRequest, Overloaded, RequestTimeout
from service.memory import MemoryBudget
from service.rpc.receiving import THREAD_FROM_BYTES, Receiver
from service.rpc.server import RpcServer
from tests.keys import make_keys
from tests.service.conftest import open_harness

ENCODE = "/attendant.v1.EncoderService/Encode"
ATTEND = "/attendant.v1.EncoderService/Attend"
PEER = ("127.0.0.1", 40000)
STREAM = "/attendant.v1.EncoderService/EncodeStream"


def receiver(budget: MemoryBudget | None = None, **options: Any) -> Receiver:
    options = {"max_grpc_message_bytes": 100, "max_pending_request_bytes": 200} | options
    settings = Settings(**options)
    return Receiver(settings, budget or MemoryBudget(settings.max_pending_request_bytes, "request bodies"))


async def messages(*bodies: bytes) -> AsyncIterator[bytes]:
    for body in bodies:
        yield body


async def nothing() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def receive(over: Receiver, requests: AsyncIterator[bytes], parse: Callable[[bytes], Any] = bytes) -> Any:
    data = await over.receive(requests, PEER)
    async with over.parsed(data, parse, "a") as message:
        return message


async def test_message_is_received_and_counted_until_the_call_ends() -> None:
    budget = MemoryBudget(200, "request bodies")
    async with receiver(budget).parsed(b"abc", len, "a") as parsed:
        assert (parsed, budget.used) == (3, 3)
    assert budget.used == 0


async def test_large_message_is_parsed_in_a_thread() -> None:

    over, body = receiver(max_pending_request_bytes=10**6), b"a" * THREAD_FROM_BYTES
    threads = [await receive(over, messages(part), lambda data: threading.current_thread()) for part in (b"a", body)]
    assert [thread is threading.current_thread() for thread in threads] == [True, False]


async def test_call_without_a_message_is_rejected() -> None:
    with pytest.raises(MalformedRequest, match="Call without a message"):
        await receive(receiver(), messages())


async def test_call_whose_message_does_not_arrive_is_rejected() -> None:
    with pytest.raises(RequestTimeout, match=r"limit 50 ms"):
        await receive(receiver(body_timeout_ms=50), nothing())


async def test_messages_over_the_budget_are_rejected() -> None:
    """REST bodies share this budget."""
    budget = MemoryBudget(10, "request bodies")
    budget.acquire("b", 8)
    with pytest.raises(Overloaded):
        await receive(receiver(budget), messages(b"abc"))
    assert budget.used == 8
    budget.release("b", 8)
    assert await receive(receiver(budget), messages(b"abc")) == b"abc"


async def test_stream_counts_each_message_until_the_next_one() -> None:
    budget = MemoryBudget(10, "request bodies")
    used = [budget.used async for _ in receiver(budget).stream(messages(b"abc", b"a" * 9), bytes, "a")]
    assert (used, budget.used) == ([3, 9], 0)


async def test_idle_calls_do_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls may receive at a time. Once a third one waits, the others have only a short time left."""
    monkeypatch.setattr("service.rpc.receiving.CONTENDED_TIMEOUT_S", 0.05)
    over = receiver()
    idle = [asyncio.ensure_future(receive(over, nothing())) for _ in range(2)]
    await asyncio.sleep(0)
    started = time.monotonic()
    assert await asyncio.wait_for(receive(over, messages(b"abc")), 20) == b"abc"
    assert time.monotonic() - started < 10
    assert all(isinstance(error, RequestTimeout) for error in await asyncio.gather(*idle, return_exceptions=True))


@pytest.mark.slow  # 15 s
async def test_calls_that_receive_nothing_lend_their_turns_until_data_arrive() -> None:
    """Other connections then get the turns, and the calls without a message end if their data come after all."""
    received = {("10.0.0.1", 1): 100, PEER: 0}
    settings = Settings(max_grpc_message_bytes=100, max_pending_request_bytes=200)
    over = Receiver(settings, MemoryBudget(200, "request bodies"), received.get)
    hostile = [asyncio.ensure_future(over.receive(nothing(), ("10.0.0.1", 1))) for _ in range(50)]
    await asyncio.sleep(0)
    for _ in range(3):
        assert await asyncio.wait_for(over.receive(messages(b"abc"), PEER), 0.5) == b"abc"
    slow = [asyncio.ensure_future(over.receive(nothing(), PEER)) for _ in range(2)]
    async with asyncio.timeout(20):
        while over.free_turns:
            await asyncio.sleep(0)
            received[PEER] += 10**6  # these two do receive, and keep their turns
        received["10.0.0.1", 1] += 10**6
        errors = await asyncio.gather(*hostile, return_exceptions=True)
    assert all(isinstance(error, RequestTimeout) for error in errors)
    for call in slow:
        call.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert int(over.free_turns) == 2


async def test_turns_are_conserved_whatever_ends_a_call() -> None:
    """Calls get a message, time out, or are cancelled while they wait for a turn, have it, or have lent it."""
    received: dict[tuple[str, int], int] = dict.fromkeys([("10.0.0.1", 1), ("10.0.0.2", 2)], 0)
    settings = Settings(max_grpc_message_bytes=100, max_pending_request_bytes=300, body_timeout_ms=200)
    over = Receiver(settings, MemoryBudget(300, "request bodies"), received.get)
    random = Random(1)
    calls = []
    for _ in range(300):
        peer = random.choice(list(received))
        calls.append(asyncio.ensure_future(over.receive(random.choice([nothing, messages])(), peer)))
        received[peer] += random.choice([0, 0, 5000, 10**5])
        await asyncio.sleep(random.choice([0, 0, 0.001]))
        random.choice(calls).cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert over.free_turns == 3


@pytest.mark.parametrize("method", [ENCODE, ATTEND, STREAM, "/attendant.v1.EncoderService/Nothing"])
async def test_key_is_checked_before_the_message_arrives(model: LoadedModel, method: str) -> None:
    """The call never sends a message."""
    async with open_harness(model) as harness:
        server = RpcServer(harness.lifecycle, Settings(), harness.metrics, Access(make_keys("secret")))
        port = await server.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_unary(method)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await asyncio.wait_for(call(nothing()), 20)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await server.stop(0)
        assert harness.sample("attendant_rejected_requests_total", reason="auth", api="grpc") == 1


async def test_unary_call_without_a_message_ends(model: LoadedModel) -> None:
    async with open_harness(model) as harness:
        server = RpcServer(harness.lifecycle, Settings(body_timeout_ms=100), harness.metrics)
        port = await server.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_unary(ENCODE, request_serializer=pb.EncodeRequest.SerializeToString)
            codes = []
            for requests in (nothing(), messages()):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await asyncio.wait_for(call(requests), 20)
                codes.append(raised.value.code())
        await server.stop(0)
    assert codes == [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INVALID_ARGUMENT]


async def test_connections_over_the_limit_are_not_accepted(model: LoadedModel) -> None:
    async with open_harness(model) as harness:
        server = RpcServer(harness.lifecycle, Settings(max_connections=2), harness.metrics)  # grpc accepts 3
        port = await server.start("127.0.0.1:0")
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(4)]
        for channel in channels[:3]:
            await asyncio.wait_for(channel.channel_ready(), 20)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channels[3].channel_ready(), 0.3)
        for channel in channels:
            await channel.close()
        await server.stop(0)
