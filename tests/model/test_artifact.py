"""Artifact verification: only an unmodified artifact opens."""

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

from model.artifact import MANIFEST, MANIFEST_DIGEST, Artifact, ArtifactError, describe_file, write_manifest
from model.manifest import FORMAT_VERSION
from model.records import TensorRecord
from tests.manifests import static_record

FILES = (
    "dense.bin",
    "explain.onnx",
    "layer_0.onnx",
    "fast.onnx",
    "manifest.json",
    "manifest.sha256",
    "tokenizer.json",
    "weights.bin",
)
"""All files except report.json and golden.json, which are not part of the digest."""
SEEDS = range(5)


@pytest.fixture
def artifact(exported_labse: Path, tmp_path: Path) -> Path:
    """Return a writable artifact that has all kinds of files."""
    root = tmp_path / "artifact"
    root.mkdir()
    for path in exported_labse.iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    return root


def rewrite_manifest(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and its digest, as an attacker with write access could."""
    value = json.loads((root / MANIFEST).read_text())
    change(value)
    body = json.dumps(value).encode()
    (root / MANIFEST).write_bytes(body)
    (root / MANIFEST_DIGEST).write_text(hashlib.sha256(body).hexdigest() + "\n")


def test_artifact_contains_every_kind_of_file(artifact: Path) -> None:
    assert {path.name for path in artifact.iterdir()} == {*FILES, "golden.json", "report.json"}


def test_artifact_returns_written_manifest_and_files(artifact: Path) -> None:
    opened = Artifact.open(artifact)
    assert (opened.manifest.name, opened.root) == ("tiny-labse", artifact.resolve())
    assert {name: opened.read(name) for name in opened.manifest.files} == {
        name: (artifact / name).read_bytes() for name in FILES if not name.startswith("manifest")
    }
    assert write_manifest(artifact, opened.manifest) == opened.digest
    assert Artifact.open(artifact) == opened


def test_digest_is_sha256_of_manifest(artifact: Path) -> None:
    assert Artifact.open(artifact).digest == describe_file(artifact / MANIFEST).sha256
    assert (artifact / MANIFEST_DIGEST).read_text() == Artifact.open(artifact).digest + "\n"


def test_tensor_is_mapped_read_only(artifact: Path) -> None:
    numbers = np.frombuffer((artifact / "weights.bin").read_bytes()[64 : 64 + 60], dtype="<f4").reshape(3, 5)
    mapped = Artifact.open(artifact).map(TensorRecord(file="weights.bin", offset=64, shape=(3, 5), dtype="float32"))
    assert np.array_equal(mapped[:], numbers)
    assert not mapped[:].flags.writeable


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("seed", SEEDS)
def test_artifact_rejects_flipped_bit(artifact: Path, name: str, seed: int) -> None:
    body = bytearray((artifact / name).read_bytes())
    bit = random.Random(f"{name}{seed}").randrange(8 * len(body))
    body[bit // 8] ^= 1 << bit % 8
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
@pytest.mark.parametrize("index", [0, -1])
def test_artifact_rejects_flipped_bit_in_first_or_last_byte(artifact: Path, name: str, index: int) -> None:
    body = bytearray((artifact / name).read_bytes())
    body[index] ^= 1
    (artifact / name).write_bytes(body)
    with pytest.raises(ArtifactError, match=name):
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


@pytest.mark.parametrize("name", FILES)
def test_artifact_rejects_symlink(artifact: Path, tmp_path: Path, name: str) -> None:
    """The link's target can change after verification."""
    (artifact / name).rename(tmp_path / "elsewhere")
    (artifact / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=name):
        Artifact.open(artifact)


def test_artifact_rejects_symlink_to_another_listed_file(artifact: Path) -> None:
    (artifact / "tokenizer.json").unlink()
    (artifact / "tokenizer.json").symlink_to("weights.bin")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        Artifact.open(artifact)


@pytest.mark.parametrize("name", FILES)
def test_artifact_rejects_hard_link(artifact: Path, tmp_path: Path, name: str) -> None:
    """The file can be modified through its other name."""
    os.link(artifact / name, tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=f"{name}: not a regular file with a single link"):
        Artifact.open(artifact)


@pytest.mark.parametrize("name", FILES)
def test_artifact_rejects_directory_in_place_of_file(artifact: Path, name: str) -> None:
    (artifact / name).unlink()
    (artifact / name).mkdir()
    with pytest.raises(ArtifactError, match=name):
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


@pytest.mark.parametrize("name", ["extra", ".hidden", "manifest.json.bak", "__pycache__"])
def test_artifact_rejects_unlisted_file(artifact: Path, name: str) -> None:
    (artifact / name).touch()
    with pytest.raises(ArtifactError, match=rf"{name}: not listed in manifest\.json"):
        Artifact.open(artifact)


def test_artifact_rejects_unlisted_directory(artifact: Path) -> None:
    (artifact / "extra").mkdir()
    with pytest.raises(ArtifactError, match="extra: not listed"):
        Artifact.open(artifact)


def test_artifact_rejects_unlisted_dangling_symlink(artifact: Path) -> None:
    (artifact / "extra").symlink_to("nowhere")
    with pytest.raises(ArtifactError, match="extra: not listed"):
        Artifact.open(artifact)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "..", ".", "", "inner/../../secret", "a\0b"])
def test_artifact_rejects_listed_path_outside_of_directory(artifact: Path, name: str) -> None:
    """Even a file with the right digest must be rejected there."""
    (artifact.parent / "secret").write_bytes((artifact / "weights.bin").read_bytes())
    rewrite_manifest(artifact, lambda manifest: manifest["files"].update({name: manifest["files"]["weights.bin"]}))
    with pytest.raises(ArtifactError):
        Artifact.open(artifact)


def point_static(manifest: dict[str, Any]) -> None:
    manifest["static"]["file"] = "other.bin"


def point_dense(manifest: dict[str, Any]) -> None:
    manifest["heads"][0]["dense"][0]["bias"]["file"] = "other.bin"


def point_graph(manifest: dict[str, Any]) -> None:
    manifest["graphs"]["fast"]["file"] = "other.bin"


def point_weights(manifest: dict[str, Any]) -> None:
    manifest["graphs"]["fast"]["weights"].append("other.bin")


def point_layer(manifest: dict[str, Any]) -> None:
    manifest["layers"]["layers"][1]["norm"]["file"] = "other.bin"


def point_notice(manifest: dict[str, Any]) -> None:
    manifest["notices"].append("other.bin")


@pytest.mark.parametrize("change", [point_static, point_dense, point_graph, point_weights, point_layer, point_notice])
def test_artifact_rejects_reference_to_unlisted_file(artifact: Path, change: Callable[[dict[str, Any]], None]) -> None:
    rewrite_manifest(artifact, change)
    with pytest.raises(ArtifactError, match=r"refers to unlisted file 'other\.bin'"):
        Artifact.open(artifact)


def test_artifact_rejects_manifest_without_tokenizer(artifact: Path) -> None:
    (artifact / "tokenizer.json").unlink()
    rewrite_manifest(artifact, lambda manifest: manifest["files"].pop("tokenizer.json"))
    with pytest.raises(ArtifactError, match=r"refers to unlisted file 'tokenizer\.json'"):
        Artifact.open(artifact)


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, 99])
def test_artifact_rejects_other_format_version(artifact: Path, version: int) -> None:
    rewrite_manifest(artifact, lambda manifest: manifest.update(format_version=version))
    command = f"Run: attendant-model export tiny-labse -o {artifact.resolve()}"
    with pytest.raises(ArtifactError) as raised:
        Artifact.open(artifact)
    problem = f"unsupported format ({version}, expected {FORMAT_VERSION})"
    assert str(raised.value) == f"{artifact.resolve() / MANIFEST}: {problem}. {command}"


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({"source": "sentence-transformers/all-MiniLM-L6-v2", "revision": "sha256:1"},
         "default -o {root} --name tiny-labse"),
        ({"source": "sentence-transformers/all-MiniLM-L6-v2", "revision": "c9745ed1"},
         "sentence-transformers/all-MiniLM-L6-v2 -o {root} --name tiny-labse"),
        ({"source": "a/tiny-labse", "revision": "0" * 40}, "a/tiny-labse -o {root} --revision " + "0" * 40),
        ({"source": "my model"}, "'my model' -o {root} --name tiny-labse"),
        ({"pooling": "cls", "origins": {"pooling": "--pooling", "normalize": "--no-normalize", "prompts": "config"}},
         "tiny-labse -o {root} --pooling cls --no-normalize"),
        ({"heads": [{"pooling": "max"}], "origins": {"pooling": "--pooling"}, "explain": {"reason": "unwanted"}},
         "tiny-labse -o {root} --pooling max --no-explain"),
        ({"origins": 1, "heads": 1, "explain": 1}, "tiny-labse -o {root}"),
        ({"source": None, "graphs": 7}, "SOURCE -o {root}"),
        ({"graphs": {"fast": {}, "int8": {}, "cuda": {}}}, "tiny-labse -o {root} --variant cuda --variant int8"),
    ],
)  # fmt: skip
def test_older_format_names_the_command_that_exports_again(
    artifact: Path, fields: dict[str, Any], arguments: str
) -> None:
    rewrite_manifest(artifact, lambda manifest: manifest.update(format_version=5, **fields))
    with pytest.raises(ArtifactError) as raised:
        Artifact.open(artifact)
    assert str(raised.value).endswith(f"attendant-model export {arguments.format(root=artifact.resolve())}")


def test_artifact_reports_format_version_before_unknown_fields(artifact: Path) -> None:
    rewrite_manifest(artifact, lambda manifest: manifest.update(format_version=99, unknown_field=True))
    with pytest.raises(ArtifactError, match=rf"unsupported format \(99, expected {FORMAT_VERSION}\)"):
        Artifact.open(artifact)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda manifest: manifest.update(unknown_field=1), "unknown_field"),
        (lambda manifest: manifest["static"].update(unknown_field=1), r"static\.TensorRecord\.unknown_field"),
        (lambda manifest: manifest["architecture"].pop("hidden_size"), r"architecture\.hidden_size"),
        (lambda manifest: manifest["heads"][0].update(pooling="sum"), r"heads\.0\.embedding\.pooling"),
        (lambda manifest: manifest.update(heads=[]), "heads"),
        (lambda manifest: manifest["files"].update({"weights.bin": 7}), r"files\.weights\.bin"),
    ],
)
def test_artifact_names_invalid_manifest_field(
    artifact: Path, change: Callable[[dict[str, Any]], object], field: str
) -> None:
    rewrite_manifest(artifact, change)
    with pytest.raises(ArtifactError, match=rf"invalid manifest \(at {field}\)"):
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
    with pytest.raises(ArtifactError, match=r"no such directory\. Create it with: attendant-model export"):
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
