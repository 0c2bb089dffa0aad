"""deploy/proxy/nginx.conf, with a real nginx and server: it bounds calls of one address, and lets others through."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from attendant_client.pb import encoder_pb2 as pb

from tests.conftest import RunningServer, start_server, stop_server
from tests.deploy.conftest import find_tool
from tests.deploy.replicas import free_ports
from tests.service.rpc.test_connections import HostileClient
from tests.stubs import EncoderServiceStub

CONFIG = Path("deploy/proxy/nginx.conf")
ENCODE = "/attendant.v1.EncoderService/Encode"


@pytest.fixture(scope="module")
def proxied(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, int, int]]:
    """Yield a server, and the ports of REST and gRPC of nginx in front of it."""
    folder = tmp_path_factory.mktemp("nginx")
    server = start_server(model_dir=tiny_artifact, trusted_proxies="127.0.0.1")
    rest_port, grpc_port = free_ports(2)
    config = CONFIG.read_text()
    for written, used in (
        ("127.0.0.1:8080", server.rest.removeprefix("http://")),
        ("127.0.0.1:8081", server.grpc),
        ("listen 8443", f"listen 127.0.0.1:{rest_port}"),
        ("listen 8444", f"listen 127.0.0.1:{grpc_port}"),
        ("access_log off;", f"access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; "
         f"fastcgi_temp_path {folder}/fcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;"),
    ):  # fmt: skip
        assert config.count(written) == 1
        config = config.replace(written, used)
    (folder / "nginx.conf").write_text(f"user root; daemon off; pid {folder}/pid; error_log {folder}/log;\n{config}")
    nginx = subprocess.Popen([find_tool("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        for _ in range(100):
            try:
                httpx.get(f"http://127.0.0.1:{rest_port}/readyz")
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        yield server, rest_port, grpc_port
    finally:
        nginx.terminate()
        nginx.wait(20)
        assert stop_server(server) == 0


def sample(server: RunningServer, name: str) -> float:
    lines = httpx.get(f"{server.admin}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def encode(port: int) -> float:
    """Send a request over a new connection, and return its duration in seconds."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        started = time.monotonic()
        EncoderServiceStub(channel).Encode(pb.EncodeRequest(inputs=[pb.Input(text="bank")]), timeout=20)
        return time.monotonic() - started


def test_usual_requests_pass(proxied: tuple[RunningServer, int, int]) -> None:
    _, rest_port, grpc_port = proxied
    response = httpx.post(f"http://127.0.0.1:{rest_port}/v1/encode", json={"inputs": "bank"})
    assert response.status_code == 200
    encode(grpc_port)


def test_calls_of_one_address_are_bounded(proxied: tuple[RunningServer, int, int]) -> None:
    """Calls without a message beyond the limit do not reach the server."""
    server, _, grpc_port = proxied
    clients = [HostileClient(grpc_port) for _ in range(3)]
    for client in clients:
        for _ in range(100):
            client.call(ENCODE)
    time.sleep(0.5)
    assert sample(server, "attendant_grpc_connections ") <= 70
    for client in clients:
        client.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            assert encode(grpc_port) < 1
            return
        except grpc.RpcError:  # nginx still counts the calls of the closed connections
            time.sleep(0.1)
    pytest.fail("the calls of closed connections still count")


def test_resets_do_not_reach_the_server(proxied: tuple[RunningServer, int, int]) -> None:
    """nginx ignores a connection after 1000 requests."""
    server, _, grpc_port = proxied
    cancelled = 'attendant_requests_total{api="grpc",code="CANCELLED"'
    before = sample(server, cancelled)
    client = HostileClient(grpc_port)
    with contextlib.suppress(OSError):
        for _ in range(5_000):
            client.call(ENCODE, reset=True)
    assert encode(grpc_port) < 1
    assert sample(server, cancelled) - before <= 1000
    client.close()
