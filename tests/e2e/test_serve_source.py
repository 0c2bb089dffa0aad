"""`attendant serve SOURCE`: download from a stand-in for the hub, export in a child process, and serving."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, RunningServer, run_python, server_environment, serving, start_server
from tests.model.hub_server import COMMIT, HubServer, Repository, hub_server

MODEL = "owner/tiny"
CARD = b"---\nlicense: cc-by-nc-4.0\n---\n"
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from service.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def hub(published: Path) -> Iterator[HubServer]:
    with hub_server() as server:
        server.repositories[MODEL] = Repository.of(published)
        server.repositories[MODEL].files["README.md"] = CARD
        yield server


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the caches that the tests share: an export takes ten seconds."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture
def environment(hub: HubServer, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(directory / "hub"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


def start(source: str, cache: Path, **options: object) -> subprocess.Popen[str]:
    """Start a server without waiting for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "service", "serve", source], cwd=ROOT,
        env=server_environment(cache_dir=cache, **options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read stderr up to a line with this text."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return
    pytest.fail("".join(lines))


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stop(server: RunningServer) -> list[dict[str, str]]:
    """Stop a server; return its log records."""
    server.process.terminate()
    _, log = server.process.communicate(timeout=TIMEOUT_S)
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


@pytest.mark.usefixtures("environment")
@pytest.mark.slow
def test_two_servers_export_once_and_later_ones_not_at_all(hub: HubServer, directory: Path) -> None:
    cache = directory / "attendant"
    first = start(MODEL, cache)
    read_until(first, "locating")
    second = start(MODEL, cache)
    try:
        read_until(second, f"waiting for another process that exports {MODEL}")
        for process in (first, second):
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready: ")
    finally:
        for process in (first, second):
            process.terminate()
    logs = [process.communicate(timeout=TIMEOUT_S)[1] for process in (first, second)]
    assert ["exporting fast.onnx" in log for log in logs] == [True, False]
    assert len([request for request in hub.requests if request.startswith("GET /lfs/")]) == 1

    hub.repositories[MODEL].revisions = {"main": "f" * 40, "old": COMMIT}
    hub.requests.clear()
    for source in (MODEL, f"{MODEL}@{COMMIT}"):
        server = start_server(source, cache_dir=cache, model_dir="/no/such/directory")
        response = httpx.post(f"{server.rest}/v1/encode", json={"inputs": "money bank grows"})
        assert response.raise_for_status().json()["model"] == "tiny"
        messages = [record["message"] for record in stop(server)]
        (found,) = [message for message in messages if message.startswith("artifact found ")]
        assert f"source={source} model={MODEL} revision={COMMIT} directory={cache}" in found
        assert "license restricts commercial use model=tiny license=cc-by-nc-4.0" in messages
    assert hub.requests == []


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_signal_during_export_ends_both_processes(tmp_path: Path, published: Path, number: int, status: int) -> None:
    server = start(str(published), tmp_path)
    read_until(server, "exporting fast.onnx")
    (exporter,) = children(server)
    assert len(list(tmp_path.iterdir())) == 2  # the lock and the files of the export
    server.send_signal(number)
    out, err = server.communicate(timeout=TIMEOUT_S)
    assert (server.returncode, out, "Traceback" in err) == (status, "", False)
    assert not is_running(exporter)
    assert [path.name for path in tmp_path.iterdir()] == ["locks"]
    (lock,) = (tmp_path / "locks").iterdir()
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.usefixtures("environment")
def test_exporter_keeps_the_lock_of_a_killed_server(tmp_path: Path, published: Path) -> None:
    """Otherwise a second server would remove the files that the first one's exporter is writing."""
    server = start(str(published), tmp_path, workers=1)
    read_until(server, "exporting fast.onnx")
    (exporter,) = children(server)
    server.kill()
    server.communicate(timeout=TIMEOUT_S)
    (path,) = (tmp_path / "locks").iterdir()
    with path.open() as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(ProcessLookupError):
            os.kill(exporter, signal.SIGKILL)
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_missing_exporter_names_the_extra(published: Path, tmp_path: Path) -> None:
    result = run_python("-c", WITHOUT_TORCH, "serve", str(published), cache_dir=tmp_path, workers=1)
    assert result.returncode == 78
    assert result.stderr.splitlines()[-1] == (
        f"attendant: {published}: must be exported first, which needs PyTorch (not installed). Run: "
        "pip install '.[cpu,export]'"
    )


def test_artifact_is_served_without_the_exporter(tiny_artifact: Path, tmp_path: Path) -> None:
    options = {"cache_dir": tmp_path / "cache", "model_dir": "/no/such", "models": "a=/no/such"}
    with serving(str(tiny_artifact), **options) as server:
        assert httpx.get(f"{server.rest}/v1/model").raise_for_status().json()["name"] == "tiny-bert"
    assert not (tmp_path / "cache").exists()
