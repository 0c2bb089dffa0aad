"""The command-line interface: output, exit status and imports."""

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

import model
import service
from service.__main__ import USAGE, main
from service.config import describe_options
from tests.conftest import ROOT, server_environment

TEXTS = ["money bank grows", "river bank flows", "a line with \u2028 in it"]
HANG_TIMEOUT_S = 60


def run(
    *arguments: str, stdin: str = "", environment: dict[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments until it exits."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment or server_environment(**options), input=stdin,
        capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False,
    )  # fmt: skip


def test_embed_prints_the_embeddings_of_the_server(rest: httpx.Client, default_artifact: Path) -> None:
    """The output is one JSON line per argument."""
    result = run("-m", "service", "embed", *TEXTS, model_dir=default_artifact)
    expected = rest.post("/v1/encode", json={"inputs": TEXTS}).json()["results"]
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    np.testing.assert_allclose(lines, [item["pooled"] for item in expected], atol=1e-4)
    assert (result.returncode, result.stderr) == (0, "")


def test_embed_reads_lines_from_standard_input(default_artifact: Path) -> None:
    """The lines need several batches."""
    result = run("-m", "service", "embed", stdin="a word\n" * 70, model_dir=default_artifact)
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 70)


def test_embed_error_names_the_line(default_artifact: Path) -> None:
    """Earlier batches are printed."""
    result = run("-m", "service", "embed", stdin="a word\n" * 40 + "\nlast\n", model_dir=default_artifact)
    assert (result.returncode, len(result.stdout.splitlines())) == (1, 32)
    assert result.stderr == "attendant: line 41: empty or blank. Send text.\n"


def test_embed_truncates_long_lines_with_a_warning(default_artifact: Path) -> None:
    result = run("-m", "service", "embed", "word " * 300, "short", model_dir=default_artifact)
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 2)
    assert result.stderr == "attendant: truncated 1 lines to 256 tokens, the limit of the model\n"


def test_embed_rejects_input_that_is_not_utf8(default_artifact: Path) -> None:
    """The error is one line without a traceback."""
    result = subprocess.run(
        [sys.executable, "-m", "service", "embed"], cwd=ROOT, env=server_environment(model_dir=default_artifact),
        input=b"hello\n\xff\n", capture_output=True, timeout=HANG_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (1, b"attendant: line 2: not UTF-8. Send text in UTF-8.\n")


def test_embed_exits_without_error_when_the_pipe_closes(default_artifact: Path) -> None:
    pipeline = f"yes hello | head -2000 | {sys.executable} -m service embed | head -1"
    result = subprocess.run(
        ["bash", "-c", pipeline], cwd=ROOT, env=server_environment(model_dir=default_artifact),
        capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (len(result.stdout.splitlines()), result.stderr) == (1, "")


def test_options_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options"]) == 0
    assert capsys.readouterr().out == describe_options()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--help"], 0), (["help"], 0), (["embed", "--help"], 0), ([""], 2), (["serv"], 2), (["embed", "--fast"], 2)],
)
def test_usage_is_printed_on_request_or_for_wrong_arguments(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int
) -> None:
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert (out, err) == ((USAGE, "") if status == 0 else ("", USAGE))


def test_unknown_option_exits_with_78(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ATTENDANT_REST_PROT", "1")
    assert main(["serve"]) == 78
    assert (
        capsys.readouterr().err == "attendant: ATTENDANT_REST_PROT: unknown option. Did you mean ATTENDANT_REST_PORT?\n"
    )


def modules() -> list[str]:
    packages = ((service, "service."), (model, "model."))
    return [m.name for package, prefix in packages for m in pkgutil.walk_packages(package.__path__, prefix)]


def test_imports_have_no_side_effects() -> None:
    """Imports print nothing, start no thread, register no metric, and ignore invalid options in the environment."""
    code = f"""
import importlib, threading
for name in {modules()!r}:
    importlib.import_module(name)
from prometheus_client import REGISTRY
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
assert not [family.name for family in REGISTRY.collect() if "attendant" in family.name]
"""
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    environment |= {"ATTENDANT_NONSENSE": "1", "ATTENDANT_REST_PORT": "x"}
    result = run("-c", code, environment=environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


WITHOUT_TORCH = """
import sys
BLOCKED = ("torch", "transformers", "sentence_transformers", "onnx", "onnxruntime.training")
class BlockingFinder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(tuple(f"{blocked}." for blocked in BLOCKED)) or name in BLOCKED:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, BlockingFinder())
from service.__main__ import main
status = main(["serve"])
assert not set(BLOCKED) & set(sys.modules)
sys.exit(status)
"""


def test_server_runs_without_torch(default_artifact: Path) -> None:
    """Imports of torch, transformers and onnx fail."""
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, env=server_environment(model_dir=default_artifact),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready: ")
    process.terminate()
    process.communicate(timeout=HANG_TIMEOUT_S)
    assert process.returncode == 0
