"""A gRPC channel and a REST client for the session's server."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import httpx
import pytest
from attendant_client.pb import encoder_pb2 as pb

from tests.conftest import RunningServer
from tests.stubs import EncoderServiceStub, GRPCInferenceServiceStub


@pytest.fixture
async def channel(server: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    """A channel that accepts responses of up to 64 MiB."""
    async with grpc.aio.insecure_channel(
        server.grpc, options=[("grpc.max_receive_message_length", 64 * 2**20)]
    ) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> EncoderServiceStub:
    return EncoderServiceStub(channel)


@pytest.fixture
def inference(channel: grpc.aio.Channel) -> GRPCInferenceServiceStub:
    """The generated Open Inference Protocol client."""
    return GRPCInferenceServiceStub(channel)


@pytest.fixture
def golden() -> pb.EncodeRequest:
    """A small request."""
    return pb.EncodeRequest(inputs=[pb.Input(text="money bank grows")])


@pytest.fixture
async def rest_client(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.rest, timeout=60) as client:
        yield client


async def call_error(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    """Return the error of a call, which must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value
