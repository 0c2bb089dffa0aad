"""Several workers behind one address: connections, faults of workers and of the supervisor, and metrics."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service import supervisor
from service.admin_port import MAX_CONNECTIONS as MAX_ADMIN_CONNECTIONS
from service.callers import BURST_S
from service.config import Settings, load_settings
from service.quota_board import create_board
from service.shared_values import Slot
from service.sockets import bind
from service.supervisor import MAX_FAILURES, Supervisor, Worker, share
from service.worker_link import PARENT, REST, Channel, Start
from tests.conftest import (
    ROOT,
    RunningServer,
    describe_server,
    run_python,
    server_environment,
    serving,
    start_server,
    wait_until,
)
from tests.keys import named_key

WORKERS = 2
REQUESTS = 'attendant_requests_total{api="rest",code="200",endpoint="/v1/encode"'
TEXT = {"inputs": "money bank grows"}
ESTABLISHED = "01"
MAX_SUPERVISOR_BYTES = 60 * 2**20


def port_of(address: str) -> int:
    port = urlsplit(address if "//" in address else f"//{address}").port
    assert port is not None
    return port


def worker_ids(server: RunningServer) -> list[int]:
    """The processes of the workers, in the order of their start."""
    return [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]


def sockets(pid: int, port: int, state: str) -> int:
    """The number of sockets of a process with this local port and state."""
    tables = (Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    inodes = {row[9] for row in rows if int(row[1].partition(":")[2], 16) == port and row[3] == state}
    links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]
    return sum(link.removeprefix("socket:[").rstrip("]") in inodes for link in links if link.startswith("socket:"))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def encode(server: RunningServer) -> int:
    return httpx.post(f"{server.rest}/v1/encode", json=TEXT, timeout=30).status_code


def inferences(client: httpx.Client) -> int:
    """The number of inputs since the start, from the worker of this connection."""
    count: int = client.get("/v2/models/stats").json()["model_stats"][0]["inference_count"]
    return count


def metric(server: RunningServer, name: str) -> float:
    lines = httpx.get(f"{server.admin}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def is_ready(server: RunningServer) -> bool:
    return httpx.get(f"{server.admin}/readyz").status_code == 200


def await_workers(server: RunningServer, restarts: float) -> None:
    """Wait until every worker serves again after this many restarts."""
    wait_until(
        lambda: (
            metric(server, "attendant_worker_restarts_total") == restarts
            and metric(server, "attendant_ready_workers") == WORKERS
        )
    )


@pytest.fixture(scope="module")
def workers(tiny_artifact: Path) -> Iterator[RunningServer]:
    """A server whose workers stay."""
    with serving(model_dir=tiny_artifact, workers=WORKERS) as running:
        yield running


@pytest.fixture
def own_workers(tiny_artifact: Path) -> Iterator[RunningServer]:
    """A server whose workers may be killed."""
    with serving(model_dir=tiny_artifact, workers=WORKERS, log_format="json") as running:
        yield running


def test_connections_are_balanced_and_each_request_counts_once(workers: RunningServer) -> None:
    earlier = [metric(workers, name) for name in (REQUESTS, "attendant_request_tokens_count")]
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=workers.rest)) for _ in range(64)]
        inferred = inferences(clients[0])
        assert Counter(client.post("/v1/encode", json=TEXT).status_code for client in clients) == {200: 64}
        port = port_of(workers.rest)
        assert [sockets(pid, port, ESTABLISHED) for pid in worker_ids(workers)] == [32, 32]
        wait_until(lambda: metric(workers, "attendant_http_connections") == 64)
        wait_until(lambda: all(inferences(client) == inferred + 64 for client in clients))
    counts = [metric(workers, name) for name in (REQUESTS, "attendant_request_tokens_count")]
    assert [after - before for after, before in zip(counts, earlier, strict=True)] == [64, 64]
    assert "pid=" not in httpx.get(f"{workers.admin}/metrics").text
    wait_until(lambda: metric(workers, "attendant_http_connections") == 0)


def test_limits_are_those_of_the_whole_server(workers: RunningServer) -> None:
    """Clients read the server's limits. Each worker has its part, and the parts add up."""
    limits = httpx.get(f"{workers.rest}/v1/model").json()["limits"]
    assert (limits["max_connections"], limits["max_pending_request_bytes"]) == (2048, 2**28)
    assert metric(workers, 'attendant_connection_limit{api="rest"}') == 2048
    start = Settings(workers=3, threads=8, max_connections=10, max_pending_request_bytes=10)
    assert (start.worker_connections, start.connections_per_address, start.worker_request_bytes) == (4, 2, 4)


def test_worker_gets_its_part_of_threads_and_memory() -> None:
    options = Settings(workers=3, threads=8, max_pending_response_bytes=10, gpu_memory_limit_bytes=9)
    parts = [share(options, number) for number in range(3)]
    assert [part["threads"] for part in parts] == [3, 3, 2]
    assert {(part["max_pending_response_bytes"], part["gpu_memory_limit_bytes"]) for part in parts} == {(4, 3)}
    assert "max_request_bytes" not in parts[0]  # unset options stay unset: their defaults depend on the model


def test_supervisor_is_small_and_loads_no_runtime(workers: RunningServer) -> None:
    status = Path(f"/proc/{workers.pid}/status").read_text()
    resident = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    assert int(resident) * 1024 <= MAX_SUPERVISOR_BYTES
    maps = Path(f"/proc/{workers.pid}/maps").read_text()
    assert not [name for name in ("numpy", "onnxruntime", "openvino", "grpc", "tokenizers") if f"/{name}/" in maps]
    code = "import sys, service.__main__, service.supervisor; print('fastapi' in sys.modules, 'numpy' in sys.modules)"
    assert run_python("-c", code).stdout.split() == ["False", "False"]


def test_killed_worker_loses_its_connections_only_and_the_metrics_keep_its_counts(own_workers: RunningServer) -> None:
    counts = (REQUESTS, 'attendant_request_duration_seconds_count{api="rest",lane="fast"')

    def await_counts(requests: int) -> None:
        """Requests are counted after their responses."""
        wait_until(lambda: all(metric(own_workers, name) >= requests for name in counts))

    tally = Counter(encode(own_workers) for _ in range(20))
    victim, other = worker_ids(own_workers)
    await_counts(20)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: metric(own_workers, "attendant_worker_restarts_total") == 1)  # before, it may get connections
    for _ in range(20):
        assert is_ready(own_workers)
        tally[encode(own_workers)] += 1
    await_workers(own_workers, restarts=1)
    assert other in worker_ids(own_workers)
    tally.update(encode(own_workers) for _ in range(20))
    assert tally == {200: 60}
    await_counts(60)
    assert [metric(own_workers, name) for name in counts] == [60, 60]
    with httpx.Client(base_url=own_workers.rest) as client:
        assert inferences(client) == 60


@pytest.mark.slow
def test_worker_that_crashes_again_and_again_is_restarted_later_each_time(own_workers: RunningServer) -> None:
    stable = worker_ids(own_workers)[0]
    for restarts in (1, 2, 3):
        await_workers(own_workers, restarts - 1)
        os.kill(worker_ids(own_workers)[1], signal.SIGKILL)
        wait_until(lambda expected=restarts: metric(own_workers, "attendant_worker_restarts_total") == expected)  # type: ignore[misc]
        assert encode(own_workers) == 200
    assert worker_ids(own_workers)[0] == stable
    own_workers.process.terminate()
    _, log = own_workers.process.communicate(timeout=60)
    delays = [line.partition("restart_s=")[2].rstrip('"}') for line in log.splitlines() if "restart_s=" in line]
    assert delays == ["0.5", "1", "2"]


def test_stopped_worker_gets_no_connections(workers: RunningServer) -> None:
    stopped, other = worker_ids(workers)
    os.kill(stopped, signal.SIGSTOP)
    try:
        port = port_of(workers.rest)
        with ExitStack() as stack:

            def connect() -> None:
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))

            def goes_to_the_other() -> bool:
                before = sockets(other, port, ESTABLISHED)
                connect()
                connect()
                return sockets(other, port, ESTABLISHED) == before + 2

            wait_until(goes_to_the_other)
            assert [encode(workers) for _ in range(4)] == [200] * 4
            assert is_ready(workers)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert metric(workers, "attendant_worker_restarts_total") == 0


def test_burst_of_connections_waits_until_workers_take_them(workers: RunningServer) -> None:
    """Workers that do not read at all: a few hundred connections fill their sockets, and the others are not closed."""
    pids, address = worker_ids(workers), ("127.0.0.1", port_of(workers.rest))

    def reaches_both() -> bool:
        with socket.create_connection(address), socket.create_connection(address):
            time.sleep(0.1)
            return [sockets(pid, address[1], ESTABLISHED) for pid in pids] == [1, 1]

    wait_until(reaches_both)  # also if another test has just continued one of them
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(800)]
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        for client in clients:
            client.settimeout(30)
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert Counter(client.recv(15) for client in clients) == {b"HTTP/1.1 200 OK": 800}
        counts = [sockets(pid, address[1], ESTABLISHED) for pid in pids]
        assert sum(counts) == 800
        assert max(counts) <= 1.3 * 400


@pytest.mark.slow
def test_worker_that_hangs_is_killed_and_replaced(tiny_artifact: Path) -> None:
    code = (
        "import sys, service.supervisor as s; s.HUNG_S = 3; import service.__main__ as m; sys.exit(m.main(['serve']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=server_environment(model_dir=tiny_artifact, workers=WORKERS),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        server = describe_server(process, process.stdout.readline())
        stopped = worker_ids(server)[1]
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: not is_running(stopped))
        await_workers(server, restarts=1)
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"worker hangs, killing it worker=1 pid={stopped}" in log


def test_workers_end_with_the_supervisor_and_leave_no_port(tiny_artifact: Path) -> None:
    server = start_server(model_dir=tiny_artifact, workers=WORKERS)
    pids = worker_ids(server)
    assert len(pids) == WORKERS
    server.process.kill()
    server.process.communicate(timeout=60)
    wait_until(lambda: not any(map(is_running, pids)))
    for address in (server.rest, server.grpc, server.admin):
        socket.create_server(("127.0.0.1", port_of(address))).close()


@pytest.mark.parametrize(
    ("first", "second"),
    [(2, 1), pytest.param(2, 2, marks=pytest.mark.slow), pytest.param(1, 2, marks=pytest.mark.slow)],
)
def test_second_server_on_the_grpc_port_is_an_error(tiny_artifact: Path, first: int, second: int) -> None:
    with serving(model_dir=tiny_artifact, workers=first) as running:
        port = port_of(running.grpc)
        result = run_python("-m", "service", "serve", model_dir=tiny_artifact, workers=second, grpc_port=port)
        assert result.returncode == 78
        assert f"ATTENDANT_GRPC_PORT: cannot bind 127.0.0.1:{port} (address already in use)" in result.stderr
        assert encode(running) == 200


def test_model_that_cannot_be_loaded_is_reported_once(tmp_path: Path) -> None:
    result = run_python("-m", "service", "serve", model_dir=tmp_path / "none", workers=WORKERS, log_format="json")
    assert result.returncode == 78
    errors = [line for line in map(json.loads, result.stderr.splitlines()) if line["level"] == "error"]
    assert len(errors) == 1
    assert errors[0]["worker"] == 0


def test_other_admin_requests_are_answered_by_a_worker(workers: RunningServer) -> None:
    with httpx.Client(base_url=workers.admin) as client:
        assert client.get("/readyz").json() == {"status": "ok"}
        assert client.get("/livez").json() == {"status": "ok"}
        assert client.get("/admin/models").json()["error"]["reason"] == "ADMIN_KEY_REQUIRED"
        assert client.get("/none").status_code == 404
        assert client.post("/readyz").status_code == 405
        assert client.get("/readyz", headers={"host": "rebound.example.org"}).json()["error"]["reason"] == (
            "HOST_NOT_ALLOWED"
        )


def test_admin_port_answers_beside_idle_connections(workers: RunningServer) -> None:
    """The longest idle one makes room. Clients of HTTP/1.0 read to the end of the connection."""
    address = ("127.0.0.1", port_of(workers.admin))
    with ExitStack() as stack:
        for _ in range(MAX_ADMIN_CONNECTIONS + 5):
            stack.enter_context(socket.create_connection(address))
        for options in ("HTTP/1.0", "HTTP/1.1\r\nConnection: close, te"):
            with socket.create_connection(address, timeout=5) as connection:
                connection.sendall(f"GET /livez {options}\r\nHost: localhost\r\n\r\n".encode())
                with connection.makefile("rb") as response:
                    assert response.read().startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
def test_replacement_opens_its_grpc_port_once_its_models_are_loaded(own_workers: RunningServer) -> None:
    stub_options = [("grpc.use_local_subchannel_pool", 1)]
    statuses = set()
    os.kill(worker_ids(own_workers)[1], signal.SIGKILL)
    wait_until(lambda: metric(own_workers, "attendant_ready_workers") < WORKERS)
    while metric(own_workers, "attendant_ready_workers") < WORKERS:
        with grpc.insecure_channel(own_workers.grpc, options=stub_options) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            statuses.add(check.status)
    assert statuses == {health_pb2.HealthCheckResponse.SERVING}


async def test_every_new_process_that_serves_alone_watches_the_models_file() -> None:
    supervisor = Supervisor(Settings(workers=1))
    (worker,) = supervisor._workers
    for pid in (1, 2):
        worker.channel, end = Channel.pair()
        worker.pid, worker.is_ready, worker.was_ready = pid, True, True
        supervisor._update_status()
        received = [json.loads(end.recv(1000)) for _ in range(2 if pid == 1 else 1)]
        end.close()
        assert {"event": "watch"} in received
        supervisor._handle_end(worker, -9)
        assert worker.restart is not None
        worker.restart.cancel()


def test_worker_that_serves_again_is_live() -> None:
    """However often it had failed before."""
    worker = Worker(0, Slot.create(), failures=MAX_FAILURES + 4)
    assert not worker.is_live
    worker.is_ready = True
    assert worker.is_live


async def test_messages_wait_while_the_buffer_is_full() -> None:
    """Connections go to another worker meanwhile."""
    channel, end = Channel.pair()
    other = Channel(end)
    count = 0
    while not channel._waiting:
        assert channel.send({"event": "commit", "number": count, "padding": "x" * 5000})
        count += 1
    with socket.socket() as connection:
        assert not channel.send_connection(REST, connection)
    received: list[int] = []
    while len(received) < count:
        message = other.receive()
        if message is None:
            await asyncio.sleep(0)
        else:
            received.append(json.loads(message[0])["number"])
    assert received == list(range(count))
    assert channel.send({"event": "abort"})
    channel.close()
    end.close()


def test_first_process_of_a_container_reaps_and_drains(tiny_artifact: Path) -> None:
    """Every worker finishes its request, and the exit status is that of a clean drain."""
    server = start_server(model_dir=tiny_artifact, workers=WORKERS)
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=server.rest)) for _ in range(8)]
        assert {client.post("/v1/encode", json=TEXT).status_code for client in clients} == {200}
        server.process.send_signal(signal.SIGINT)
        server.process.communicate(timeout=60)
    assert server.process.returncode == 0


def test_quota_and_counts_of_a_caller_are_those_of_the_whole_server(tiny_artifact: Path, tmp_path: Path) -> None:
    """Each worker alone would accept the burst, so two of them would accept twice as many tokens."""
    rate = 100
    keys, admins = tmp_path / "keys", tmp_path / "admins"
    keys.write_text(f"{named_key('search', 'secret', 1, rate)}\n")
    admins.write_text(f"{named_key('operator', 'admin')}\n")
    with (
        serving(model_dir=tiny_artifact, workers=WORKERS, api_keys_file=keys, admin_keys_file=admins) as server,
        ExitStack() as stack,
    ):
        clients = [
            stack.enter_context(httpx.Client(base_url=server.rest, headers={"authorization": "Bearer secret"}))
            for _ in range(2 * WORKERS)
        ]
        started, tokens, accepted, rejected = time.monotonic(), 0, 0, 0
        while rejected < 2 * WORKERS:
            for client in clients:
                response = client.post("/v1/encode", json={"inputs": ["money bank grows"] * 4})
                if response.status_code == 200:
                    accepted, tokens = (
                        accepted + 1,
                        tokens + sum(result["token_count"] for result in response.json()["results"]),
                    )
                else:
                    assert response.json()["error"]["reason"] == "QUOTA_EXCEEDED"
                    rejected += 1
            time.sleep(0.03)
        allowed = rate * (BURST_S + time.monotonic() - started)
        request = tokens / accepted
        assert 0.9 * allowed <= tokens <= 1.01 * allowed + 2 * WORKERS * request
        response = httpx.get(f"{server.admin}/admin/callers", headers={"authorization": "Bearer admin"})
        caller = response.json()["callers"][0]
        assert (caller["ok_requests"], caller["rejected_requests"]) == (accepted, rejected)
        assert (caller["tokens"], caller["tokens_per_second"]) == (tokens, rate)
        assert httpx.get(f"{server.admin}/admin/callers").json()["error"]["reason"] == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    ("cores", "texts_per_second", "memory", "gpu_copies", "expected"),
    [
        (3, 10**6, None, None, None), (4, 10**6, None, None, 2), (96, 10**6, None, None, 8),
        (96, 12_000, None, None, 1), (96, 12_001, None, None, 2), (96, 25, 0, None, 1),
        (96, 10**6, 3, None, 3), (96, 10**6, 3, 2, 2), (96, 10**6, None, 0, 1),
    ],
)  # fmt: skip
async def test_auto_selects_a_number_that_speed_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, cores: int, texts_per_second: float, memory: int | None, gpu_copies: int | None,
    expected: int | None,
) -> None:  # fmt: skip
    """`memory`: how many more processes fit. `expected` is None where `auto` starts no supervisor."""
    monkeypatch.setattr(supervisor, "available_cpus", lambda: cores)
    if expected is None:
        assert supervisor.most_workers() == 1
        return
    server = Supervisor(load_settings(environ={"ATTENDANT_WORKERS": "auto"}))
    first, size = server._workers[0], supervisor._resident_bytes(os.getpid())
    monkeypatch.setattr(supervisor, "available_memory", lambda: None if memory is None else memory * size + 1)
    monkeypatch.setattr(supervisor, "_resident_bytes", lambda pid: 0)
    server._select_number(first, texts_per_second, gpu_copies)  # it has just ended
    assert server._is_measuring
    monkeypatch.setattr(supervisor, "_resident_bytes", lambda pid: size)
    server._select_number(first, texts_per_second, gpu_copies)
    assert len(server._workers) == server._settings.workers == expected
    assert first.is_replaced == (expected > 1)
    assert os.fstat(server._quotas).st_size == os.fstat(create_board(expected)).st_size


def test_auto_starts_the_workers_that_a_fast_model_needs(tiny_artifact: Path) -> None:
    """The model runs on a simulated GPU. The first worker is replaced by one with its part of the machine."""
    with serving(
        module="tests.service.eight_cores", model_dir=tiny_artifact, workers="auto", log_format="json"
    ) as many:
        ids = worker_ids(many)
        assert len(ids) == 4
        assert metric(many, "attendant_ready_workers") == len(ids)
        assert metric(many, "attendant_worker_restarts_total") == 0
        assert metric(many, 'attendant_connection_limit{api="rest"}') == 2048
        assert [encode(many) for _ in range(8)] == [200] * 8
        many.process.terminate()
        _, errors = many.process.communicate(timeout=60)
    lines = [*map(json.loads, errors.splitlines())]
    (selected,) = (line["message"] for line in lines if "workers selected" in line["message"])
    assert "workers=4 " in selected
    assert sum("worker started" in line["message"] for line in lines) == 5


def test_signal_while_the_first_worker_is_replaced_ends_the_server(tiny_artifact: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.service.eight_cores", "serve"],
        cwd=ROOT, env=server_environment(model_dir=tiny_artifact, workers="auto"), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "workers selected" in line:
            process.terminate()
            break
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_measured_worker_is_not_serving_until_it_is_selected(tiny_artifact: Path) -> None:
    """Otherwise, a client that waits for SERVING could lose its connection when the worker is replaced."""
    with bind("127.0.0.1", 0, "gRPC") as free:
        port = free.getsockname()[1]
    channel, end = Channel.pair()
    environment = server_environment() | {PARENT: str(os.getpid())}
    command = [sys.executable, "-m", "service", "worker", str(end.fileno())]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[end.fileno()])
    end.close()
    channel.end.settimeout(60)
    settings = {"model_dir": str(tiny_artifact), "grpc_port": port}
    start = Start(0, 1, settings, is_measured=True)
    channel.send(start.__dict__, (create_board(1), Slot.create().descriptor))
    while json.loads(channel.end.recv(10_000))["event"] != "ready":
        pass
    with grpc.insecure_channel(f"127.0.0.1:{port}") as client:
        watch = health_pb2_grpc.HealthStub(client).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        channel.send({"event": "serve"})
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    process.terminate()
    assert process.wait(60) == 0
    channel.close()


def test_mps_is_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not supervisor.has_mps()
    (tmp_path / "control").touch()
    assert supervisor.has_mps()


def test_one_worker_needs_no_supervisor(tiny_artifact: Path) -> None:
    with serving(model_dir=tiny_artifact, workers=1) as running:
        assert worker_ids(running) == []
        assert encode(running) == 200


@pytest.mark.parametrize("value", ["-1", "65", "many"])
def test_invalid_number_of_workers_is_an_error(value: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "service", "serve", "--workers", value], capture_output=True, text=True, check=False
    )
    assert result.returncode == 78
    assert result.stderr.startswith("attendant: ATTENDANT_WORKERS: ")
