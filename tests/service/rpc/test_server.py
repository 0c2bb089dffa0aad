"""The gRPC server: methods, health, reflection, startup, memory and the stream limit."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from attendant_client.pb import encoder_pb2
from attendant_client.pb import encoder_pb2 as pb
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from service.auth import Access
from service.config import MAX_BYTES, MAX_NUMBER, Settings
from service.engine.model_loader import LoadedModel
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.pb import inference_pb2, tei_pb2
from service.rpc.server import RpcServer
from tests.keys import make_keys
from tests.service.conftest import fast_lane, garbage, open_harness
from tests.stubs import EncoderServiceStub

SERVICE = "attendant.v1.EncoderService"
INFERENCE_SERVICE = "inference.GRPCInferenceService"
TEI_SERVICES = tuple(f"tei.v1.{name}" for name in ("Info", "Embed", "Predict", "Rerank", "Tokenize"))


@pytest.mark.parametrize("name", ["", SERVICE, INFERENCE_SERVICE, *TEI_SERVICES])
async def test_health_is_serving_for_server_and_services(channel: grpc.aio.Channel, name: str) -> None:
    response = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
    assert response.status == health_pb2.HealthCheckResponse.SERVING


async def test_health_of_an_unknown_service_is_not_found(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="unknown"))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert f'"{SERVICE}"' in raised.value.details()


async def reflect(channel: grpc.aio.Channel, **fields: str) -> reflection_pb2.ServerReflectionResponse:
    async def requests() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(**fields)

    return await reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(requests()).read()


async def test_reflection_lists_the_services(channel: grpc.aio.Channel) -> None:
    response = await reflect(channel, list_services="")
    names = {service.name for service in response.list_services_response.service}
    reflection = {"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}
    assert names == {SERVICE, INFERENCE_SERVICE, *TEI_SERVICES, "grpc.health.v1.Health"} | reflection


async def test_reflection_v1_returns_the_proto(channel: grpc.aio.Channel) -> None:
    call = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )

    async def requests() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(file_by_filename="attendant/v1/encoder.proto")

    response = await call(requests()).read()
    assert len(response.file_descriptor_response.file_descriptor_proto) >= 1


async def test_reflection_describes_every_service_that_it_lists(channel: grpc.aio.Channel) -> None:
    """grpc-requests asks for all of them before its first call."""
    services = (await reflect(channel, list_services="")).list_services_response.service
    for service in services:
        raw_files = (await reflect(channel, file_containing_symbol=service.name)).file_descriptor_response
        files = map(FileDescriptorProto.FromString, raw_files.file_descriptor_proto)
        names = {f"{file.package}.{item.name}" for file in files for item in file.service}
        assert service.name in names


async def test_health_follows_the_lifecycle_of_the_server() -> None:
    """After `set_not_serving`, the status remains NOT_SERVING."""
    metrics = Metrics(CollectorRegistry())
    server = RpcServer(Lifecycle(metrics), Settings(), metrics)
    port = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check, statuses = health_pb2_grpc.HealthStub(channel).Check, []
        for change in (None, server.set_serving(True), server.set_not_serving(), server.set_serving(True)):
            if change is not None:
                await change
            statuses.append((await check(health_pb2.HealthCheckRequest(service=SERVICE))).status)
    await server.stop(1)
    assert statuses == [2, 1, 2, 2]


async def test_server_starts_with_the_largest_options() -> None:
    """gRPC takes them as C integers."""
    metrics = Metrics(CollectorRegistry())
    limits = ("max_grpc_message_bytes", "max_connections", "max_grpc_streams", "max_grpc_connection_age_ms")
    largest = dict.fromkeys((*limits, "header_timeout_ms"), MAX_NUMBER)
    server = RpcServer(Lifecycle(metrics), Settings(max_response_bytes=MAX_BYTES, **largest), metrics)
    port = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        assert (await check(health_pb2.HealthCheckRequest(service=SERVICE))).status == 2
    await server.stop(1)


async def test_drain_ends_open_health_watches_and_new_ones_are_not_serving() -> None:
    """An open Watch through a proxy would report one server's health for all of them."""
    metrics = Metrics(CollectorRegistry())
    server = RpcServer(Lifecycle(metrics), Settings(), metrics)
    port = await server.start("127.0.0.1:0")
    await server.set_serving(True)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch, request = health_pb2_grpc.HealthStub(channel).Watch, health_pb2.HealthCheckRequest(service=SERVICE)
        first = watch(request)
        assert (await first.read()).status == health_pb2.HealthCheckResponse.SERVING
        await server.set_not_serving()
        while (response := await first.read()) is not grpc.aio.EOF:
            assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await first.code() is grpc.StatusCode.OK
        second = watch(request)
        assert (await second.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        stop = asyncio.create_task(server.stop(60))
        assert await second.read() is grpc.aio.EOF
        assert await second.code() is grpc.StatusCode.OK
    await stop


async def test_start_raises_os_error_when_port_is_in_use() -> None:
    """grpc itself would raise RuntimeError."""
    metrics = Metrics(CollectorRegistry())
    server = RpcServer(Lifecycle(metrics), Settings(), metrics)
    port = await server.start("127.0.0.1:0")
    other = Metrics(CollectorRegistry())
    with pytest.raises(OSError, match="in use"):
        await RpcServer(Lifecycle(other), Settings(), other).start(f"127.0.0.1:{port}")
    await server.stop(1)


async def test_calls_create_no_reference_cycles_with_messages(model: LoadedModel) -> None:
    """Large messages must be freed without the garbage collector. Some calls succeed, others are invalid or
    rejected. The callback for the end of a call forms a cycle with the context, which has no message.
    """
    async with open_harness(model, max_queue_tokens=200) as harness:
        server = RpcServer(harness.lifecycle, harness.settings, harness.metrics)
        port = await server.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = EncoderServiceStub(channel)

            async def encode(text: str) -> str:
                try:
                    await stub.Encode(pb.EncodeRequest(inputs=[pb.Input(text=text)]))
                except grpc.aio.AioRpcError as error:
                    return str(error.code().name)
                return "OK"

            async def encode_all() -> list[str]:
                codes = [await encode("bank"), await encode("")]
                with fast_lane(harness).reserve([200]):
                    return [*codes, await encode("bank")]

            await encode_all()
            with garbage() as uncollected:
                assert await encode_all() == ["OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"]
        await server.stop(1)
    kept = {"EncodeRequest", "EncodeResponse", "bytes", "frame", "traceback"} & set(uncollected)
    assert not kept, uncollected


async def test_calls_over_the_stream_limit_wait_for_a_stream(model: LoadedModel) -> None:
    """The limit is advertised over HTTP/2, so the client queues calls and the server never rejects any."""
    async with open_harness(model, max_grpc_streams=1) as harness:
        server = RpcServer(harness.lifecycle, harness.settings, harness.metrics)
        port = await server.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = EncoderServiceStub(channel)
            request = pb.EncodeStreamRequest(request=pb.EncodeRequest(inputs=[pb.Input(text="bank")]))
            stream = stub.EncodeStream()
            await stream.write(request)
            assert (await stream.read()).response.usage.tokens == 3
            second = asyncio.ensure_future(stub.Encode(request.request))
            await stream.write(request)
            assert (await stream.read()).response.usage.tokens == 3
            assert not second.done()
            await stream.done_writing()
            assert (await asyncio.wait_for(second, 30)).usage.tokens == 3
        await server.stop(1)


@pytest.mark.parametrize(("size", "code"), [(15_000, "OK"), (17_000, "RESOURCE_EXHAUSTED")])
async def test_metadata_have_one_limit(model: LoadedModel, size: int, code: str) -> None:
    """Between two limits, gRPC would reject a random part of the calls."""
    async with open_harness(model) as harness:
        server = RpcServer(harness.lifecycle, harness.settings, harness.metrics)
        port = await server.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = EncoderServiceStub(channel)
            for _ in range(20):
                call = stub.GetModel(pb.GetModelRequest(), metadata=(("x-large", "a" * size),))
                assert (await call.code()).name == code
        await server.stop(1)


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
async def test_repeated_keys_are_rejected(model: LoadedModel, name: str) -> None:
    """A proxy might check a different one than the server does."""
    async with open_harness(model) as harness:
        server = RpcServer(harness.lifecycle, harness.settings, harness.metrics, Access(make_keys("a", "b")))
        port = await server.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = EncoderServiceStub(channel)
            values = ("Bearer a", "Bearer b") if name == "authorization" else ("a", "b")
            call = stub.GetModel(pb.GetModelRequest(), metadata=tuple((name, value) for value in values))
            assert (await call.code(), await call.details()) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{name}: repeated. Send it once.",
            )
        await server.stop(1)


# The running server serves exactly the methods in the protos.

METHODS = [
    method
    for file in (encoder_pb2, inference_pb2, tei_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
ADMIN = ("RepositoryModelLoad", "RepositoryModelUnload")
"""Methods that need an admin key, which no option sets here."""
HEADS = ("tei.v1.Embed.EmbedSparse", "tei.v1.Predict.Predict", "tei.v1.Rerank.Rerank")
"""Prefixes of methods that need a model head, which the default model lacks."""


async def call_with_empty_request(channel: grpc.aio.Channel, method: MethodDescriptor) -> grpc.StatusCode:
    """Call a method according to its descriptor and return the status."""
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    multi_callable: Any = getattr(channel, kind)(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )

    async def requests() -> AsyncIterator[Any]:
        yield request()

    call = multi_callable(requests() if method.client_streaming else request())
    try:
        if method.server_streaming:
            [message async for message in call]
        else:
            await call
    except grpc.aio.AioRpcError:
        pass
    code: grpc.StatusCode = await call.code()
    return code


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
async def test_every_method_is_served(channel: grpc.aio.Channel, method: MethodDescriptor) -> None:
    code = await call_with_empty_request(channel, method)
    if method.name in ADMIN:
        assert code == grpc.StatusCode.PERMISSION_DENIED
    elif method.full_name.startswith(HEADS):
        assert code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
    else:
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
