"""A damaged artifact is the error of every command that opens one, before any model is loaded."""

import shutil
from pathlib import Path

import pytest

from model.artifact.files import WEIGHTS
from service.engine.model_loader import LoadedModel
from tests.service.commands.running import run_command

COMMANDS = {
    "compare": ["{good}", "{damaged}", "--texts", "lines"],
    "evaluate": ["{good}", "--baseline", "{damaged}", "--sts", "lines"],
    "size": ["--texts-per-second", "1", "--mean-tokens", "1", "--model-dir", "{damaged}"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_damaged_artifact_is_reported_before_any_model_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_artifact: Path, tmp_path: Path,
    command: str,
) -> None:  # fmt: skip
    damaged = Path(shutil.copytree(tiny_artifact, tmp_path / "damaged"))
    with (damaged / WEIGHTS).open("r+b") as file:
        file.write(b"x")
    monkeypatch.setattr(LoadedModel, "load", None)
    arguments = [argument.format(good=tiny_artifact, damaged=damaged) for argument in COMMANDS[command]]
    error = f"attendant: {damaged / WEIGHTS}: SHA-256 mismatch with manifest.json. Export again.\n"
    assert run_command(capsys, command, *arguments) == (78, "", error)
