"""Server containers: the client tests, shutdown, damage, other users, and other models."""

import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import transformers

from model.artifact.files import Artifact
from tests.conftest import start_server, stop_server
from tests.image.conftest import HARDENED, container, run_pytest
from tests.image.docker_host import Daemon
from tests.model.tiny_tokenizers import build_wordpiece

pytestmark = pytest.mark.image
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("encode", {"inputs": ["money bank grows", "river bank flows"], "outputs": ["pooled", "tokens", "words"]}),
    ("encode", {"inputs": "The bank of the river.", "layers": [1, -1], "outputs": ["words"]}),
    ("attend", {"inputs": "He cashed a check at the bank.", "kind": "norm", "unit": "word"}),
    ("similarity", {"queries": "open an account", "documents": ["Accounts open.", "A river."], "explain": True}),
    ("embeddings", {"input": ["money bank grows"], "model": "all-MiniLM-L6-v2"}),
    ("tokenize", {"inputs": "money bank grows"}),
]


def test_client_tests_pass_against_a_container(daemon: Daemon, images: dict[str, str]) -> None:
    with container(daemon, images["server"]) as server:
        result = run_pytest("tests/client", TEST_SERVICE=f"{server.rest} {server.grpc}")
        assert result.returncode == 0, result.stdout[-3000:]
        assert " passed" in result.stdout
        print(result.stdout.splitlines()[-1])
        assert not server.state["OOMKilled"]
        assert server.stop() == 0


def test_container_returns_the_values_of_a_checkout(
    daemon: Daemon, images: dict[str, str], default_artifact: Path
) -> None:
    """Float32 embeddings must be equal bit for bit. Maps are computed with BLAS, which rounds differently on some
    CPUs.
    """
    checkout = start_server(model_dir=default_artifact, precision="float32", threads=2)
    try:
        with container(daemon, images["server"], precision="float32", threads=2) as server:
            for operation, body in REQUESTS:
                responses = [httpx.post(f"{rest}/v1/{operation}", json=body) for rest in (server.rest, checkout.rest)]
                assert [response.status_code for response in responses] == [200, 200], responses[0].text
                if operation in ("attend", "similarity"):
                    assert_close(responses[0].json(), responses[1].json())
                else:
                    assert responses[0].content == responses[1].content
    finally:
        stop_server(checkout)


def assert_close(left: Any, right: Any) -> None:
    """Compare two documents: numbers within 1e-5, everything else exactly."""
    if isinstance(left, dict):
        assert list(left) == list(right)
        left, right = list(left.values()), list(right.values())
    if isinstance(left, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_close(one, other)
    else:
        assert left == (pytest.approx(right, abs=1e-5) if isinstance(right, float) else right)


def test_stopped_container_finishes_accepted_requests(daemon: Daemon, images: dict[str, str]) -> None:
    """SIGTERM under load: every response must be 200, or 503 with the reason DRAINING."""
    outcomes: list[tuple[int, str]] = []
    stopping = threading.Event()

    def send(rest: str) -> None:
        with httpx.Client(base_url=rest, timeout=60) as client:
            while True:
                try:
                    response = client.post("/v1/encode", json={"inputs": ["money bank grows"] * 32})
                except httpx.ConnectError:
                    return
                except (httpx.RemoteProtocolError, httpx.ReadError):
                    assert stopping.is_set()  # the server closed an idle connection just as this request was sent
                    return
                reason = "" if response.status_code == 200 else response.json()["error"]["reason"]
                outcomes.append((response.status_code, reason))
                if response.status_code != 200:
                    return

    with container(daemon, images["server"], drain_delay_ms=500) as server:
        threads = [threading.Thread(target=send, args=(server.rest,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        while len(outcomes) < 100:
            stopping.wait(0.05)
        stopping.set()
        assert server.stop() == 0
        for thread in threads:
            thread.join(60)
    assert set(outcomes) <= {(200, ""), (503, "DRAINING")}
    print(f"{len(outcomes)} responses: {outcomes.count((200, ''))} with 200")


def test_restart_with_a_damaged_model_fails(
    daemon: Daemon, images: dict[str, str], default_artifact: Path, tmp_path: Path
) -> None:
    """With one flipped bit in the weights, the container must exit with status 78 and name the file."""
    artifact = tmp_path / "model"
    shutil.copytree(default_artifact, artifact)
    weights = max(artifact.iterdir(), key=lambda file: file.stat().st_size)
    mount = f"--volume={artifact}:/artifacts/model:ro"
    with container(daemon, images["runtime"], mount, model_dir="/artifacts/model") as server:
        assert server.stop() == 0
        content = bytearray(weights.read_bytes())
        content[len(content) // 2] ^= 1
        weights.write_bytes(content)
        daemon.run("start", server.id)
        daemon.run("wait", server.id)
        assert server.state["ExitCode"] == 78
        assert f"{weights.name}: SHA-256 mismatch" in server.log


def test_container_runs_as_any_user(daemon: Daemon, images: dict[str, str]) -> None:
    """OpenShift assigns a user ID and group 0."""
    with container(daemon, images["server"], "--user=1000660000:0") as server:
        assert httpx.get(f"{server.rest}/v1/model").status_code == 200
        assert server.stop() == 0


def test_exporter_image_exports_a_model_that_the_server_image_serves(
    daemon: Daemon, images: dict[str, str], tmp_path: Path
) -> None:
    """Serving another model must not require a checkout."""
    published, artifacts = tmp_path / "published", tmp_path / "artifacts"
    config = transformers.BertConfig(vocab_size=211, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
                                     intermediate_size=37, max_position_embeddings=41)  # fmt: skip
    transformers.BertModel(config).save_pretrained(published)
    build_wordpiece().save(str(published / "tokenizer.json"))
    artifacts.mkdir()
    for folder in (tmp_path, *tmp_path.rglob("*")):
        folder.chmod(0o755)
    artifacts.chmod(0o777)
    flags = ("--rm", "--network=none", *HARDENED, f"--volume={tmp_path}:/data")
    daemon.run("run", *flags, images["export"], "export", "/data/published", "-o", "/data/artifacts/tiny")
    digest = Artifact.open(artifacts / "tiny").digest
    mount = f"--volume={artifacts}:/artifacts:ro"
    with container(daemon, images["runtime"], mount, model_dir="/artifacts/tiny", model_digest=digest) as server:
        response = httpx.post(f"{server.rest}/v1/encode", json={"inputs": "money bank"})
        assert len(response.json()["results"][0]["pooled"]) == 24


def test_container_without_a_model_says_how_to_give_one(daemon: Daemon, images: dict[str, str]) -> None:
    with container(daemon, images["runtime"], ready=False) as server:
        daemon.run("wait", server.id)
        assert server.state["ExitCode"] == 78
        assert "/models/model" in server.log
        print(server.log.strip())
