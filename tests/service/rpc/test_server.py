"""Health and reflection, as standard clients ask for them."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.pb import encoder_pb2 as pb
from service.pb.encoder_pb2_grpc import EncoderServiceStub
from service.rpc.server import RpcServer
from tests.service.conftest import fast_lane, garbage, open_house

SERVICE = "attendant.v1.EncoderService"


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_health_says_serving(channel: grpc.aio.Channel, name: str) -> None:
    """For the server and for the service."""
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_health_of_an_unknown_service(channel: grpc.aio.Channel) -> None:
    """NOT_FOUND."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def ask(channel: grpc.aio.Channel, **question: str) -> reflection_pb2.ServerReflectionResponse:
    async def questions() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(**question)

    return await reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(questions()).read()


async def test_reflection_lists_the_services(channel: grpc.aio.Channel) -> None:
    """Ours, health and reflection itself."""
    found = await ask(channel, list_services="")
    names = {service.name for service in found.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_reflection_hands_out_the_contract(channel: grpc.aio.Channel) -> None:
    """Enough for grpcurl to call every method."""
    found = await ask(channel, file_containing_symbol=SERVICE)
    (file,) = [FileDescriptorProto.FromString(raw) for raw in found.file_descriptor_response.file_descriptor_proto]
    methods = [method.name for method in file.service[0].method]
    assert file.package == "attendant.v1"
    assert methods == ["Encode", "EncodeStream", "Attend", "Compare", "Tokenize", "GetModel"]


async def test_health_follows_the_life_of_the_server() -> None:
    """NOT_SERVING, SERVING, and NOT_SERVING for good."""
    metrics = Metrics(CollectorRegistry())
    server = RpcServer(Lifecycle(metrics), Settings(), metrics, None)
    port = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check, said = health_pb2_grpc.HealthStub(channel).Check, []
        for change in (None, server.set_serving(True), server.set_not_serving(), server.set_serving(True)):
            if change is not None:
                await change
            said.append((await check(health_pb2.HealthCheckRequest(service=SERVICE))).status)
    await server.stop(1)
    assert said == [2, 1, 2, 2]


async def test_start_raises_os_error_when_port_is_in_use() -> None:
    """Not the library's own."""
    metrics = Metrics(CollectorRegistry())
    server = RpcServer(Lifecycle(metrics), Settings(), metrics, None)
    port = await server.start("127.0.0.1:0")
    other = Metrics(CollectorRegistry())
    with pytest.raises(OSError, match="in use"):
        await RpcServer(Lifecycle(other), Settings(), other, None).start(f"127.0.0.1:{port}")
    await server.stop(1)


async def test_calls_leave_no_garbage(model: LoadedModel) -> None:
    """Answered, invalid, refused by a full queue: every message goes at once, for they may be large and many."""
    async with open_house(model, max_queue_tokens=200) as house:
        server = RpcServer(house.host, house.settings, house.metrics, None)
        port = await server.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = EncoderServiceStub(channel)  # type: ignore[no-untyped-call]

            async def ask(text: str) -> str:
                try:
                    await stub.Encode(pb.EncodeRequest(inputs=[pb.Input(text=text)]))
                except grpc.aio.AioRpcError as error:
                    return str(error.code().name)
                return "OK"

            async def ask_all() -> list[str]:
                found = [await ask("bank"), await ask("")]
                with fast_lane(house).reserve(200):
                    return [*found, await ask("bank")]

            await ask_all()
            with garbage() as left:
                assert await ask_all() == ["OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"]
        await server.stop(1)
    assert not {"EncodeRequest", "_ServicerContext", "AbortError", "frame", "traceback"} & set(left), left


async def test_calls_over_the_stream_limit_wait_for_a_stream(model: LoadedModel) -> None:
    """The client queues them: HTTP/2 tells it the limit, so the server has nothing to reject."""
    async with open_house(model, max_grpc_streams=1) as house:
        server = RpcServer(house.host, house.settings, house.metrics, None)
        port = await server.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = EncoderServiceStub(channel)  # type: ignore[no-untyped-call]
            request = pb.EncodeRequest(inputs=[pb.Input(text="bank")])
            stream = stub.EncodeStream()
            await stream.write(request)
            assert (await stream.read()).response.usage.tokens == 3
            second = asyncio.ensure_future(stub.Encode(request))
            await stream.write(request)
            assert (await stream.read()).response.usage.tokens == 3
            assert not second.done()
            await stream.done_writing()
            assert (await asyncio.wait_for(second, 30)).usage.tokens == 3
        await server.stop(1)
