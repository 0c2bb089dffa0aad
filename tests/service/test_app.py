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
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

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
def test_a_port_in_use_is_one_clear_line(default_artifact: Path, door: str) -> None:
    """78, the address and the option to set."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, said = refusal(model_dir=default_artifact, **{f"{door}_port": port})
    assert status == 78
    assert said == (
        f"attendant: ATTENDANT_{door.upper()}_PORT: cannot bind 127.0.0.1:{port} (in use or not a local address). "
        "Choose another port.\n"
    )


def test_a_host_that_is_none_is_named(default_artifact: Path) -> None:
    """The option at fault is the host, not the port."""
    expected = "attendant: ATTENDANT_HOST: no-host.invalid is not an address of this machine. Choose another.\n"
    assert refusal(model_dir=default_artifact, host="no-host.invalid") == (78, expected)


@pytest.mark.parametrize("name", ["fast.onnx", "tokenizer.json", "manifest.json"])
def test_a_damaged_artifact_is_named(default_artifact: Path, tmp_path: Path, name: str) -> None:
    """78 and the file."""
    root = shutil.copytree(default_artifact, tmp_path / "artifact")
    (root / name).write_bytes((root / name).read_bytes()[:-1] + b"\x00")
    status, said = refusal(model_dir=root)
    assert (status, str(root / name) in said) == (78, True)
    assert len(said.splitlines()) == 1


def test_another_artifact_than_the_pinned_one_is_refused(default_artifact: Path) -> None:
    """78, and both are told apart."""
    status, said = refusal(model_dir=default_artifact, model_sha256="0" * 64)
    assert (status, "not the pinned one" in said) == (78, True)


def test_a_missing_artifact_says_how_to_make_one(tmp_path: Path) -> None:
    """78 and a command."""
    status, said = refusal(model_dir=tmp_path / "none")
    assert (status, "attendant-model export" in said) == (78, True)


def in_flight(metrics: str) -> float:
    (found,) = re.findall(r"^attendant_requests_in_flight (\S+)$", metrics, re.MULTILINE)
    return float(found)


async def test_what_was_taken_is_answered(default_artifact: Path) -> None:
    """SIGTERM while eight large requests wait and run: all get their answers, and the status is 0."""
    body = {"inputs": ["word " * 240] * 16}
    with started(model_dir=default_artifact) as server:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            calls = [asyncio.ensure_future(client.post(server.rest + "/v1/encode", json=body)) for _ in range(8)]
            while in_flight((await client.get(server.admin + "/metrics")).text) < 8:
                pass
            os.kill(server.pid, signal.SIGTERM)
            answers = await asyncio.gather(*calls)
        assert [answer.status_code for answer in answers] == [200] * 8
        assert all(len(answer.json()["results"]) == 16 for answer in answers)
        assert await asyncio.to_thread(server.process.wait, PATIENCE_S) == 0


async def test_grpc_calls_that_were_taken_are_answered(default_artifact: Path) -> None:
    """The same through the other door."""
    from service.pb import encoder_pb2 as pb
    from service.pb.encoder_pb2_grpc import EncoderServiceStub

    request = pb.EncodeRequest(inputs=[pb.Input(text="word " * 240)] * 16)
    with started(model_dir=default_artifact) as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel, httpx.AsyncClient() as client:
            stub = EncoderServiceStub(channel)  # type: ignore[no-untyped-call]
            calls = [asyncio.ensure_future(stub.Encode(request)) for _ in range(6)]
            while in_flight((await client.get(server.admin + "/metrics")).text) < 6:
                pass
            os.kill(server.pid, signal.SIGTERM)
            answers = await asyncio.gather(*calls)
        assert [len(answer.results) for answer in answers] == [16] * 6
        assert await asyncio.to_thread(server.process.wait, PATIENCE_S) == 0


async def test_a_draining_server_says_so_and_serves_on(default_artifact: Path) -> None:
    """During the delay after SIGTERM both probes say no, and requests are still answered."""
    with started(model_dir=default_artifact, drain_delay_ms=2000) as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel, httpx.AsyncClient(base_url=server.rest) as client:
            os.kill(server.pid, signal.SIGTERM)
            while (probe := await client.get("/readyz")).status_code == 200:
                pass
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            answer = await client.post("/v1/encode", json={"inputs": "money"})
            live = await client.get("/livez")
        assert (probe.status_code, probe.json(), live.status_code) == (503, {"status": "draining"}, 200)
        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert answer.status_code == 200
        assert await asyncio.to_thread(server.process.wait, PATIENCE_S) == 0


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
        while statuses is None and process.poll() is None:
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


def test_the_ready_line_can_be_pasted(server: RunningServer) -> None:
    """One line with every address and a command that works."""
    assert server.ready_line.count("\n") == 1
    command = server.ready_line.partition("Try: ")[2]
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert '"pooled":[' in found.stdout
