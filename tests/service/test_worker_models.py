"""Changes of the models of several workers: all of them make a change, or none."""

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from model.artifact.files import GOLDEN, Artifact, write_manifest
from tests.conftest import RunningServer, run_python, serving, wait_until
from tests.keys import named_key
from tests.manifests import with_head
from tests.service.test_supervisor import WORKERS, await_workers, metric, worker_ids

KEY = {"authorization": "Bearer admin-secret", "content-type": "application/json"}


def write_models(path: Path, **sources: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text("".join(f"[[models]]\nname = '{name}'\nsource = '{source}'\n" for name, source in sources.items()))
    new.replace(path)


def names(server: RunningServer) -> list[list[str]]:
    """The models of each worker: of two idle connections that are open at once, each worker has one."""
    with httpx.Client(base_url=server.rest) as first, httpx.Client(base_url=server.rest) as second:
        documents = [client.get("/v1/models").json() for client in (first, second)]
    return [[model["id"] for model in document["data"]] for document in documents]


def change(server: RunningServer, method: str, name: str) -> httpx.Response:
    return httpx.request(method, f"{server.admin}/admin/models/{name}", headers=KEY, timeout=60)


@pytest.fixture
def server(tiny_artifact: Path, tmp_path: Path) -> Iterator[RunningServer]:
    keys = tmp_path / "admins"
    keys.write_text(f"{named_key('operator', 'admin-secret')}\n")
    write_models(tmp_path / "models.toml", a=tiny_artifact, b=tiny_artifact)
    with serving(models_file=tmp_path / "models.toml", admin_keys_file=keys, workers=WORKERS) as running:
        yield running


def digests(server: RunningServer) -> list[str]:
    """The digest of the default model of each worker."""
    with httpx.Client(base_url=server.rest) as first, httpx.Client(base_url=server.rest) as second:
        return [client.get("/v1/model").json()["digest"] for client in (first, second)]


def replace_artifact(path: Path, old: Path) -> str:
    """Replace the artifact by one with another pooling. Return its digest."""
    new = path.with_name("replacement")
    shutil.copytree(old, new)
    write_manifest(new, with_head(Artifact.open(new).manifest, pooling="cls"))
    (new / GOLDEN).unlink()  # it contains the vectors of the other pooling
    shutil.rmtree(path)
    new.rename(path)
    return f"sha256:{Artifact.open(path).digest}"


@pytest.mark.slow
def test_replaced_worker_never_serves_another_model_than_the_others(tiny_artifact: Path, tmp_path: Path) -> None:
    served = tmp_path / "served"
    shutil.copytree(tiny_artifact, served)
    with serving(model_dir=served, workers=WORKERS, log_format="json") as server:
        before = digests(server)
        new = replace_artifact(served, tiny_artifact)
        os.kill(worker_ids(server)[1], signal.SIGKILL)
        wait_until(lambda: metric(server, "attendant_worker_restarts_total") >= 2)
        assert metric(server, "attendant_ready_workers") == 1
        assert {*digests(server)} == {*before}
        os.kill(worker_ids(server)[0], signal.SIGKILL)
        wait_until(lambda: metric(server, "attendant_ready_workers") == 0)  # none serves the old model any more
        wait_until(lambda: metric(server, "attendant_ready_workers") == WORKERS)
        assert digests(server) == [new] * WORKERS
        server.process.terminate()
        _, log = server.process.communicate(timeout=60)
    assert f"{served}: replaced since the other workers loaded it. Restart the server" in log


@pytest.mark.slow
def test_replaced_worker_tells_the_others_to_load_a_changed_artifact(tiny_artifact: Path, tmp_path: Path) -> None:
    """It watches the models file, and has loaded the change before it could be noticed."""
    served = tmp_path / "served"
    shutil.copytree(tiny_artifact, served)
    write_models(tmp_path / "models.toml", a=served)
    with serving(models_file=tmp_path / "models.toml", workers=WORKERS) as server:
        first = worker_ids(server)[0]
        os.kill(first, signal.SIGSTOP)
        new = replace_artifact(served, tiny_artifact)
        os.kill(first, signal.SIGKILL)
        await_workers(server, restarts=1)
        wait_until(lambda: digests(server) == [new] * WORKERS)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [1, WORKERS])
def test_corrected_models_file_is_read_although_workers_cannot_start(
    tiny_artifact: Path, tmp_path: Path, killed: int
) -> None:
    """One worker watches the file: the next one if the first cannot start. If none serves, the first one reads it."""
    for name in ("a", "b"):
        shutil.copytree(tiny_artifact, tmp_path / name)
    write_models(tmp_path / "models.toml", a=tmp_path / "a", b=tmp_path / "b")
    with serving(models_file=tmp_path / "models.toml", workers=WORKERS) as server:
        (tmp_path / "b").rename(tmp_path / "gone")
        for pid in worker_ids(server)[:killed]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: metric(server, "attendant_worker_restarts_total") >= 2 * killed)
        write_models(tmp_path / "models.toml", a=tmp_path / "a")
        wait_until(lambda: metric(server, "attendant_ready_workers") == WORKERS)
        wait_until(lambda: names(server) == [["a"]] * WORKERS)
        assert httpx.get(f"{server.admin}/livez").status_code == 200
        write_models(tmp_path / "models.toml", a=tmp_path / "a", c=tmp_path / "a")
        wait_until(lambda: names(server) == [["a", "c"]] * WORKERS)


def test_models_file_too_long_for_a_message_is_an_error(tiny_artifact: Path, tmp_path: Path) -> None:
    write_models(tmp_path / "models.toml", a=tiny_artifact)
    with (tmp_path / "models.toml").open("a") as file:
        file.write("# a comment\n" * 10_000)
    result = run_python("-m", "service", "serve", models_file=tmp_path / "models.toml", workers=WORKERS)
    assert result.returncode == 78
    assert "ATTENDANT_MODELS_FILE: too large for several workers" in result.stderr


def test_unloads_and_loads_reach_every_worker_and_its_replacement(server: RunningServer) -> None:
    assert names(server) == [["a", "b"]] * WORKERS
    assert change(server, "DELETE", "b").json()["ready"] is False
    assert names(server) == [["a"]] * WORKERS
    os.kill(worker_ids(server)[0], signal.SIGKILL)
    await_workers(server, restarts=1)
    assert names(server) == [["a"]] * WORKERS
    assert change(server, "POST", "b").json()["ready"] is True
    assert names(server) == [["a", "b"]] * WORKERS
    assert change(server, "DELETE", "a").json()["error"]["reason"] == "DEFAULT_MODEL_REQUIRED"
    assert change(server, "POST", "none").status_code == 404


@pytest.mark.slow
def test_changed_file_reaches_every_worker(server: RunningServer, tiny_artifact: Path, tmp_path: Path) -> None:
    write_models(tmp_path / "models.toml", c=tiny_artifact, a=tiny_artifact)
    wait_until(lambda: names(server) == [["c", "a"]] * WORKERS)


@pytest.mark.slow
def test_model_that_cannot_be_loaded_changes_no_worker(
    server: RunningServer, tiny_artifact: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_artifact, damaged)
    (damaged / "tokenizer.json").write_text("{}")
    write_models(tmp_path / "models.toml", c=damaged, a=tiny_artifact)
    response = change(server, "POST", "c")
    assert response.status_code >= 400
    assert "tokenizer.json" in response.json()["error"]["message"]
    assert names(server) == [["a", "b"]] * WORKERS
    write_models(tmp_path / "models.toml", c=tiny_artifact, a=tiny_artifact)
    assert change(server, "POST", "c").json()["ready"] is True
    assert names(server) == [["c", "a"]] * WORKERS


@pytest.mark.parametrize(
    ("method", "done"), [pytest.param("POST", "loaded", marks=pytest.mark.slow), ("DELETE", "unloaded")]
)
def test_worker_that_ends_during_a_change_aborts_it(server: RunningServer, method: str, done: str) -> None:
    """Its neighbor has prepared the change, and serves what it served before."""
    stopped = worker_ids(server)[1]
    os.kill(stopped, signal.SIGSTOP)
    with ThreadPoolExecutor() as executor:
        response = executor.submit(change, server, method, "b")
        with pytest.raises(TimeoutError):
            response.result(timeout=4)
        os.kill(stopped, signal.SIGKILL)
        error = response.result().json()["error"]
        assert (error["reason"], error["message"]) == (
            "LOAD_FAILED",
            f'name: model not {done} ("b"). Worker 1 ended. Try again.',
        )
    await_workers(server, restarts=1)
    assert names(server) == [["a", "b"]] * WORKERS
    assert change(server, method, "b").status_code == 200
