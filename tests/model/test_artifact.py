"""Artifacts: files, manifest, and updates of the manifest."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.artifact.files import (
    MANIFEST,
    MANIFEST_DIGEST,
    Artifact,
    ArtifactError,
    check_writable,
    describe_file,
    update_manifest,
    write_manifest,
)
from model.artifact.manifest import FORMAT_VERSION, EvaluationRecord, Manifest, TensorRecord
from tests.manifests import static_record
from tests.model.model_files import copy_artifact, rewrite_manifest

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


# Artifact verification: manifests that are invalid, of another format, or refer to other files.


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["static"].update(file="none.bin"),
        lambda manifest: manifest["heads"][0]["dense"][0]["bias"].update(file="none.bin"),
        lambda manifest: manifest["graphs"]["fast"].update(file="none.bin"),
        lambda manifest: manifest["graphs"]["fast"]["weights"].append("none.bin"),
        lambda manifest: manifest["layers"]["layers"][1]["norm"].update(file="none.bin"),
        lambda manifest: manifest["notices"].append("none.bin"),
    ],
    ids=["static", "dense", "graph", "weights", "layer", "notice"],
)
def test_artifact_rejects_reference_to_unlisted_file(
    artifact: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    rewrite_manifest(artifact, change)
    with pytest.raises(ArtifactError, match=r"refers to unlisted file 'none\.bin'"):
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


# Replacing the manifest: atomicity at every step, and errors.


@pytest.fixture
def root(exported: Path, tmp_path: Path) -> Path:
    """Return the root of an artifact that the test may modify."""
    return copy_artifact(exported, tmp_path).resolve()


def add_record(measure: str) -> Callable[[Manifest], Manifest]:
    record = EvaluationRecord(task="sts", file="sts.jsonl", measure=measure, value=0.5, low=None, high=None)
    return lambda manifest: manifest.model_copy(update={"evaluations": (*manifest.evaluations, record)})


def test_manifest_is_replaced_and_digest_returned(root: Path) -> None:
    (root / MANIFEST).chmod(0o640)
    before = Artifact.open(root)
    digest = update_manifest(root, add_record("Pearson"))
    after = Artifact.open(root, digest)
    assert after.manifest == add_record("Pearson")(before.manifest)
    assert (root / MANIFEST_DIGEST).read_text() == f"{digest}\n"
    assert (root / MANIFEST).stat().st_mode & 0o777 == 0o640
    assert [path.name for path in root.parent.iterdir()] == [root.name]


def test_unchanged_manifest_keeps_its_digest(root: Path) -> None:
    before = Artifact.open(root).digest
    assert update_manifest(root, lambda manifest: manifest) == before


@pytest.mark.parametrize("completed", [0, 1, 2, 3])
def test_artifact_is_valid_after_every_step_and_update_can_be_repeated(
    root: Path, monkeypatch: pytest.MonkeyPatch, completed: int
) -> None:
    """If the process is killed after `completed` of three steps, either the old or the new artifact is left."""
    old = Artifact.open(root).digest
    calls: list[object] = []

    def replace(source: Path, target: Path) -> None:
        if len(calls) == completed:
            raise KeyboardInterrupt
        calls.append(target)
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        if completed < 3:
            with pytest.raises(KeyboardInterrupt):
                update_manifest(root, add_record("Pearson"))
        else:
            update_manifest(root, add_record("Pearson"))
    interrupted = Artifact.open(root)
    assert (interrupted.digest == old) == (completed < 2)
    records = interrupted.manifest.evaluations
    digest = update_manifest(root, (lambda manifest: manifest) if records else add_record("Pearson"))
    assert (root / MANIFEST_DIGEST).read_text() == f"{digest}\n"
    assert [record.measure for record in Artifact.open(root, digest).manifest.evaluations] == ["Pearson"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_full_disk_leaves_the_artifact_and_is_reported(
    root: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    before = {path.name: path.read_bytes() for path in root.iterdir()}

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(ArtifactError) as raised:
        update_manifest(root, add_record("Pearson"))
    assert str(raised.value) == (
        f"{root}: cannot be written (No space left on device). Check permissions and space, and run the command again."
    )
    assert {path.name: path.read_bytes() for path in root.iterdir()} == before
    assert [path.name for path in root.parent.iterdir()] == [root.name]


def test_damaged_artifact_is_not_changed(root: Path) -> None:
    (root / MANIFEST_DIGEST).write_text("0" * 64 + "\n")
    with pytest.raises(ArtifactError, match=r"SHA-256 mismatch with manifest\.sha256"):
        update_manifest(root, add_record("Pearson"))


def test_unwritable_directory_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(root)
    for unwritable in (root, root.parent):
        monkeypatch.setattr(os, "access", lambda path, _, own=unwritable: path != own)
        with pytest.raises(ArtifactError) as raised:
            check_writable(root)
        assert str(raised.value) == f"{unwritable}: not writable. Change its permissions or copy the artifact."


def test_concurrent_updates_are_all_kept(root: Path) -> None:
    names = [f"recall@{k}" for k in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: update_manifest(root, add_record(name)), names))
    assert sorted(record.measure for record in Artifact.open(root).manifest.evaluations) == names


def test_copy_of_an_updated_artifact_is_valid(root: Path, tmp_path: Path) -> None:
    digest = update_manifest(root, add_record("MRR"))
    assert Artifact.open(Path(shutil.copytree(root, tmp_path / "copy")), digest).digest == digest


@pytest.mark.parametrize("lines", [["a" * 64], ["a" * 64, "b" * 64], [None, "a" * 64, "b" * 64], [None, "a" * 63], []])
def test_digest_file_without_the_digest_or_of_another_format_is_rejected(root: Path, lines: list[str | None]) -> None:
    """None stands for the manifest's digest."""
    digest = Artifact.open(root).digest
    (root / MANIFEST_DIGEST).write_text("".join(f"{line or digest}\n" for line in lines))
    with pytest.raises(ArtifactError, match=r"SHA-256 mismatch with manifest\.sha256"):
        Artifact.open(root)
