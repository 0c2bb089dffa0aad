"""The command, as a process: what it prints, and the status it ends with."""

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
PATIENCE_S = 60


def run(
    *arguments: str, stdin: str = "", clean: dict[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=clean or server_environment(**options), input=stdin,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_embed_prints_the_vectors_of_the_server(rest: httpx.Client, default_artifact: Path) -> None:
    """A line of JSON for each argument."""
    found = run("-m", "service", "embed", *TEXTS, model_dir=default_artifact)
    served = rest.post("/v1/encode", json={"inputs": TEXTS}).json()["results"]
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    np.testing.assert_allclose(lines, [result["pooled"] for result in served], atol=1e-4)
    assert (found.returncode, found.stderr) == (0, "")


def test_embed_reads_lines(default_artifact: Path) -> None:
    """From standard input, more than one batch of them."""
    found = run("-m", "service", "embed", stdin="a word\n" * 70, model_dir=default_artifact)
    assert (found.returncode, len(found.stdout.splitlines())) == (0, 70)


def test_embed_names_the_line_that_is_wrong(default_artifact: Path) -> None:
    """Of the file, not of a batch; the batches before it are printed, and it ends with 1."""
    found = run("-m", "service", "embed", stdin="a word\n" * 40 + "\nlast\n", model_dir=default_artifact)
    assert (found.returncode, len(found.stdout.splitlines())) == (1, 32)
    assert found.stderr == "attendant: line 41 is empty or blank; send some text.\n"


def test_embed_cuts_what_is_too_long_and_says_so(default_artifact: Path) -> None:
    """As the library of the model does, but not in silence."""
    found = run("-m", "service", "embed", "word " * 300, "short", model_dir=default_artifact)
    assert (found.returncode, len(found.stdout.splitlines())) == (0, 2)
    assert found.stderr == "attendant: cut 1 of the texts to the 256 tokens of the model\n"


def test_embed_of_bytes_that_are_no_text(default_artifact: Path) -> None:
    """One line, no trace."""
    found = subprocess.run(
        [sys.executable, "-m", "service", "embed"], cwd=ROOT, env=server_environment(model_dir=default_artifact),
        input=b"hello\n\xff\n", capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (1, b"attendant: line 2 is not UTF-8; send text in UTF-8.\n")


def test_embed_into_a_closed_pipe(default_artifact: Path) -> None:
    """It ends in silence when nobody reads on."""
    pipeline = f"yes hello | head -2000 | {sys.executable} -m service embed | head -1"
    found = subprocess.run(
        ["bash", "-c", pipeline], cwd=ROOT, env=server_environment(model_dir=default_artifact),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (len(found.stdout.splitlines()), found.stderr) == (1, "")


def test_options_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """As docs/options.md has it."""
    assert main(["options"]) == 0
    assert capsys.readouterr().out == describe_options()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--help"], 0), (["help"], 0), (["embed", "--help"], 0), ([""], 2), (["serv"], 2), (["embed", "--fast"], 2)],
)
def test_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], status: int) -> None:
    """On stdout when asked for, else on stderr with 2."""
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert (out, err) == ((USAGE, "") if status == 0 else ("", USAGE))


def test_wrong_option_exits_with_78(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And one line that names it."""
    monkeypatch.setenv("ATTENDANT_REST_PROT", "1")
    assert main(["serve"]) == 78
    assert (
        capsys.readouterr().err == "attendant: ATTENDANT_REST_PROT: unknown option. Did you mean ATTENDANT_REST_PORT?\n"
    )


def modules() -> list[str]:
    packages = ((service, "service."), (model, "model."))
    return [m.name for package, prefix in packages for m in pkgutil.walk_packages(package.__path__, prefix)]


def test_importing_does_nothing() -> None:
    """No output, no thread, no metric, no look at the environment, however hostile that is."""
    code = f"""
import importlib, threading
for name in {modules()!r}:
    importlib.import_module(name)
from prometheus_client import REGISTRY
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
assert not [family.name for family in REGISTRY.collect() if "attendant" in family.name]
"""
    hostile = {name: value for name, value in os.environ.items() if name != "HOME"}
    found = run("-c", code, clean=hostile | {"ATTENDANT_NONSENSE": "1", "ATTENDANT_REST_PORT": "x"})
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


WITHOUT_TORCH = """
import sys
REFUSED = ("torch", "transformers", "sentence_transformers", "onnx", "onnxruntime.training")
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(tuple(f"{refused}." for refused in REFUSED)) or name in REFUSED:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
from service.__main__ import main
status = main(["serve"])
assert not set(REFUSED) & set(sys.modules)
sys.exit(status)
"""


def test_server_imports_no_torch(default_artifact: Path) -> None:
    """It becomes ready and stops well where torch and its kin cannot be imported."""
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, env=server_environment(model_dir=default_artifact),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready: ")
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
