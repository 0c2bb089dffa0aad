"""Clients that would lock out others: they do not read, do not send, reset their calls, or only connect."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from attendant_client.pb import encoder_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service import sockets
from service.auth import Access
from service.engine.model_loader import LoadedModel
from service.memory import MemoryBudget
from service.rpc import receiving
from service.rpc.server import RpcServer
from tests.keys import make_keys
from tests.service.conftest import ServiceHarness, open_harness
from tests.service.rpc.hostile import HostileClient
from tests.stubs import EncoderServiceStub

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
