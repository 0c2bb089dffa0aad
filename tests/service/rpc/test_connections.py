"""Clients that would lock out others, calls without a message or a key, and the byte budget."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import grpc
import h2.config
import h2.connection
import pytest
from attendant_client.pb import encoder_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc
from h2.settings import SettingCodes

from service import sockets
from service.auth import Access
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.errors import MalformedRequest, Overloaded, RequestTimeout
from service.memory import MemoryBudget
from service.rpc import receiving
from service.rpc.receiving import THREAD_FROM_BYTES, Receiver
from service.rpc.server import RpcServer
from tests.keys import make_keys
from tests.service.conftest import ServiceHarness, open_harness
from tests.stubs import EncoderServiceStub

PREFIX = b"\0"


class HostileClient:
    """A connection without TLS. Its window for responses is closed: the client never reads."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(20)
        self._http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._http.initiate_connection()
        self._http.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        self._stream = 1
        self._send()

    def call(self, method: str, message: bytes | None = None, *, reset: bool = False) -> None:
        """Start a call: without a message if it is None; `reset` ends it at once."""
        headers = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "localhost", "te": "trailers"}
        self._http.send_headers(self._stream, [*headers.items(), ("content-type", "application/grpc")])
        if message is not None:
            data = PREFIX + len(message).to_bytes(4, "big") + message
            self._http.send_data(self._stream, data, end_stream=True)
        if reset:
            self._http.reset_stream(self._stream)
        self._stream += 2
        self._send()

    def wait_until_closed(self) -> None:
        """Discard what the server sends, until it closes the connection."""
        while self._socket.recv(2**16):
            pass

    def close(self) -> None:
        self._socket.close()

    def _send(self) -> None:
        self._socket.sendall(self._http.data_to_send())


# Clients that would lock out others: they do not read, do not send, reset their calls, or only connect.

ENCODE = "/attendant.v1.EncoderService/Encode"
TOKENS = pb.EncodeRequest(
    inputs=[pb.Input(text="bank " * 200)] * 4, outputs=[pb.OUTPUT_TOKENS], truncation=pb.TRUNCATION_RIGHT
)


@pytest.fixture(autouse=True)
def frequent_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "PERIOD_S", 0.05)


@asynccontextmanager
async def serving(
    model: LoadedModel, access: Access | None = None, **options: Any
) -> AsyncIterator[tuple[ServiceHarness, int, MemoryBudget]]:
    async with open_harness(model, **options) as harness:
        requests = harness.requests
        server = RpcServer(harness.lifecycle, harness.settings, harness.metrics, access or Access(), requests=requests)
        port = await server.start("127.0.0.1:0")
        assert requests.responses is not None
        try:
            yield harness, port, requests.responses
        finally:
            await server.stop(0)


async def until(holds: Any) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def encode(port: int, text: str = "bank", **metadata: str) -> float:
    """Send a request over a new connection, and return its duration in seconds."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        started = time.monotonic()
        stub = EncoderServiceStub(channel)
        await stub.Encode(pb.EncodeRequest(inputs=[pb.Input(text=text)]), metadata=tuple(metadata.items()), timeout=20)
        return time.monotonic() - started


async def test_unread_responses_count_until_their_calls_end(model: LoadedModel) -> None:
    """Later calls of the same address are rejected before inference, and accepted once the connection is gone."""
    size = TOKENS.ByteSize()
    async with serving(model, max_pending_response_bytes=2 * 2**20 + size) as (harness, port, responses):
        client = HostileClient(port)
        for _ in range(4):
            client.call(ENCODE, TOKENS.SerializeToString())
        await until(lambda: harness.sample("attendant_rejected_requests_total", api="grpc", reason="overload") > 0)
        await asyncio.sleep(0.2)
        used = responses.used
        assert 2**20 < used <= 2 * 2**20 + size
        await asyncio.sleep(0.2)
        assert responses.used == used
        client.close()
        await until(lambda: responses.used == 0)
        await encode(port)


async def test_connection_of_a_client_that_does_not_read_is_closed(model: LoadedModel) -> None:
    message = pb.EncodeRequest(inputs=[pb.Input(text="bank")])
    async with serving(model, response_stall_timeout_ms=300) as (harness, port, responses):
        client = HostileClient(port)
        for _ in range(8):
            client.call(ENCODE, message.SerializeToString())
        await asyncio.wait_for(asyncio.to_thread(client.wait_until_closed), 60)
        await until(lambda: responses.used == 0)
        assert harness.sample("attendant_closed_connections_total", api="grpc", reason="stalled") >= 1
        client.close()


async def test_calls_without_a_message_hold_up_nobody(model: LoadedModel) -> None:
    """If each call held one of the turns that request memory allows, others would wait for a second or more."""
    async with serving(model) as (_, port, _):
        clients = [HostileClient(port) for _ in range(2)]
        for client in clients:
            for _ in range(200):
                client.call(ENCODE)
        await asyncio.sleep(0.2)
        rounds = [max(await asyncio.gather(*(encode(port) for _ in range(20)))) for _ in range(3)]
        assert min(rounds) < 1, "in each round, one of the others waits for a second or more"
        for client in clients:
            client.close()


async def test_connection_with_many_reset_calls_is_closed(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls leave no line in the log."""
    monkeypatch.setattr(receiving, "MAX_RESETS", 20)
    async with serving(model) as (harness, port, _):
        client = HostileClient(port)

        def flood() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client.call(ENCODE, reset=True)

        await asyncio.wait_for(asyncio.to_thread(flood), 20)
        assert harness.sample("attendant_closed_connections_total", api="grpc", reason="resets") == 1
        client.close()


async def test_call_with_a_message_over_the_limit_counts_as_cancelled(model: LoadedModel) -> None:
    """grpc rejects it. Nothing shows what the client sent, so the log does not call it malformed."""
    async with serving(model) as (harness, port, _):
        with pytest.raises(grpc.aio.AioRpcError, match="Received message larger than max"):
            await encode(port, "a" * 9 * 2**20)
        await until(lambda: harness.sample("attendant_requests_total", endpoint=ENCODE) > 0)
        assert harness.sample("attendant_requests_total", endpoint=ENCODE, code="CANCELLED") == 1


async def test_idle_connections_make_room_and_expire(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of a caller stays."""
    key = {"authorization": "Bearer secret"}
    limits = {"max_connections": 6, "max_connections_per_address": 6}
    async with serving(model, Access(make_keys("secret")), **limits) as (harness, port, _):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = EncoderServiceStub(channel)
            health = health_pb2_grpc.HealthStub(channel)
            request = pb.EncodeRequest(inputs=[pb.Input(text="bank")])
            await stub.Encode(request, metadata=tuple(key.items()))
            idle = [HostileClient(port) for _ in range(5)]
            await until(lambda: harness.sample("attendant_grpc_connections") == 6)
            more = [HostileClient(port) for _ in range(3)]
            await until(lambda: harness.sample("attendant_closed_connections_total", api="grpc", reason="limit") == 3)
            await encode(port, **key)
            monkeypatch.setattr("service.connections.UNKNOWN_IDLE_S", 0.3)
            await until(lambda: harness.sample("attendant_grpc_connections") == 1)
            assert (
                harness.sample("attendant_closed_connections_total", api="grpc", reason="idle") >= 4
            )  # one may make room for encode
            peers = (await health.List(health_pb2.HealthListRequest())).statuses
            assert set(peers) >= {"", "attendant.v1.EncoderService", "inference.GRPCInferenceService"}
            await stub.Encode(request, metadata=tuple(key.items()))
        for client in idle + more:
            client.close()


async def test_sockets_of_other_ports_are_not_closed(model: LoadedModel) -> None:
    """A connection of this process to another server has the port of its own side."""
    async with serving(model, max_connections=4) as (harness, port, _):
        with socket.create_server(("127.0.0.1", 0)) as other:
            left = socket.create_connection(other.getsockname())
            right, _ = other.accept()
            await encode(port)
            await encode(port)
            await until(lambda: harness.sample("attendant_grpc_connections") == 0)
            left.sendall(b"a")
            assert right.recv(1) == b"a"
            left.close()
            right.close()


# Receiving messages: calls without a message, idle calls, the byte budget, and calls without a key.
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
