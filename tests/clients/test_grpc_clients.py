"""gRPC clients without this project's stubs: health checks, and calls by server reflection."""

from pathlib import Path

import httpx
import pytest

from tests.clients.conftest import CheckArrays, native
from tests.clients.environments import run_client
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow

TEXTS = ["money bank grows", "the river bank, déjà vu", "word " * 200]
SERVICE = "attendant.v1.EncoderService"

HEALTH = """
import itertools

def check(service):
    return health_pb2.HealthCheckResponse.ServingStatus.Name(
        health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status
    )

def watch(service):
    call = health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=10)
    status = next(call).status
    call.cancel()
    return health_pb2.HealthCheckResponse.ServingStatus.Name(status)

try:
    check("none")
except grpc.RpcError as error:
    unknown = error.code().name
send({
    "snippet": is_serving,
    "check": [check(""), check("attendant.v1.EncoderService")],
    "watch": [watch(""), watch("attendant.v1.EncoderService"), watch("none")],
    "unknown": unknown,
})
"""
REFLECTION = """
import importlib.util
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2

def reflect(version, requests):
    # The messages of v1 and v1alpha are equal on the wire.
    method = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return list(method(iter([reflection_pb2.ServerReflectionRequest(**request) for request in requests])))

def describe(version):
    of_service = {"file_containing_symbol": "attendant.v1.EncoderService"}
    services, symbol = reflect(version, [{"list_services": ""}, of_service])
    files = {}
    # As grpcurl does: the file of the service, then the files that it imports.
    remaining = list(symbol.file_descriptor_response.file_descriptor_proto)
    while remaining:
        file = FileDescriptorProto.FromString(remaining.pop())
        files[file.name] = file
        for name in file.dependency:
            if name not in files:
                (response,) = reflect(version, [{"file_by_filename": name}])
                remaining += response.file_descriptor_response.file_descriptor_proto
    return sorted(item.name for item in services.list_services_response.service), files

def encode_by(files):
    pool = DescriptorPool()
    added = set()
    def add(name):
        if name not in added:
            added.add(name)
            for dependency in files[name].dependency:
                add(dependency)
            pool.Add(files[name])
    for name in files:
        add(name)
    method = pool.FindServiceByName("attendant.v1.EncoderService").FindMethodByName("Encode")
    request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    call = channel.unary_unary(
        "/attendant.v1.EncoderService/Encode", request_serializer=request.SerializeToString,
        response_deserializer=reply.FromString,
    )
    return call(request(inputs=[{"text": text} for text in texts]))

def decode_vectors(response):
    return [list(memoryview(result.pooled.data).cast("f")) for result in response.results]

results = {"snippet": decode_vectors(response), "stubs": importlib.util.find_spec("attendant_client") is not None}
for version in ("v1", "v1alpha"):
    services, files = describe(version)
    results[version] = [services, sorted(files), decode_vectors(encode_by(files))]
send(results)
"""


def test_health_checking(service: ServiceThread, rest: httpx.Client, tmp_path: Path) -> None:
    results = run_client("grpcio-health-checking", HEALTH, tmp_path, rest, grpc=service.grpc)
    assert results == {
        "snippet": True,
        "check": ["SERVING", "SERVING"],
        "watch": ["SERVING", "SERVING", "SERVICE_UNKNOWN"],
        "unknown": "NOT_FOUND",
    }


def test_reflection(service: ServiceThread, rest: httpx.Client, check_arrays: CheckArrays, tmp_path: Path) -> None:
    """Like grpcurl: the environment has neither this project's stubs nor its proto."""
    results = run_client("grpcio-reflection", REFLECTION, tmp_path, rest, grpc=service.grpc, texts=TEXTS)
    expected = native(rest, TEXTS)
    assert not results["stubs"]
    check_arrays(results["snippet"], expected)
    for version in ("v1", "v1alpha"):
        services, files, vectors = results[version]
        assert {SERVICE, "grpc.health.v1.Health", f"grpc.reflection.{version}.ServerReflection"} <= set(services)
        assert "attendant/v1/encoder.proto" in files
        check_arrays(vectors, expected)
