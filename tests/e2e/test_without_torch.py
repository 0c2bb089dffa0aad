"""The server in an environment without torch and transformers."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, server_environment

pytestmark = pytest.mark.slow

ABSENT = ("torch", "transformers", "sentence_transformers", "onnx", "safetensors")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a new virtual environment with the server's dependencies."""
    directory = tmp_path_factory.mktemp("serving")
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    interpreter = directory / "bin" / "python"
    subprocess.run(
        [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--constraint", "constraints.txt", ".[cpu]"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return interpreter


@pytest.fixture
def address(python: Path, default_artifact: Path, tmp_path: Path) -> Iterator[str]:
    """Yield the address of a server that runs in that environment, outside of the checkout."""
    process = subprocess.Popen(
        [str(python.with_name("attendant")), "serve"],
        cwd=tmp_path,
        env=server_environment(model_dir=default_artifact),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready: REST ")
    yield line.split()[2].rstrip(",")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("name", ABSENT)
def test_environment_has_no_training_package(python: Path, name: str) -> None:
    result = subprocess.run([str(python), "-c", f"import {name}"], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in result.stderr


def test_server_encodes_without_torch(address: str) -> None:
    request = urllib.request.Request(
        f"{address}/v1/encode", b'{"inputs": "money bank grows"}', {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        assert len(json.load(response)["results"][0]["pooled"]) == 384
