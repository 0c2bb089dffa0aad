"""The Open Inference Protocol over gRPC: streams, deadlines, metadata and health.

test_oip_products.py compares outputs with the native API.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import httpx
from prometheus_client import CollectorRegistry

from service.auth import Access
from service.config import Settings
from service.engine.engine import Engine, Models
from service.engine.model_loader import LoadedModel
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.pb import inference_pb2 as pb
from service.rpc.server import RpcServer
from tests.conftest import RunningServer
from tests.keys import make_keys
from tests.oip_messages import grpc_outputs, grpc_request, text
from tests.service.rpc.conftest import call_error
from tests.stubs import GRPCInferenceServiceStub

MODEL = "all-MiniLM-L6-v2"


async def send(*requests: pb.ModelInferRequest) -> AsyncIterator[pb.ModelInferRequest]:
    for request in requests:
        yield request


async def test_stream_keeps_the_order_and_survives_errors(inference: GRPCInferenceServiceStub) -> None:
    requests = [grpc_request(MODEL, [text(*["word"] * (1 + index % 3))], id=str(index)) for index in range(20)]
    requests[3].model_name = "other"
    requests[5].inputs[0].shape[0] = 9
    call = inference.ModelStreamInfer(send(*requests))
    responses = [response async for response in call]
    assert dict(await call.trailing_metadata())["x-attendant-model"].startswith(f"{MODEL}@sha256:")
    assert [response.infer_response.id for response in responses] == [str(index) for index in range(20)]
    for index, response in enumerate(responses):
        assert bool(response.error_message) == (index in (3, 5))
        if not response.error_message:
            assert grpc_outputs(response.infer_response)["pooled"].shape == (1 + index % 3, 384)
            assert response.infer_response.parameters["triton_final_response"].bool_param
    assert responses[3].error_message == f'model_name: not found ("other"). This server serves "{MODEL}".'
    assert responses[5].error_message.startswith("raw_input_contents[0]: 3 elements, but the shape has 9.")


async def test_malformed_message_of_a_stream_is_its_own_error(channel: grpc.aio.Channel) -> None:
    call = channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=bytes,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )

    async def messages() -> AsyncIterator[bytes]:
        yield b"\xff\xff"
        yield grpc_request(MODEL, [text("a")], id="1").SerializeToString()

    first, second = [response async for response in call(messages())]
    assert first.error_message.startswith("Message is not valid protobuf")
    assert (second.error_message, second.infer_response.id) == ("", "1")


async def test_cancelled_stream_leaves_no_work(inference: GRPCInferenceServiceStub, server: RunningServer) -> None:
    call = inference.ModelStreamInfer(send(*[grpc_request(MODEL, [text(*["word " * 200] * 4)])] * 40))
    await call.read()
    call.cancel()
    async with httpx.AsyncClient(base_url=server.admin) as admin, asyncio.timeout(30):
        idle = ("attendant_requests_in_flight 0.0", f'attendant_queue_size{{lane="fast",model="{MODEL}"}} 0.0')
        lines: Sequence[str] = ()
        while not set(idle) <= set(lines):
            lines = (await admin.get("/metrics")).text.splitlines()
    await inference.ModelInfer(grpc_request(MODEL, [text("a")]))


async def test_deadline(inference: GRPCInferenceServiceStub) -> None:
    request = grpc_request(MODEL, [text(*["word " * 250] * 256)])
    error = await call_error(inference.ModelInfer(request, timeout=0.05))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    request = grpc_request(MODEL, [text("a")], parameters={"timeout": 1})
    assert (await call_error(inference.ModelInfer(request))).code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_reads_match_rest(inference: GRPCInferenceServiceStub, rest_client: httpx.AsyncClient) -> None:
    async def get(path: str, method: str = "GET") -> Any:
        return (await rest_client.request(method, path)).json()

    server = await inference.ServerMetadata(pb.ServerMetadataRequest())
    assert server == pb.ServerMetadataResponse(**await get("/v2"))
    metadata = await inference.ModelMetadata(pb.ModelMetadataRequest(name=MODEL))
    assert metadata == pb.ModelMetadataResponse(**await get(f"/v2/models/{MODEL}"))
    config = await inference.ModelConfig(pb.ModelConfigRequest(name=MODEL, version="1"))
    assert config == pb.ModelConfigResponse(config=await get(f"/v2/models/{MODEL}/config"))
    for name in ("", MODEL):
        async with asyncio.timeout(60):  # requests that other tests abandoned may still be counted
            while True:
                statistics = await inference.ModelStatistics(pb.ModelStatisticsRequest(name=name))
                rest_statistics = pb.ModelStatisticsResponse(**await get("/v2/models/stats"))
                if statistics == await inference.ModelStatistics(pb.ModelStatisticsRequest(name=name)):
                    break
        assert statistics == rest_statistics
    index = await inference.RepositoryIndex(pb.RepositoryIndexRequest(ready=True))
    assert index == pb.RepositoryIndexResponse(models=await get("/v2/repository/index", "POST"))


async def test_unknown_models_and_versions_are_not_found(inference: GRPCInferenceServiceStub) -> None:
    for call, request in (
        (inference.ModelReady, pb.ModelReadyRequest), (inference.ModelMetadata, pb.ModelMetadataRequest),
        (inference.ModelConfig, pb.ModelConfigRequest), (inference.ModelStatistics, pb.ModelStatisticsRequest),
    ):  # fmt: skip
        for fields in ({"name": "x"}, {"name": MODEL, "version": "2"}):
            assert (await call_error(call(request(**fields)))).code() is grpc.StatusCode.NOT_FOUND


async def test_models_cannot_be_loaded_without_admin_keys(inference: GRPCInferenceServiceStub) -> None:
    for call in (
        inference.RepositoryModelLoad(pb.RepositoryModelLoadRequest()),
        inference.RepositoryModelUnload(pb.RepositoryModelUnloadRequest()),
    ):
        error = await call_error(call)
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert error.details() == "No admin key is configured. Set ATTENDANT_ADMIN_KEYS_FILE and restart the server."


async def test_readiness_follows_the_lifecycle_and_needs_no_key(model: LoadedModel) -> None:
    """The states are starting, ready, draining, rejecting and failed."""
    settings, metrics = Settings(), Metrics(CollectorRegistry())
    lifecycle = Lifecycle(metrics)
    server = RpcServer(lifecycle, settings, metrics, Access(make_keys("secret")))
    port = await server.start("127.0.0.1:0")
    engine = Engine(model, settings, metrics)
    key = (("authorization", "Bearer secret"),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = GRPCInferenceServiceStub(channel)

        async def states() -> tuple[bool, bool, bool, str]:
            live = await stub.ServerLive(pb.ServerLiveRequest())
            ready = await stub.ServerReady(pb.ServerReadyRequest())
            model_ready = await stub.ModelReady(pb.ModelReadyRequest(name=MODEL), metadata=key)
            try:
                await stub.ModelInfer(grpc_request(MODEL, [text("a")]), metadata=key)
            except grpc.aio.AioRpcError as error:
                return live.live, ready.ready, model_ready.ready, error.code().name
            return live.live, ready.ready, model_ready.ready, "OK"

        assert await states() == (True, False, False, "UNAVAILABLE")
        lifecycle.become_ready(Models([engine]))
        assert await states() == (True, True, True, "OK")
        assert (await call_error(stub.ModelReady(pb.ModelReadyRequest(name=MODEL)))).code().name == "UNAUTHENTICATED"
        lifecycle.start_draining()
        assert await states() == (True, False, False, "OK")
        lifecycle.reject_new()
        assert await states() == (True, False, False, "UNAVAILABLE")
        lifecycle.fail()
        assert (await states())[:2] == (False, False)
    await server.stop(0)
    await engine.close()
    labels = {sample.labels["endpoint"] for family in metrics.requests.collect() for sample in family.samples}
    assert "/inference.GRPCInferenceService/ModelInfer" in labels
    assert not any(name.endswith(("ServerLive", "ServerReady")) for name in labels)
    value = metrics.registry.get_sample_value
    names = {"api": "oip", "endpoint": "/inference.GRPCInferenceService/ModelInfer", "code": "OK", "model": MODEL}
    assert value("attendant_requests_total", names) == 2
