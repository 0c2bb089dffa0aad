"""The Open Inference Protocol over gRPC: streams, deadlines, metadata, health and errors."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import httpx
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from prometheus_client import CollectorRegistry

from service.auth import Access
from service.config import Settings
from service.engine.engine import Engine, Models
from service.engine.model_loader import LoadedModel
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.pb import inference_pb2 as pb
from service.rpc.inference import _varint
from service.rpc.messages import INFER_LAYOUT, MAX_FIELDS, Rejected, tolerant
from service.rpc.server import RpcServer
from tests.conftest import RunningServer
from tests.keys import make_keys
from tests.oip_messages import Tensor, grpc_outputs, grpc_request, text, token_ids
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


# Invalid Open Inference Protocol requests over gRPC: typed and raw contents, typed parameters, floods of fields. The
# errors that REST and gRPC share are tested over REST, in rest/routes/test_oip.py.
GOLDEN = "money bank grows"
IDS = [2769, 2924, 7502]


def changed(change: Callable[[pb.ModelInferRequest], Any], *tensors: Tensor, raw: bool = True) -> pb.ModelInferRequest:
    request = grpc_request(MODEL, tensors or [text(GOLDEN)], raw=raw)
    change(request)
    return request


def set_shape(*shape: int) -> Callable[[pb.ModelInferRequest], Any]:
    def change(request: pb.ModelInferRequest) -> None:
        request.inputs[0].shape[:] = shape

    return change


def set_raw(data: bytes) -> Callable[[pb.ModelInferRequest], Any]:
    def change(request: pb.ModelInferRequest) -> None:
        request.raw_input_contents[0] = data

    return change


def set_parameter(name: str, **value: Any) -> Callable[[pb.ModelInferRequest], Any]:
    def change(request: pb.ModelInferRequest) -> None:
        request.parameters[name].CopyFrom(pb.InferParameter(**value))

    return change


def move_ids(request: pb.ModelInferRequest) -> None:
    contents = request.inputs[0].contents
    contents.int_contents.extend(contents.int64_contents)
    contents.ClearField("int64_contents")


IDS_TENSORS = token_ids([IDS, IDS[:1]])
INVALID: dict[str, tuple[pb.ModelInferRequest, str]] = {
    "unknown model": (changed(lambda r: setattr(r, "model_name", "x")), 'model_name: not found ("x").'),
    "unknown version": (changed(lambda r: setattr(r, "model_version", "2")), 'model_version: not found ("2").'),
    "typed datatype": (
        changed(lambda r: setattr(r.inputs[0], "datatype", "FP32"), raw=False), "inputs[0].datatype: not supported"
    ),
    "ids in another field": (
        changed(move_ids, token_ids([IDS])[0], raw=False),
        "inputs[0].contents: wrong field (int_contents). INT64 uses int64_contents.",
    ),
    "many axes": (changed(set_shape(*[1] * 1000)), "inputs[0].shape: wrong number of axes (1000)."),
    "wrong product": (changed(set_shape(2)), "raw_input_contents[0]: 1 element, but the shape has 2"),
    "typed product": (changed(set_shape(2), raw=False), "inputs[0].contents: 1 element, but the shape has 2."),
    "wrong ids": (changed(set_raw(b"1234567"), *IDS_TENSORS), "raw_input_contents[0]: 7 bytes of binary data, but"),
    "length over the end": (changed(set_raw(b"\xff\xff\xff\xffab")), "raw_input_contents[0]: 6 bytes of binary data"),
    "long text": (grpc_request(MODEL, [text("word " * 300)]), "text[0]: too long (302 tokens, limit 256)."),
    "too many raw": (changed(lambda r: r.raw_input_contents.append(b"")), "raw_input_contents: length 2, but"),
    "too few raw": (changed(lambda r: r.raw_input_contents.pop(), *IDS_TENSORS), "raw_input_contents: length 1, but"),
    "both forms": (
        changed(lambda r: r.inputs[0].contents.bytes_contents.append(b"a")), "inputs[0].contents: set, but"
    ),
    "mask of twos": (
        grpc_request(MODEL, [IDS_TENSORS[0], Tensor("attention_mask", "INT64", [2, 3], [2, 1, 0, 1, 1, 1])]),
        "attention_mask[0]: not ones",
    ),
    "overflowing mask": (
        grpc_request(MODEL, [IDS_TENSORS[0], Tensor("attention_mask", "INT64", [2, 3], [2**62, -(2**62), 2, 1, 1, 1])]),
        "attention_mask[0]: not ones",
    ),
    "NaN": (changed(set_parameter("dimensions", double_param=float("nan"))), "parameters.dimensions: wrong type (num"),
    "no value": (changed(set_parameter("dimensions")), "parameters.dimensions: wrong type (null)."),
    "boolean as number": (changed(set_parameter("dimensions", bool_param=True)), "parameters.dimensions: wrong type ("),
    "sequence": (changed(set_parameter("sequence_id", int64_param=5)), "parameters.sequence_id: sequences"),
    "prompt": (changed(set_parameter("prompt_name", string_param="x")), 'parameters.prompt_name: not found ("x").'),
}  # fmt: skip

CODES = {
    **dict.fromkeys(("unknown model", "no model", "unknown version", "prompt"), "NOT_FOUND"),
    "sequence": "UNIMPLEMENTED",
}
"""Status codes other than INVALID_ARGUMENT."""


@pytest.mark.parametrize("name", INVALID)
async def test_invalid_request(inference: GRPCInferenceServiceStub, name: str) -> None:
    request, message = INVALID[name]
    error = await call_error(inference.ModelInfer(request))
    assert error.code().name == CODES.get(name, "INVALID_ARGUMENT")
    assert (error.details() or "").startswith(message)
    status = Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = ErrorInfo()
    status.details[0].Unpack(info)
    assert info.domain == "attendant"


async def test_output_and_input_parameters(inference: GRPCInferenceServiceStub) -> None:
    """KServe's client sends binary_data_size and binary_data, which have no effect here."""
    request = grpc_request(MODEL, [text(GOLDEN)], outputs=["pooled"])
    request.inputs[0].parameters["binary_data_size"].int64_param = 20
    request.outputs[0].parameters["binary_data"].bool_param = True
    await inference.ModelInfer(request)
    for name, code in (("classification", "UNIMPLEMENTED"), ("shared_memory_region", "UNIMPLEMENTED"),
                       ("other", "INVALID_ARGUMENT")):  # fmt: skip
        changed_request = grpc_request(MODEL, [text(GOLDEN)], outputs=["pooled"])
        changed_request.outputs[0].parameters[name].int64_param = 1
        error = await call_error(inference.ModelInfer(changed_request))
        assert (error.code().name, (error.details() or "")[:10]) == (code, "outputs[0]")


async def test_bytes_that_are_not_a_message_are_an_invalid_argument(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", request_serializer=bytes)
    for data in (b"\xff\xff\xff", b"\x0a\x02\xff\xff", b"\x2a\x05ab"):
        error = await call_error(call(data))
        assert (error.code().name, error.details()) == (
            "INVALID_ARGUMENT",
            "Message is not valid protobuf of this type. Check the client's proto file, and send strings in UTF-8.",
        )


def field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


FLOODS = {
    "inputs": field(5, b"") * 2**19,
    "raw contents": field(7, b"") * 2**19,
    "shape": field(5, field(3, b"\x01" * 5 * 2**20)),
    "numbers": field(5, field(5, field(3, b"\x01" * 5 * 2**20))),
    "strings": field(5, field(5, field(8, b"") * 2**19)),
    "parameters": field(4, b"") * 2**19,
    "empty parameters of one output": field(6, field(2, b"") * 2**19),
    "parameters of one input": field(5, field(4, b"") * 2**19),
}


@pytest.mark.parametrize("name", FLOODS)
def test_message_with_too_many_fields_is_not_parsed(name: str) -> None:
    """Parsing 8 MiB of empty fields would hold the GIL for more than 100 ms."""

    def parse(data: bytes) -> pb.ModelInferRequest:
        raise AssertionError("parsed")

    result = tolerant(parse, INFER_LAYOUT)(FLOODS[name])
    assert isinstance(result, Rejected)
    assert result.error.maximum == MAX_FIELDS


@pytest.mark.parametrize("raw", [True, False])
def test_largest_valid_messages_are_parsed(raw: bool) -> None:
    for tensors in ([text(*["a" * 16384] * 256)], token_ids([[300] * 1024] * 256), [text(*["a"] * 256)]):
        request = grpc_request(MODEL, tensors, raw=raw)
        assert tolerant(pb.ModelInferRequest.FromString, INFER_LAYOUT)(request.SerializeToString()) == request
