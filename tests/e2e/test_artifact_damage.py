"""A damaged artifact never becomes a server: it exits, naming the file."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, server_environment

FILES = ("manifest.json", "manifest.sha256", "tokenizer.json", "fast.onnx", "explain.onnx", "weights.bin")
REFUSAL_TIMEOUT_S = 60

Damage = Callable[[Path], None]


def flip_a_bit(path: Path) -> None:
    position = path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def cut_the_end(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def add_a_stranger(path: Path) -> None:
    (path.parent / f"stranger-of-{path.name}").write_text("hello")


@pytest.fixture
def artifact(default_artifact: Path, tmp_path: Path) -> Path:
    """A copy that may be spoiled."""
    return Path(shutil.copytree(default_artifact, tmp_path / "artifact"))


@pytest.mark.parametrize("damage", [flip_a_bit, cut_the_end, Path.unlink, add_a_stranger])
@pytest.mark.parametrize("name", FILES)
def test_server_rejects_a_damaged_artifact(artifact: Path, name: str, damage: Damage) -> None:
    """Exit status 78, the file's name on stderr, and never a ready line."""
    damage(artifact / name)
    found = subprocess.run(
        [sys.executable, "-m", "service", "serve"],
        cwd=ROOT,
        env=server_environment(model_dir=artifact),
        capture_output=True,
        text=True,
        timeout=REFUSAL_TIMEOUT_S,
        check=False,
    )
    assert found.returncode == 78
    culprit = "manifest.json" if name == "manifest.sha256" and damage is not Path.unlink else name
    assert (f"stranger-of-{name}" if damage is add_a_stranger else culprit) in found.stderr
    assert found.stdout == ""
