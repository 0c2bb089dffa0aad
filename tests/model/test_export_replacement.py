"""What an export replaces, what it refuses, and what it leaves as it was."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from model.artifact.files import Artifact, ArtifactError, locked, write_manifest
from model.artifact.manifest import ParityRecord
from model.artifact.names import SpaceError
from model.export import export as export_module
from model.export.export import export
from model.export.graphs import ParityError
from model.source.hub import SourceError, check_free_space
from model.source.published import CheckpointError
from tests.conftest import run_python
from tests.model.model_files import change_json
from tests.model.test_export import export_model, read_files

Publish = Callable[[str], Path]


def large_difference(*_: object) -> ParityRecord:
    return ParityRecord(batches=1, max_abs_difference=0.5, tolerance=0.25)


def test_export_rejects_nonempty_directory_and_keeps_it(published: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("text")
    with pytest.raises(ArtifactError, match=r"out: not empty and not an artifact\. Choose another directory"):
        export_model(published, tmp_path / "out")
    assert read_files(tmp_path / "out") == {"notes": b"text"}


def test_export_replaces_existing_artifact_completely(labse: Path, artifact: Path, exported_labse: Path) -> None:
    (artifact / "leftover").touch()
    siblings = set(artifact.parent.iterdir())
    export_model(labse, artifact, overwrite=True)
    assert read_files(artifact) == read_files(exported_labse)
    assert set(artifact.parent.iterdir()) == siblings


def rename_source(artifact: Path, name: str) -> None:
    write_manifest(artifact, Artifact.open(artifact).manifest.model_copy(update={"source": name}))


def change_weights(source: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    save_file(tensors | {"pooler.dense.bias": tensors["pooler.dense.bias"] + 1}, source / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda artifact, _: rename_source(artifact, "other"),
            'the artifact of another model ("other" with weights sha',
        ),
        (lambda _, source: change_weights(source), 'the artifact of another model ("tiny-bert" with weights sha256:'),
        (lambda artifact, _: (artifact / "manifest.json").write_text("{"), "a damaged manifest.json"),
    ],
    ids=["other source", "other weights in a directory of this name", "damaged manifest"],
)
def test_export_keeps_artifact_of_another_model(
    source: Path, artifact: Path, change: Callable[[Path, Path], None], message: str
) -> None:
    change(artifact, source)
    before = read_files(artifact)
    with pytest.raises(ArtifactError) as raised:
        export_model(source, artifact)
    assert str(raised.value).startswith(f"{artifact}: has {message}")
    assert str(raised.value).endswith("Choose another directory, or set --overwrite.")
    assert read_files(artifact) == before


@pytest.mark.parametrize("format_version", [4, 5])
def test_export_may_replace_artifact_of_same_source(source: Path, artifact: Path, format_version: int) -> None:
    """This includes artifacts in an older format. The invalid tokenizer stops the export right after the check."""
    (source / "tokenizer.json").write_text("{}")
    change_json(artifact / "manifest.json", format_version=format_version)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        export_model(source, artifact)


def test_export_writes_nothing_when_graph_differs_from_torch(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "measure_parity", large_difference)
    with pytest.raises(ParityError, match=r"differs from torch \(by 5\.00e-01, limit 2e-01\)\. Report .*, unless"):
        export_model(published, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_export_keeps_old_artifact_when_rename_fails(
    labse: Path, artifact: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def fail_on_new_artifact(old: Path, new: Path) -> None:
        if Path(old).name == "artifact" and Path(old).parent != artifact.parent:
            raise OSError("no")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fail_on_new_artifact)
    with pytest.raises((OSError, ArtifactError)):
        export_model(labse, artifact, overwrite=True)
    assert read_files(artifact) == read_files(exported)


def test_export_keeps_old_artifact_when_it_is_stopped_between_two_renames(
    labse: Path, artifact: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def stop(old: Path, new: Path) -> None:
        rename(old, new)
        if old == artifact:
            raise SystemExit(143)

    monkeypatch.setattr(os, "rename", stop)
    with pytest.raises(SystemExit):
        export_model(labse, artifact, overwrite=True)
    assert read_files(artifact) == read_files(exported)


def test_export_removes_files_of_a_killed_export_but_not_of_a_running_one(published: Path, tmp_path: Path) -> None:
    out, scratch = tmp_path / "out", tmp_path / ".out.export"
    (scratch / "artifact").mkdir(parents=True)
    (scratch / "weights").touch()
    with locked(scratch), pytest.raises(ArtifactError, match="out: another export is writing it"):
        export_model(published, out)
    assert len(list(scratch.iterdir())) == 2
    export_model(published, out)
    assert list(tmp_path.iterdir()) == [out]


def test_export_writes_nothing_when_source_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        export_model(tmp_path / "none", tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_directory_that_does_not_exist_is_checked(tmp_path: Path) -> None:
    check_free_space(tmp_path / "a" / "b", 1, "files", "move")
    required = shutil.disk_usage(tmp_path).total + 1
    with pytest.raises(SpaceError, match=rf"a/b: files: .*{required:,} required\..*or move\."):
        check_free_space(tmp_path / "a" / "b", required, "files", "move")


@pytest.mark.slow
def test_mapped_files_do_not_count_as_memory(source: Path, tmp_path: Path) -> None:
    """`attendant serve SOURCE` limits the private memory of the exporter, in which the system counts mapped files."""
    code = (
        "import resource, sys; from pathlib import Path; from model.export.export import export\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**40, resource.RLIM_INFINITY))\n"
        "export(sys.argv[1], Path(sys.argv[2]))\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0] - 2**40)"
    )
    result = run_python("-c", code, str(source), str(tmp_path / "out"))
    assert result.stdout == f"{2 * (source / 'model.safetensors').stat().st_size}\n", result.stderr


@pytest.mark.parametrize("half", [False, True])
def test_export_checks_free_space_before_it_writes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    """The weights are counted twice, because the second graph's are compared with the first one's.

    Weights of 16 bits are also written in float32.
    """
    halves, path = 0, source / "model.safetensors"
    if half:
        tensors = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
        save_file(tensors, path)
        halves = sum(tensor.nbytes for tensor in tensors.values())
    required = 2 * (path.stat().st_size + halves) + 32 * 2**20
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=required - 1))
    with pytest.raises(SpaceError, match=rf"the artifact of tiny-bert: {required - 1:,} bytes free, {required:,}"):
        export(str(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()
