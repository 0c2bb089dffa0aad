"""A server process whose models change: signals, memory, and requests under load."""

import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from model.artifact.files import GOLDEN, Artifact, write_manifest
from model.source.hub import locate
from tests.conftest import HANG_TIMEOUT_S, RunningServer, start_server, stop_server, wait_until
from tests.manifests import with_head, with_prompts

SWAPS = 10
MEMORY_GROWTH = 1.1
"""Allowed growth of resident memory from the second swap (both models loaded) to the last. It varies by 5%."""
SENDERS = 3


def write_models(path: Path, **sources: Path | str) -> None:
    """Replace the file at once."""
    new = path.with_suffix(".new")
    new.write_text("".join(f"[[models]]\nname = '{name}'\nsource = '{source}'\n" for name, source in sources.items()))
    new.replace(path)


def await_more(responses: Counter[str], count: int) -> None:
    target = responses.total() + count
    wait_until(lambda: responses.total() > target)


def names(server: RunningServer) -> list[str]:
    return [model["id"] for model in httpx.get(f"{server.rest}/v1/models").json()["data"]]


@pytest.fixture
def other_artifact(tiny_artifact: Path, tmp_path: Path) -> Path:
    out = tmp_path / "other"
    shutil.copytree(tiny_artifact, out)
    write_manifest(out, with_prompts(Artifact.open(out).manifest, {"query": "find: "}))
    return out


def test_server_applies_changes_and_survives_failures(
    tiny_artifact: Path, other_artifact: Path, tmp_path: Path
) -> None:
    """SIGHUP, which ends other programs, makes it read the files at once."""
    path = tmp_path / "models.toml"
    write_models(path, a=tiny_artifact)
    server = start_server(models_file=path)
    try:
        assert names(server) == ["a"]
        write_models(path, b=other_artifact, a=tiny_artifact)
        wait_until(lambda: names(server) == ["b", "a"])
        assert httpx.get(f"{server.rest}/v1/model").json()["prompts"] == {"query": "find: "}
        metric = 'attendant_reload_failing{subject="models"} 1.0'
        path.write_text("[[models]]")
        wait_until(lambda: metric in httpx.get(f"{server.admin}/metrics").text)
        assert names(server) == ["b", "a"]
        write_models(path, a=tiny_artifact)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: names(server) == ["a"])
    finally:
        server.process.terminate()
        _, log = server.process.communicate(timeout=HANG_TIMEOUT_S)
    assert server.process.returncode == 0
    for line in (
        "models changed loaded=b removed=",
        "models changed loaded= removed=b",
        "reload requested signal=SIGHUP",
    ):
        assert line in log
    assert log.count("reload failed") == 1


@contextmanager
def load(server: RunningServer, responses: Counter[str]) -> Iterator[None]:
    """Send requests without pause, and count the models or the errors of their responses."""
    stop = threading.Event()

    def send() -> None:
        with httpx.Client(base_url=server.rest, timeout=HANG_TIMEOUT_S) as client:
            while not stop.is_set():
                response = client.post("/v1/encode", json={"inputs": ["money bank grows", "river bank flows"]})
                responses[response.headers.get("x-attendant-model", response.text)] += 1

    threads = [threading.Thread(target=send) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
def test_ten_swaps_under_load_lose_no_request_and_keep_memory(default_artifact: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(default_artifact, other)
    write_manifest(other, with_head(Artifact.open(other).manifest, pooling="cls"))
    (other / GOLDEN).unlink()  # its vectors use the other pooling
    path, link = tmp_path / "models.toml", tmp_path / "current"
    link.symlink_to(default_artifact)
    write_models(path, search=link)
    server = start_server(models_file=path)
    responses: Counter[str] = Counter()
    digests = [f"sha256:{Artifact.read_manifest(artifact)[1]}" for artifact in (default_artifact, other)]
    with load(server, responses):
        await_more(responses, 500)
        before = 0.0
        for number in range(SWAPS):
            target = (other, default_artifact)[number % 2]
            new = tmp_path / "new"
            new.symlink_to(target)
            new.replace(link)
            wait_until(lambda target=target: _digest(server) == f"sha256:{Artifact.read_manifest(target)[1]}")  # type: ignore[misc]
            if number == 1:
                await_more(responses, 100)
                before = resident_mib(server.process.pid)
        await_more(responses, 100)
    after = resident_mib(server.process.pid)
    print(f"{before:.0f} MiB before, {after:.0f} MiB after {SWAPS} swaps; {dict(responses)}")
    assert stop_server(server) == 0
    assert set(responses) == {f"search@{digest}" for digest in digests}
    assert after <= MEMORY_GROWTH * before


def _digest(server: RunningServer) -> str:
    return str(httpx.get(f"{server.rest}/v1/model").json()["digest"])


@pytest.mark.slow
def test_export_of_a_new_model_ends_with_the_server(tiny_artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    write_models(path, a=tiny_artifact)
    server = start_server(models_file=path, cache_dir=tmp_path / "cache")
    write_models(path, a=tiny_artifact, b=locate("default").directory)
    children = Path(f"/proc/{server.process.pid}/task")
    exporters: list[int] = []

    def has_exporter() -> bool:
        exporters[:] = [int(pid) for task in children.glob("*/children") for pid in task.read_text().split()]
        return bool(exporters)

    wait_until(has_exporter)
    assert names(server) == ["a"]
    assert stop_server(server) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in exporters)
