"""The server rejects damaged artifacts."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from model.artifact.files import ArtifactError
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.conftest import ROOT, server_environment

FILES = ("manifest.json", "manifest.sha256", "tokenizer.json", "fast.onnx", "explain.onnx", "weights.bin")
EXIT_TIMEOUT_S = 60

Damage = Callable[[Path], None]


def flip_bit(path: Path) -> None:
    position = path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def remove_last_byte(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def add_unlisted_file(path: Path) -> None:
    (path.parent / f"unlisted-{path.name}").write_text("hello")


@pytest.mark.parametrize("damage", [flip_bit, remove_last_byte, Path.unlink, add_unlisted_file])
@pytest.mark.parametrize("name", FILES)
def test_damaged_artifact_is_rejected(tiny_artifact: Path, tmp_path: Path, name: str, damage: Damage) -> None:
    artifact = shutil.copytree(tiny_artifact, tmp_path / "artifact")
    damage(artifact / name)
    invalid = "manifest.json" if name == "manifest.sha256" and damage is not Path.unlink else name
    with pytest.raises(ArtifactError, match=f"unlisted-{name}" if damage is add_unlisted_file else invalid):
        LoadedModel.load(Settings(model_dir=artifact))


@pytest.mark.parametrize(("name", "damage"), [("weights.bin", flip_bit), ("explain.onnx", Path.unlink)])
def test_server_rejects_damaged_artifact(tiny_artifact: Path, tmp_path: Path, name: str, damage: Damage) -> None:
    """Expects exit status 78, the file name on stderr, and no ready line."""
    artifact = shutil.copytree(tiny_artifact, tmp_path / "artifact")
    damage(artifact / name)
    result = subprocess.run(
        [sys.executable, "-m", "service", "serve"],
        cwd=ROOT,
        env=server_environment(model_dir=artifact),
        capture_output=True,
        text=True,
        timeout=EXIT_TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 78
    assert name in result.stderr
    assert result.stdout == ""
