"""Replacing the manifest: atomicity at every step, and errors."""

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from model.artifact.files import MANIFEST, MANIFEST_DIGEST, Artifact, ArtifactError, check_writable, update_manifest
from model.artifact.manifest import EvaluationRecord, Manifest


@pytest.fixture
def root(artifact: Path) -> Path:
    """Return the root of an artifact that the test may modify."""
    return artifact.resolve()


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
