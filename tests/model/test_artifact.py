"""The artifact: what was written is what is read, and nothing else opens."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.artifact import (
    FORMAT_VERSION,
    MANIFEST,
    MANIFEST_DIGEST,
    Artifact,
    ArtifactError,
    TensorRecord,
    describe_file,
    write_manifest,
)

FILES = ("dense.bin", "explain.onnx", "fast.onnx", "manifest.json", "manifest.sha256", "tokenizer.json", "weights.bin")
"""All but report.json, which the digest leaves out."""
SEEDS = range(5)


@pytest.fixture
def artifact(exported_labse: Path, tmp_path: Path) -> Path:
    """An artifact with every kind of file, the test's own to damage."""
    root = tmp_path / "artifact"
    root.mkdir()
    for path in exported_labse.iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    return root


def remanifest(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and sign it again, as someone who can write the directory could."""
    value = json.loads((root / MANIFEST).read_text())
    change(value)
    body = json.dumps(value).encode()
    (root / MANIFEST).write_bytes(body)
    (root / MANIFEST_DIGEST).write_text(hashlib.sha256(body).hexdigest() + "\n")


def test_the_files_are_these(artifact: Path) -> None:
    """So that every test below is of every file."""
    assert {path.name for path in artifact.iterdir()} == {*FILES, "report.json"}


def test_what_was_written_is_read(artifact: Path) -> None:
    """The manifest comes back equal, and each listed file byte for byte."""
    opened = Artifact.open(artifact)
    assert (opened.manifest.name, opened.root) == ("tiny-labse", artifact.resolve())
    assert {name: opened.read(name) for name in opened.manifest.files} == {
        name: (artifact / name).read_bytes() for name in FILES if not name.startswith("manifest")
    }
    assert write_manifest(artifact, opened.manifest) == opened.digest
    assert Artifact.open(artifact) == opened


def test_the_digest_is_that_of_the_manifest(artifact: Path) -> None:
    """As sha256sum would print it, and as the file beside it says."""
    assert Artifact.open(artifact).digest == describe_file(artifact / MANIFEST).sha256
    assert (artifact / MANIFEST_DIGEST).read_text() == Artifact.open(artifact).digest + "\n"


def test_a_tensor_is_mapped_read_only(artifact: Path) -> None:
    """With the shape and at the place that its record says."""
    numbers = np.frombuffer((artifact / "weights.bin").read_bytes()[64 : 64 + 60], dtype="<f4").reshape(3, 5)
    mapped = Artifact.open(artifact).map(TensorRecord(file="weights.bin", offset=64, shape=(3, 5)))
    assert np.array_equal(mapped, numbers)
    assert not mapped.flags.writeable


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("seed", SEEDS)
def test_one_flipped_bit_is_found(artifact: Path, name: str, seed: int) -> None:
    """In any file, anywhere; the file is named."""
    body = bytearray((artifact / name).read_bytes())
    place = random.Random(f"{name}{seed}").randrange(8 * len(body))
    body[place // 8] ^= 1 << place % 8
    (artifact / name).write_bytes(body)
    with pytest.raises(ArtifactError, match=name):
        Artifact.open(artifact)


def test_any_flipped_bit_of_the_digest_is_found(artifact: Path) -> None:
    """Every one of its bits, the line end's too."""
    body = (artifact / MANIFEST_DIGEST).read_bytes()
    for bit in range(8 * len(body)):
        flipped = int.from_bytes(body, "little") ^ 1 << bit
        (artifact / MANIFEST_DIGEST).write_bytes(flipped.to_bytes(len(body), "little"))
        with pytest.raises(ArtifactError, match=MANIFEST_DIGEST):
            Artifact.open(artifact)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0, -1])
def test_the_first_and_last_bit_count(artifact: Path, name: str, place: int) -> None:
    """Nothing at the edges is skipped."""
    body = bytearray((artifact / name).read_bytes())
    body[place] ^= 1
    (artifact / name).write_bytes(body)
    with pytest.raises(ArtifactError, match=name):
        Artifact.open(artifact)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["shorter", "longer", "empty", "missing"])
def test_a_file_of_another_length_is_found(artifact: Path, name: str, change: str) -> None:
    """One byte less, one more, none at all, or no file."""
    body = (artifact / name).read_bytes()
    (artifact / name).write_bytes({"shorter": body[:-1], "longer": body + b"\n"}.get(change, b""))
    if change == "missing":
        (artifact / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        Artifact.open(artifact)


@pytest.mark.parametrize("name", FILES)
def test_a_symlink_is_refused(artifact: Path, tmp_path: Path, name: str) -> None:
    """Even to the same bytes: what it leads to can change after the check."""
    (artifact / name).rename(tmp_path / "elsewhere")
    (artifact / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=name):
        Artifact.open(artifact)


def test_a_symlink_within_the_artifact_is_refused(artifact: Path) -> None:
    """Nor may one listed file stand for another."""
    (artifact / "tokenizer.json").unlink()
    (artifact / "tokenizer.json").symlink_to("weights.bin")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        Artifact.open(artifact)


@pytest.mark.parametrize("name", FILES)
def test_a_hard_link_is_refused(artifact: Path, tmp_path: Path, name: str) -> None:
    """Someone else holds the same file under another name."""
    os.link(artifact / name, tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=f"{name}: not a plain file of its own"):
        Artifact.open(artifact)


@pytest.mark.parametrize("name", FILES)
def test_a_directory_in_place_of_a_file_is_refused(artifact: Path, name: str) -> None:
    """Opening it gives no bytes."""
    (artifact / name).unlink()
    (artifact / name).mkdir()
    with pytest.raises(ArtifactError, match=name):
        Artifact.open(artifact)


@pytest.mark.parametrize("name", ["manifest.json", "weights.bin"])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(artifact: Path, name: str) -> None:
    """Opening a pipe that nobody writes would wait for ever; in a process of its own, so that it could be ended."""
    (artifact / name).unlink()
    os.mkfifo(artifact / name)
    verify = [sys.executable, "-m", "model", "verify", str(artifact)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"attendant-model: {artifact / name}: not a plain file")


@pytest.mark.parametrize("name", ["extra", ".hidden", "manifest.json.bak", "__pycache__"])
def test_a_file_that_is_not_listed_is_refused(artifact: Path, name: str) -> None:
    """Whatever it is called."""
    (artifact / name).touch()
    with pytest.raises(ArtifactError, match=rf"{name}: not listed in manifest\.json"):
        Artifact.open(artifact)


def test_a_directory_that_is_not_listed_is_refused(artifact: Path) -> None:
    """Even an empty one."""
    (artifact / "extra").mkdir()
    with pytest.raises(ArtifactError, match="extra: not listed"):
        Artifact.open(artifact)


def test_a_dangling_symlink_that_is_not_listed_is_refused(artifact: Path) -> None:
    """It is there, though it leads nowhere."""
    (artifact / "extra").symlink_to("nowhere")
    with pytest.raises(ArtifactError, match="extra: not listed"):
        Artifact.open(artifact)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "..", ".", "", "inner/../../secret", "a\0b"])
def test_a_listed_name_that_leads_out_is_refused(artifact: Path, name: str) -> None:
    """Even where a file with the very hash lies there."""
    (artifact.parent / "secret").write_bytes((artifact / "weights.bin").read_bytes())
    remanifest(artifact, lambda manifest: manifest["files"].update({name: manifest["files"]["weights.bin"]}))
    with pytest.raises(ArtifactError):
        Artifact.open(artifact)


def point_static(manifest: dict[str, Any]) -> None:
    manifest["static"]["file"] = "other.bin"


def point_dense(manifest: dict[str, Any]) -> None:
    manifest["dense"][0]["bias"]["file"] = "other.bin"


def point_graph(manifest: dict[str, Any]) -> None:
    manifest["graphs"]["fast"]["file"] = "other.bin"


def point_weights(manifest: dict[str, Any]) -> None:
    manifest["graphs"]["fast"]["weights"] = "other.bin"


@pytest.mark.parametrize("change", [point_static, point_dense, point_graph, point_weights])
def test_a_reference_to_an_unlisted_file_is_refused(artifact: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A graph, its weights, a dense layer or the static table must lie in a file that has a hash."""
    remanifest(artifact, change)
    with pytest.raises(ArtifactError, match=r"refers to 'other\.bin', which it does not list"):
        Artifact.open(artifact)


def test_a_manifest_without_a_tokenizer_is_refused(artifact: Path) -> None:
    """The service cannot do without."""
    (artifact / "tokenizer.json").unlink()
    remanifest(artifact, lambda manifest: manifest["files"].pop("tokenizer.json"))
    with pytest.raises(ArtifactError, match=r"refers to 'tokenizer\.json'"):
        Artifact.open(artifact)


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, 99])
def test_another_format_is_refused(artifact: Path, version: int) -> None:
    """Older or newer, with the way out."""
    remanifest(artifact, lambda manifest: manifest.update(format_version=version))
    expected = rf"format {version}, but this version reads {FORMAT_VERSION}\. Export it again"
    with pytest.raises(ArtifactError, match=expected):
        Artifact.open(artifact)


def test_another_format_is_refused_by_its_number_first(artifact: Path) -> None:
    """A newer format will have fields that this version does not know: the version is the news, not the field."""
    remanifest(artifact, lambda manifest: manifest.update(format_version=99, novelty=True))
    with pytest.raises(ArtifactError, match=f"format 99, but this version reads {FORMAT_VERSION}"):
        Artifact.open(artifact)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda manifest: manifest.update(novelty=1), "novelty"),
        (lambda manifest: manifest["static"].update(novelty=1), r"static\.novelty"),
        (lambda manifest: manifest.pop("hidden_size"), "hidden_size"),
        (lambda manifest: manifest.update(pooling="sum"), "pooling"),
        (lambda manifest: manifest["files"].update({"weights.bin": 7}), r"files\.weights\.bin"),
    ],
)
def test_a_manifest_of_another_shape_is_refused(
    artifact: Path, change: Callable[[dict[str, Any]], object], place: str
) -> None:
    """An unknown field, a missing one, a wrong one: the place is named."""
    remanifest(artifact, change)
    with pytest.raises(ArtifactError, match=rf"not a manifest this version reads \(at {place}\)"):
        Artifact.open(artifact)


@pytest.mark.parametrize("prefix", ["", "sha256:"])
def test_the_pinned_digest_opens(artifact: Path, prefix: str) -> None:
    """With or without the name of the hash."""
    digest = Artifact.open(artifact).digest
    assert Artifact.open(artifact, prefix + digest).digest == digest


@pytest.mark.parametrize("pinned", ["0" * 64, "sha256:" + "0" * 64, "", "sha256:"])
def test_another_pinned_digest_does_not(artifact: Path, pinned: str) -> None:
    """An empty pin is a wrong pin."""
    with pytest.raises(ArtifactError, match=r"manifest\.json: its sha256 is [0-9a-f]{64}, not the pinned one"):
        Artifact.open(artifact, pinned)


def test_no_directory_is_named_with_advice(tmp_path: Path) -> None:
    """The message is the command to run."""
    with pytest.raises(ArtifactError, match=r"no such directory\. Make one with: attendant-model export"):
        Artifact.open(tmp_path / "none")


def test_read_checks_again(artifact: Path) -> None:
    """A file changed after opening is not returned."""
    opened = Artifact.open(artifact)
    (artifact / "weights.bin").write_bytes(bytes(opened.manifest.files["weights.bin"].size))
    with pytest.raises(ArtifactError, match=r"weights\.bin: its sha256 is not the manifest's"):
        opened.read("weights.bin")
