"""The life of a server process: it starts or says why not, and it stops without losing what it took."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.app import format_address
from tests.conftest import ROOT, RunningServer, server_environment, start_server

PATIENCE_S = 60


@contextlib.contextmanager
def started(**options: object) -> Iterator[RunningServer]:
    """A server that is killed if the test leaves it running."""
    running = start_server(**options)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def refusal(**options: object) -> tuple[int, str]:
    """Status and stderr of a server that must not start."""
    found = subprocess.run(
        [sys.executable, "-m", "service", "serve"], cwd=ROOT, env=server_environment(**options),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert found.stdout == ""
    return found.returncode, found.stderr


@pytest.mark.parametrize("door", ["rest", "grpc", "admin"])
def test_port_error_is_one_line_when_in_use(default_artifact: Path, door: str) -> None:
    """78, the address and the option to set."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, said = refusal(model_dir=default_artifact, **{f"{door}_port": port})
    assert status == 78
    assert said == (
        f"attendant: ATTENDANT_{door.upper()}_PORT: cannot bind 127.0.0.1:{port} (in use or not a local address). "
        "Choose another port.\n"
    )


def test_host_error_names_the_option(default_artifact: Path) -> None:
    """The option at fault is the host, not the port."""
    expected = "attendant: ATTENDANT_HOST: no-host.invalid is not an address of this machine. Choose another.\n"
    assert refusal(model_dir=default_artifact, host="no-host.invalid") == (78, expected)


@pytest.mark.parametrize("name", ["fast.onnx", "tokenizer.json", "manifest.json"])
def test_damaged_artifact_is_named(default_artifact: Path, tmp_path: Path, name: str) -> None:
    """78 and the file."""
    root = shutil.copytree(default_artifact, tmp_path / "artifact")
    (root / name).write_bytes((root / name).read_bytes()[:-1] + b"\x00")
    status, said = refusal(model_dir=root)
    assert (status, str(root / name) in said) == (78, True)
    assert len(said.splitlines()) == 1


def test_artifact_is_rejected_when_not_pinned(default_artifact: Path) -> None:
    """78, and both are told apart."""
    status, said = refusal(model_dir=default_artifact, model_sha256="0" * 64)
    assert (status, "not the pinned one" in said) == (78, True)


def test_missing_artifact_error_names_the_command(tmp_path: Path) -> None:
    """78 and a command."""
    status, said = refusal(model_dir=tmp_path / "none")
    assert (status, "attendant-model export" in said) == (78, True)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it holds, or fail."""
    async with asyncio.timeout(PATIENCE_S):
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
    return await asyncio.to_thread(server.process.wait, PATIENCE_S)


async def test_accepted_requests_are_answered_after_sigterm(default_artifact: Path) -> None:
    """SIGTERM while eight large requests wait and run: all get their responses, and the status is 0."""
    body = {"inputs": ["word " * 240] * 16}
    with started(model_dir=default_artifact) as server:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            calls = [asyncio.ensure_future(client.post(server.rest + "/v1/encode", json=body)) for _ in range(8)]
            await until_in_flight(server, 8)
            os.kill(server.pid, signal.SIGTERM)
            responses = await asyncio.gather(*calls)
        assert [response.status_code for response in responses] == [200] * 8
        assert all(len(response.json()["results"]) == 16 for response in responses)
        assert await exit_status(server) == 0


async def test_accepted_grpc_calls_are_answered_after_sigterm(default_artifact: Path) -> None:
    """The same over gRPC."""
    from service.pb import encoder_pb2 as pb
    from service.pb.encoder_pb2_grpc import EncoderServiceStub

    request = pb.EncodeRequest(inputs=[pb.Input(text="word " * 240)] * 16)
    with started(model_dir=default_artifact) as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            stub = EncoderServiceStub(channel)  # type: ignore[no-untyped-call]
            calls = [asyncio.ensure_future(stub.Encode(request)) for _ in range(6)]
            await until_in_flight(server, 6)
            os.kill(server.pid, signal.SIGTERM)
            responses = await asyncio.gather(*calls)
        assert [len(response.results) for response in responses] == [16] * 6
        assert await exit_status(server) == 0


async def test_draining_server_is_not_ready_and_serves(default_artifact: Path) -> None:
    """During the delay after SIGTERM both probes say no, and requests are still answered."""
    with started(model_dir=default_artifact, drain_delay_ms=2000) as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel, httpx.AsyncClient(base_url=server.rest) as client:
            os.kill(server.pid, signal.SIGTERM)

            async def not_ready() -> bool:
                return (await client.get("/readyz")).status_code == 503

            await until(not_ready)
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            response = await client.post("/v1/encode", json={"inputs": "money"})
            probes = [await client.get(path) for path in ("/readyz", "/livez")]
        assert [(probe.status_code, probe.json()) for probe in probes] == [
            (503, {"status": "draining"}), (200, {"status": "draining"})
        ]  # fmt: skip
        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert response.status_code == 200
        assert await exit_status(server) == 0


def test_half_sent_body_does_not_delay_the_exit(default_artifact: Path) -> None:
    """It is rejected at the end of the drain, although the time for bodies is longer."""
    with started(model_dir=default_artifact, drain_timeout_ms=4000, body_timeout_ms=3_600_000) as server:
        url = httpx.URL(server.rest)
        with socket.create_connection((url.host, url.port), timeout=PATIENCE_S) as connection:
            connection.sendall(
                b"POST /v1/encode HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            )
            asyncio.run(until_in_flight(server, 1))
            server.process.send_signal(signal.SIGTERM)
            response = b"".join(iter(lambda: connection.recv(65536), b""))
            assert server.process.wait(PATIENCE_S) == 0
        assert response.startswith(b"HTTP/1.1 503")
        assert b'"reason":"draining"' in response
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
def test_stuck_thread_does_not_delay_the_exit(default_artifact: Path, method: str) -> None:
    """The process ends at the timeout, whatever its threads do."""
    environment = server_environment(model_dir=default_artifact, drain_timeout_ms=1500)
    with subprocess.Popen(
        [sys.executable, "-c", STUCK.format(method=method)], cwd=ROOT, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: ")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 70
    assert "drain timeout exceeded, exiting" in log
    assert ("drain timed out" in log) == (method == "drain")


def test_second_signal_ends_the_process(default_artifact: Path) -> None:
    """At once, with its name in the log."""
    with started(model_dir=default_artifact, drain_delay_ms=600_000, drain_timeout_ms=900_000) as server:
        assert server.process.stderr is not None
        server.process.send_signal(signal.SIGTERM)
        lines = iter(server.process.stderr.readline, "")
        assert any("drain started timeout_ms=900000" in line for line in lines)
        server.process.send_signal(signal.SIGTERM)
        assert any("second signal received, exiting signal=SIGTERM" in line for line in lines)
        assert server.process.wait(PATIENCE_S) == 70


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")
async def test_ipv6_addresses_are_served(default_artifact: Path) -> None:
    """By all three ports; the ready line has brackets, so that its URLs can be used."""
    with started(model_dir=default_artifact, host="::1", admin_host="::1") as server:
        assert re.match(
            r"ready: REST http://\[::1\]:\d+, gRPC \[::1\]:\d+, admin http://\[::1\]:\d+\. Try: curl -s http://\[::1\]:",
            server.ready_line,
        )
        async with grpc.aio.insecure_channel(server.grpc) as channel, httpx.AsyncClient() as client:
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            assert (await client.post(server.rest + "/v1/encode", json={"inputs": "a"})).status_code == 200
            assert (await client.get(server.admin + "/readyz")).status_code == 200


@pytest.mark.parametrize(("host", "address"), [("::1", "[::1]:80"), ("127.0.0.1", "127.0.0.1:80"), ("a.b", "a.b:80")])
def test_format_address_puts_ipv6_into_brackets(host: str, address: str) -> None:
    assert format_address(host, 80) == address


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_sigterm_during_the_start(default_artifact: Path) -> None:
    """As soon as the probes answer, the model still loading or not: it stops with 0."""
    port = free_port()
    environment = server_environment(model_dir=default_artifact, admin_port=port)
    with subprocess.Popen(
        [sys.executable, "-m", "service", "serve"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        statuses = None
        give_up = time.monotonic() + PATIENCE_S
        while statuses is None and process.poll() is None and time.monotonic() < give_up:
            with contextlib.suppress(httpx.TransportError):
                statuses = [httpx.get(f"http://127.0.0.1:{port}{path}").status_code for path in ("/livez", "/readyz")]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert statuses in ([200, 503], [200, 200])


def test_sigint_stops_as_sigterm_does(default_artifact: Path) -> None:
    """Ctrl-C, with an idle connection open."""
    with started(model_dir=default_artifact) as server, httpx.Client(base_url=server.rest) as client:
        assert client.get("/livez").status_code == 200
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE_S) == 0


def test_ready_line_has_a_working_command(server: RunningServer) -> None:
    """One line with every address and a command that works."""
    assert server.ready_line.count("\n") == 1
    command = server.ready_line.partition("Try: ")[2]
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert '"pooled":[' in found.stdout
