"""The server process: startup errors, probes, and graceful shutdown."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest
from attendant_client.types import ModelInfo
from attendant_client.wire import from_json
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.app import App, example_request
from tests.conftest import HANG_TIMEOUT_S, ROOT, RunningServer, run_python, server_environment, start_server
from tests.labels import CLASSIFIER, CROSS_ENCODER, TOKEN_CLASSIFIER
from tests.retrievers import SPLADE
from tests.serving import load_kind, serve


@contextlib.contextmanager
def started(**options: object) -> Iterator[RunningServer]:
    """Start a server, and kill it after the test if it is still running."""
    running = start_server(**options)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def failed_start(**options: Any) -> tuple[int, str]:
    """Return exit status and stderr of a server that fails to start."""
    result = run_python("-m", "service", "serve", **options)
    assert result.stdout == ""
    return result.returncode, result.stderr


@pytest.mark.parametrize("listener", ["rest", "grpc", "admin"])
def test_port_in_use_is_a_one_line_error(tiny_artifact: Path, listener: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, log = failed_start(model_dir=tiny_artifact, **{f"{listener}_port": port})
    assert status == 78
    assert log == (
        f"attendant: ATTENDANT_{listener.upper()}_PORT: cannot bind 127.0.0.1:{port} (address already in use). "
        "Choose another port.\n"
    )


@pytest.mark.parametrize("name", ["host", "admin_host"])
def test_address_of_another_machine_is_an_error_of_the_host(tiny_artifact: Path, name: str) -> None:
    status, log = failed_start(model_dir=tiny_artifact, **{name: "192.0.2.1"})
    assert status == 78
    assert log.startswith(f"attendant: ATTENDANT_{name.upper()}: cannot bind 192.0.2.1:")
    assert log.endswith("(cannot assign requested address). Choose an address of this machine.\n")


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the condition holds, or fail."""
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while not await holds():
            pass


async def until_in_flight(server: RunningServer, count: int) -> None:
    async with httpx.AsyncClient() as client:

        async def reached() -> bool:
            metrics = (await client.get(server.admin + "/metrics")).text
            (in_flight,) = re.findall(r"^attendant_requests_in_flight (\S+)$", metrics, re.MULTILINE)
            return float(in_flight) >= count

        await until(reached)


async def exit_status(server: RunningServer) -> int:
    return await asyncio.to_thread(server.process.wait, HANG_TIMEOUT_S)


async def test_accepted_requests_are_answered_after_sigterm(default_artifact: Path) -> None:
    """Eight large requests are queued or running."""
    body = {"inputs": ["word " * 240] * 4}
    with started(model_dir=default_artifact, max_queue_ms=HANG_TIMEOUT_S * 1000) as server:
        async with httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as client:
            calls = [asyncio.ensure_future(client.post(server.rest + "/v1/encode", json=body)) for _ in range(8)]
            await until_in_flight(server, 8)
            os.kill(server.pid, signal.SIGTERM)
            responses = await asyncio.gather(*calls)
        assert [response.status_code for response in responses] == [200] * 8
        assert all(len(response.json()["results"]) == 4 for response in responses)
        assert await exit_status(server) == 0


@pytest.mark.slow
async def test_accepted_grpc_calls_are_answered_after_sigterm(default_artifact: Path) -> None:
    from attendant_client.pb import encoder_pb2 as pb

    from tests.stubs import EncoderServiceStub

    request = pb.EncodeRequest(inputs=[pb.Input(text="word " * 240)] * 16)
    with started(model_dir=default_artifact, max_queue_ms=HANG_TIMEOUT_S * 1000) as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            stub = EncoderServiceStub(channel)
            calls = [asyncio.ensure_future(stub.Encode(request)) for _ in range(6)]
            await until_in_flight(server, 6)
            os.kill(server.pid, signal.SIGTERM)
            responses = await asyncio.gather(*calls)
        assert [len(response.results) for response in responses] == [16] * 6
        assert await exit_status(server) == 0


async def test_draining_server_is_not_ready_and_serves(tiny_artifact: Path) -> None:
    """Checks REST and gRPC probes during the drain delay."""
    with started(model_dir=tiny_artifact, drain_delay_ms=2000) as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel, httpx.AsyncClient(base_url=server.rest) as client:
            os.kill(server.pid, signal.SIGTERM)

            async def not_ready() -> bool:
                return (await client.get("/readyz")).status_code == 503

            await until(not_ready)
            check = health_pb2_grpc.HealthStub(channel).Check
            health = [(await check(health_pb2.HealthCheckRequest())).status]

            response = await client.post("/v1/encode", json={"inputs": "money"})
            probes = [await client.get(path) for path in ("/readyz", "/livez")]

            async def not_serving() -> bool:  # at the end of the delay, before calls are rejected
                status = (await check(health_pb2.HealthCheckRequest())).status
                return bool(status == health_pb2.HealthCheckResponse.NOT_SERVING)

            await until(not_serving)
            health.append((await check(health_pb2.HealthCheckRequest())).status)
        assert [(probe.status_code, probe.json()) for probe in probes] == [
            (503, {"status": "draining"}), (200, {"status": "draining"})
        ]  # fmt: skip
        assert health == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
        assert response.status_code == 200
        assert await exit_status(server) == 0


def test_incomplete_body_does_not_delay_the_exit(tiny_artifact: Path) -> None:
    """The request is rejected at the end of the drain, which comes before the body timeout."""
    with started(model_dir=tiny_artifact, drain_timeout_ms=4000, body_timeout_ms=3_600_000) as server:
        url = httpx.URL(server.rest)
        with socket.create_connection((url.host, url.port), timeout=HANG_TIMEOUT_S) as connection:
            head = b"POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(head + b"Content-Length: 9\r\n\r\n{")
            asyncio.run(until_in_flight(server, 1))
            server.process.send_signal(signal.SIGTERM)
            response = b"".join(iter(lambda: connection.recv(65536), b""))
            assert server.process.wait(HANG_TIMEOUT_S) == 0
        assert response.startswith(b"HTTP/1.1 503")
        assert b'"reason":"DRAINING"' in response
        assert server.process.stderr is not None
        log = server.process.stderr.read()
        assert "drain started timeout_ms=4000" in log
        assert "drain timeout exceeded" not in log


STUCK = """
import asyncio, sys, threading
from service.__main__ import main
from service.engine.engine import Engine


async def stuck(engine, *arguments, **options):
    await asyncio.to_thread(threading.Event().wait)

Engine.{method} = stuck
sys.exit(main(["serve"]))
"""


@pytest.mark.parametrize("method", ["drain", "close"])
def test_stuck_thread_does_not_delay_the_exit(tiny_artifact: Path, method: str) -> None:
    """The process exits at the drain timeout."""
    environment = server_environment(model_dir=tiny_artifact, drain_timeout_ms=1500, workers=1)
    with subprocess.Popen(
        [sys.executable, "-c", STUCK.format(method=method)], cwd=ROOT, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: ")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=HANG_TIMEOUT_S)
    assert process.returncode == 70
    assert "drain timeout exceeded, exiting" in log
    assert ("drain timed out" in log) == (method == "drain")


def test_second_signal_stops_the_process(tiny_artifact: Path) -> None:
    with started(model_dir=tiny_artifact, drain_delay_ms=600_000, drain_timeout_ms=900_000) as server:
        assert server.process.stderr is not None
        server.process.send_signal(signal.SIGTERM)
        lines = iter(server.process.stderr.readline, "")
        assert any("drain started timeout_ms=900000" in line for line in lines)
        server.process.send_signal(signal.SIGTERM)
        assert any("second signal received, exiting signal=SIGTERM" in line for line in lines)
        assert server.process.wait(HANG_TIMEOUT_S) == 70


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")
async def test_ipv6_addresses_are_served(tiny_artifact: Path) -> None:
    """The ready line's URLs have brackets."""
    with started(model_dir=tiny_artifact, host="::1", admin_host="::1") as server:
        assert re.match(
            r"ready: REST http://\[::1\]:\d+, gRPC \[::1\]:\d+, admin http://\[::1\]:\d+, page http://\[::1\]:\d+/\. "
            r"Try: curl -s http://\[::1\]:",
            server.ready_line,
        )
        async with grpc.aio.insecure_channel(server.grpc) as channel, httpx.AsyncClient() as client:
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            assert (await client.post(server.rest + "/v1/encode", json={"inputs": "a"})).status_code == 200
            assert (await client.get(server.admin + "/readyz")).status_code == 200


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_sigterm_during_the_start_exits_with_0(default_artifact: Path) -> None:
    """The signal is sent after the first probe, usually while the model is loading."""
    port = free_port()
    environment = server_environment(model_dir=default_artifact, admin_port=port)
    with subprocess.Popen(
        [sys.executable, "-m", "service", "serve"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        statuses = None
        deadline = time.monotonic() + HANG_TIMEOUT_S
        while statuses is None and process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                statuses = [httpx.get(f"http://127.0.0.1:{port}{path}").status_code for path in ("/livez", "/readyz")]
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_TIMEOUT_S) == 0
    assert statuses in ([200, 503], [200, 200])


def test_sigint_exits_with_0_when_a_connection_is_idle(tiny_artifact: Path) -> None:
    with started(model_dir=tiny_artifact) as server, httpx.Client(base_url=server.rest) as client:
        assert client.get("/livez").status_code == 200
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(HANG_TIMEOUT_S) == 0


def test_server_beyond_loopback_checks_hosts_and_warns_without_keys(tiny_artifact: Path) -> None:
    """Allowed hosts do not apply to the admin port, because probes address a pod by IP."""
    everywhere = {"host": "0.0.0.0", "admin_host": "0.0.0.0"}
    headers = {"host": "10.1.2.3:8082"}
    with started(model_dir=tiny_artifact, allowed_hosts="api.example.org", **everywhere) as server:
        rest, admin = (address.replace("0.0.0.0", "127.0.0.1") for address in (server.rest, server.admin))
        assert httpx.get(f"{admin}/readyz", headers=headers).status_code == 200
        assert httpx.get(f"{rest}/v1/model", headers=headers).status_code == 403
        server.process.terminate()
        _, log = server.process.communicate(timeout=HANG_TIMEOUT_S)
    assert "API keys disabled on a non-loopback address" in log


@pytest.mark.parametrize("event", ["prepare", "commit"])
async def test_unexpected_failure_of_a_change_is_reported_to_the_supervisor(event: str) -> None:
    """Otherwise the supervisor would wait for this worker, and no model could be changed any more."""
    told: list[tuple[str, dict[str, Any]]] = []

    class Broken:
        async def prepare(self, change: object) -> None:
            raise RuntimeError("unforeseen")

        def commit(self) -> None:
            raise RuntimeError("unforeseen")

    app: Any = SimpleNamespace(
        _repository=Broken(), _tell_supervisor=lambda name, **values: told.append((name, values))
    )
    app._prepare_models = partial(App._prepare_models, app)
    App._on_message(app, {"event": event, "change": {"unload": "a"}})
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    error = {"error": "Unexpected RuntimeError. See the log."}
    assert told == [("prepared", error) if event == "prepare" else ("failed", {})]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (CLASSIFIER, "/v1/classify"),
        (CROSS_ENCODER, "/v1/rerank"),
        (TOKEN_CLASSIFIER, "/v1/token-classify"),
        (SPLADE, "/v1/encode"),
    ],
)
def test_ready_line_shows_what_the_model_is_for(kind: str, path: str) -> None:
    with serve(load_kind(kind)) as rest:
        shown, body = example_request(from_json(ModelInfo, rest.get("/v1/model").json()))
        assert shown == path
        assert rest.post(shown, json=body).status_code == 200
