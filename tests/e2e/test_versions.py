"""An old client works with this server, and this client with an old server."""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attendant_client import AttendantError, Client

from service.engine.model_loader import LoadedModel
from tests.conftest import ROOT
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow

OLD = "527a16e5"
"""A commit with the oldest version that still works, until the first release takes its place."""
CALLS = """
import json, sys
import numpy as np
from attendant_client import Client, Input, Occurrence

def plain(value):
    return np.round(np.asarray(value, dtype=float), 4).tolist()

with Client(sys.argv[1]) as client:
    text = "He cashed a check at the bank."
    inputs = [Input(text, spans=[(25, 29)]), Input("a", spans=[(0, 1)])]
    encoded = client.encode(inputs, outputs=["pooled", "words", "spans"], layers=[0, -1])
    info = client.model()
    maps = client.attend(text, layers=[-1], head_reduce="mean", unit="word")
    compared = client.compare([Occurrence(text, word_index=6), Occurrence("The river bank.", word_index=2)])
    similar = client.similarity("money", [text, "river"], explain=True, unit="word", top_k=3)
    ranked = client.rerank("money", ["river", text], effect="occlusion", explain_top=1)
    print(json.dumps({
        "pooled": plain([result.pooled for result in encoded.results]),
        "words": [word.text for word in encoded.results[0].words],
        "spans": plain(encoded.results[0].span_vectors),
        "model": [info.name, info.digest, info.num_hidden_layers, info.limits.max_inputs],
        "map": plain(maps.results[0].maps[0].matrix),
        "compared": plain([layer.cosine for layer in compared.layers]),
        "similar": plain(similar.scores),
        "ranked": [[result.index, round(result.relevance_score, 4)] for result in ranked.results],
        "effects": plain(ranked.results[0].explanation.document_effects),
        "tokens": [token.text for token in client.tokenize(text).results[0].tokens],
    }))
"""


@pytest.fixture(scope="module")
def old_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the old version."""
    archive = subprocess.run(["git", "archive", OLD], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history of this checkout does not reach back to {OLD}")
    directory = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python has it since 3.11.4
        files.extractall(directory)
    return directory


def call(client: Path, url: str) -> Any:
    """Return what the client in a directory reads from a server."""
    command = [sys.executable, "-c", CALLS, url]
    environment = os.environ | {"PYTHONPATH": str(client)}
    result = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_old_client_reads_this_server(old_checkout: Path, model: LoadedModel, protocol: str) -> None:
    with ServiceThread(model) as service:
        url = service.rest if protocol == "rest" else f"grpc://{service.grpc}"
        assert call(old_checkout / "client", url) == call(ROOT / "client", url)


@pytest.fixture(scope="module")
def old_server(old_checkout: Path) -> Iterator[dict[str, str]]:
    """The addresses of an old server, with a model that it exported itself."""
    ports = {f"ATTENDANT_{name}_PORT": "0" for name in ("REST", "GRPC", "ADMIN")}
    environment = os.environ | ports | {"PYTHONPATH": f"{old_checkout}:{old_checkout / 'client'}"}
    artifact = str(old_checkout / "artifact")
    export = [sys.executable, "-m", "model", "export", "default", "-o", artifact]
    subprocess.run(export, cwd=old_checkout, env=environment, capture_output=True, check=True, timeout=300)
    command = [sys.executable, "-m", "service", "serve", artifact]
    with subprocess.Popen(command, cwd=old_checkout, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        ready = next((line for line in lines if "rest_port=" in line), "")
        found = dict(part.split("=") for part in json.loads(ready)["message"].split()[1:]) if ready else {}
        assert found, "the old server did not start"
        yield {"rest": f"http://127.0.0.1:{found['rest_port']}", "grpc": f"grpc://127.0.0.1:{found['grpc_port']}"}
        process.terminate()
        process.stderr.read()


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_this_client_reads_an_old_server(old_server: dict[str, str], protocol: str) -> None:
    url = old_server[protocol]
    assert call(ROOT / "client", url)["words"][-2] == "bank"


def test_new_option_is_an_error_of_an_old_server(old_server: dict[str, str]) -> None:
    with Client(old_server["rest"]) as client, pytest.raises(AttendantError) as raised:
        client.encode("One. Two.", chunks={"by": "sentence"})
    assert raised.value.reason == "UNKNOWN_FIELD"
    assert raised.value.field == "chunks"
