"""The check of the free space before an export."""

import shutil
from pathlib import Path

import pytest

from model.artifact.names import SpaceError
from model.export.export import export
from model.source.hub import check_free_space


def test_directory_that_does_not_exist_is_checked(tmp_path: Path) -> None:
    check_free_space(tmp_path / "a" / "b", 1, "files", "move")
    required = shutil.disk_usage(tmp_path).total + 1
    with pytest.raises(SpaceError, match=rf"a/b: files: .*{required:,} required\..*or move\."):
        check_free_space(tmp_path / "a" / "b", required, "files", "move")


def test_export_checks_free_space_before_it_writes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are counted twice, because the second graph's are compared with the first one's."""
    required = 2 * (source / "model.safetensors").stat().st_size + 32 * 2**20
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=required - 1))
    with pytest.raises(SpaceError, match=rf"the artifact of tiny-bert: {required - 1:,} bytes free, {required:,}"):
        export(str(source), tmp_path / "out", revision=None, name=None, progress=lambda step: None)
    assert not (tmp_path / "out").exists()
