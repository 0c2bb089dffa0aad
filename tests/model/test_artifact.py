"""Artifact verification: only an unmodified artifact opens."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from model.artifact.files import MANIFEST, MANIFEST_DIGEST, Artifact, ArtifactError, describe_file, write_manifest
from model.artifact.manifest import TensorRecord
from tests.manifests import static_record
from tests.model.artifact_copies import copy_artifact, rewrite_manifest

FILES = (
    "explain.onnx",
    "layer_0.onnx",
    "fast.onnx",
    "manifest.json",
    "manifest.sha256",
    "other.bin",
    "steps_0.onnx",
    "tokenizer.json",
    "weights.bin",
)
"""All files except report.json and golden.json, which are not part of the digest."""
PLACES = (0, 0.3, 0.6, 1)
"""Where a bit of a file is flipped: the first byte, two in between, the last one."""


@pytest.fixture
def artifact(exported_labse: Path, tmp_path: Path) -> Path:
    return copy_artifact(exported_labse, tmp_path)


def test_artifact_contains_every_kind_of_file(artifact: Path) -> None:
    assert {path.name for path in artifact.iterdir()} == {*FILES, "golden.json", "report.json"}


def test_artifact_returns_written_manifest_and_files(artifact: Path) -> None:
    opened = Artifact.open(artifact)
    assert (opened.manifest.name, opened.root) == ("tiny-labse", artifact.resolve())
    assert {name: opened.read(name) for name in opened.manifest.files} == {
        name: (artifact / name).read_bytes() for name in FILES if not name.startswith("manifest")
    }
    assert opened.digest == describe_file(artifact / MANIFEST).sha256
    assert (artifact / MANIFEST_DIGEST).read_text() == opened.digest + "\n"
    assert write_manifest(artifact, opened.manifest) == opened.digest
    assert Artifact.open(artifact) == opened


def test_tensor_is_mapped_read_only(artifact: Path) -> None:
    numbers = np.frombuffer((artifact / "weights.bin").read_bytes()[64 : 64 + 60], dtype="<f4").reshape(3, 5)
    mapped = Artifact.open(artifact).map(TensorRecord(file="weights.bin", offset=64, shape=(3, 5), dtype="float32"))
    assert np.array_equal(mapped[:], numbers)
    assert not mapped[:].flags.writeable


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", PLACES)
def test_artifact_rejects_flipped_bit(artifact: Path, name: str, place: float) -> None:
    body = bytearray((artifact / name).read_bytes())
    body[round(place * (len(body) - 1))] ^= 1 << len(name) % 8
    (artifact / name).write_bytes(body)
    with pytest.raises(ArtifactError, match=name):
        Artifact.open(artifact)


def test_artifact_rejects_any_flipped_bit_of_digest_file(artifact: Path) -> None:
    body = (artifact / MANIFEST_DIGEST).read_bytes()
    for bit in range(8 * len(body)):
        flipped = int.from_bytes(body, "little") ^ 1 << bit
        (artifact / MANIFEST_DIGEST).write_bytes(flipped.to_bytes(len(body), "little"))
        with pytest.raises(ArtifactError, match=MANIFEST_DIGEST):
            Artifact.open(artifact)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["shorter", "longer", "empty", "missing"])
def test_artifact_rejects_file_of_wrong_size(artifact: Path, name: str, change: str) -> None:
    body = (artifact / name).read_bytes()
    (artifact / name).write_bytes({"shorter": body[:-1], "longer": body + b"\n"}.get(change, b""))
    if change == "missing":
        (artifact / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        Artifact.open(artifact)


def link(path: Path) -> None:
    """The link's target can change after verification."""
    path.symlink_to(path.rename(path.parent.parent / "elsewhere"))


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("replace", "problem"),
    [(link, ""), (loop, "a symbolic link"), (make_directory, "")],
    ids=["link", "loop", "folder"],
)
def test_artifact_rejects_anything_but_a_file(
    artifact: Path, name: str, replace: Callable[[Path], None], problem: str
) -> None:
    replace(artifact / name)
    with pytest.raises(ArtifactError, match=f"{name}: {problem}"):
        Artifact.open(artifact)


def test_artifact_accepts_hard_links(artifact: Path, tmp_path: Path) -> None:
    """`cp -al` and deduplication create hard links. A change through the other name is detected like any other."""
    (tmp_path / "backup").mkdir()
    for path in artifact.iterdir():
        os.link(path, tmp_path / "backup" / path.name)
    opened = Artifact.open(artifact)
    assert Artifact.open(tmp_path / "backup").digest == opened.digest
    (tmp_path / "backup" / "weights.bin").write_bytes(bytes(opened.manifest.files["weights.bin"].size))
    with pytest.raises(ArtifactError, match=r"weights\.bin: SHA-256 mismatch"):
        Artifact.open(artifact)


@pytest.mark.parametrize("name", ["manifest.json", "weights.bin"])
def test_artifact_rejects_pipe_without_blocking(artifact: Path, name: str) -> None:
    """Use a subprocess with a timeout, because opening a pipe without a writer blocks."""
    (artifact / name).unlink()
    os.mkfifo(artifact / name)
    verify = [sys.executable, "-m", "model", "verify", str(artifact)]
    result = subprocess.run(verify, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 78
    assert f"{artifact / name}: not a regular file" in result.stderr


@pytest.mark.parametrize("create", [Path.touch, Path.mkdir, lambda path: path.symlink_to("nowhere")])
@pytest.mark.parametrize("name", ["extra", ".hidden", "manifest.json.bak"])
def test_artifact_rejects_unlisted_entry(artifact: Path, name: str, create: Callable[[Path], object]) -> None:
    create(artifact / name)
    with pytest.raises(ArtifactError, match=rf"{name}: not listed in manifest\.json"):
        Artifact.open(artifact)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "..", ".", "", "inner/../../secret", "a\0b"])
def test_artifact_rejects_listed_path_outside_of_directory(artifact: Path, name: str) -> None:
    """Even a file with the right digest must be rejected there."""
    (artifact.parent / "secret").write_bytes((artifact / "weights.bin").read_bytes())
    rewrite_manifest(artifact, lambda manifest: manifest["files"].update({name: manifest["files"]["weights.bin"]}))
    with pytest.raises(ArtifactError):
        Artifact.open(artifact)


@pytest.mark.parametrize("prefix", ["", "sha256:"])
def test_artifact_opens_with_pinned_digest(artifact: Path, prefix: str) -> None:
    digest = Artifact.open(artifact).digest
    assert Artifact.open(artifact, prefix + digest).digest == digest


@pytest.mark.parametrize("pinned", ["0" * 64, "sha256:" + "0" * 64, "", "sha256:"])
def test_artifact_rejects_wrong_pinned_digest(artifact: Path, pinned: str) -> None:
    """An empty pin counts as wrong, too."""
    with pytest.raises(ArtifactError, match=r"manifest\.json: not the pinned digest \(sha256:[0-9a-f]{64}, pinned "):
        Artifact.open(artifact, pinned)


def test_artifact_error_suggests_export_when_directory_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no such directory\. Name another one, or run: attendant-model export"):
        Artifact.open(tmp_path / "none")


def test_read_rejects_file_changed_after_open(artifact: Path) -> None:
    opened = Artifact.open(artifact)
    (artifact / "weights.bin").write_bytes(bytes(opened.manifest.files["weights.bin"].size))
    with pytest.raises(ArtifactError, match=r"weights\.bin: SHA-256 mismatch with manifest\.json"):
        opened.read("weights.bin")


def test_artifact_reads_verified_files_after_directory_is_replaced(artifact: Path, tmp_path: Path) -> None:
    opened = Artifact.open(artifact)
    bodies = {name: opened.read(name) for name in opened.manifest.files}
    artifact.rename(tmp_path / "moved")
    artifact.mkdir()
    for name in FILES:
        (artifact / name).write_text("another artifact")
    assert {name: opened.read(name) for name in opened.manifest.files} == bodies


def test_map_does_not_follow_symlink_created_after_verification(artifact: Path, tmp_path: Path) -> None:
    opened = Artifact.open(artifact)
    tensor = static_record(opened.manifest)
    expected = np.array(opened.map(tensor)[:])
    path = artifact / tensor.file
    (tmp_path / "zeros").write_bytes(bytes(path.stat().st_size))
    path.unlink()
    path.symlink_to(tmp_path / "zeros")
    assert np.array_equal(opened.map(tensor)[:], expected)


def test_artifact_closes_its_files(artifact: Path) -> None:
    def open_files() -> int:
        links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
        return sum(str(artifact) in os.readlink(link) for link in links if link.is_symlink())

    opened = Artifact.open(artifact)
    assert open_files() == len(opened.manifest.files)
    del opened
    assert open_files() == 0
