"""A channel to the session's server, and the metrics of that server."""

from collections.abc import AsyncIterator

import grpc
import httpx
import pytest

from service.pb import encoder_pb2 as pb
from service.pb.encoder_pb2_grpc import EncoderServiceStub
from tests.conftest import RunningServer


@pytest.fixture
async def channel(server: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    """As any client opens one."""
    async with grpc.aio.insecure_channel(
        server.grpc, options=[("grpc.max_receive_message_length", 64 * 2**20)]
    ) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> EncoderServiceStub:
    """The generated client."""
    return EncoderServiceStub(channel)  # type: ignore[no-untyped-call]


@pytest.fixture
def golden() -> pb.EncodeRequest:
    """A small request."""
    return pb.EncodeRequest(inputs=[pb.Input(text="money bank grows")])


@pytest.fixture
async def rest_door(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    """The same server's other door."""
    async with httpx.AsyncClient(base_url=server.rest, timeout=60) as client:
        yield client
