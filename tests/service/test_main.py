"""The command-line interface: output, exit status and imports."""

import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import model
import service
from service.__main__ import COMMANDS, USAGE, main
from service.config import describe_options
from tests.conftest import HANG_TIMEOUT_S, ROOT, run_python, server_environment


def test_options_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options"]) == 0
    assert capsys.readouterr().out == describe_options()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--help"], 0), (["help"], 0), ([""], 2), (["serv"], 2)],
)
def test_usage_is_printed_on_request_or_for_wrong_arguments(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int
) -> None:
    assert main(arguments) == status
    out, err = capsys.readouterr()
    unknown = f"attendant: {arguments[0]}: no such command.\n\n" if arguments[0] else ""
    assert (out, err) == ((USAGE, "") if status == 0 else ("", unknown + USAGE))


def test_usage_lists_every_command() -> None:
    commands = re.findall(r"^  ([a-z]+)", USAGE.partition("examples:")[0], re.MULTILINE)
    assert {"serve", "options", *COMMANDS} == set(commands)


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
    """Imports must print nothing, start no thread, register no metric, and ignore invalid options in the
    environment.
    """
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
    result = run_python("-c", code, environment=environment)
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


@pytest.mark.slow
def test_server_runs_without_torch(default_artifact: Path) -> None:
    """Importing torch, transformers or onnx fails."""
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, env=server_environment(model_dir=default_artifact),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready: ")
    process.terminate()
    process.communicate(timeout=HANG_TIMEOUT_S)
    assert process.returncode == 0


def test_version_has_the_revision_of_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"attendant {service.__version__}, revision unknown\n"
    (tmp_path / "REVISION").write_text("0123abcd\n")
    monkeypatch.setattr(service, "__file__", str(tmp_path / "__init__.py"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"attendant {service.__version__}, revision 0123abcd\n"
