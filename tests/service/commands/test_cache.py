"""`attendant cache`: what it lists, shows and removes."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest

from tests.service.commands.running import run_command


@pytest.fixture
def cache(tmp_path: Path, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two artifacts of one source, a damaged one, a killed export, and the locks."""
    directory = tmp_path / "cache"
    for name in ("tiny-1", "tiny-2", ".tiny-1.new"):
        shutil.copytree(tiny_artifact, directory / name)
    (directory / "damaged").mkdir()
    (directory / "damaged" / "manifest.json").write_text("{}")
    (directory / "locks").mkdir()
    monkeypatch.setenv("ATTENDANT_CACHE_DIR", str(directory))
    return directory


def test_list_and_show(cache: Path, capsys: pytest.CaptureFixture[str], tiny_artifact: Path) -> None:
    status, out, _ = run_command(capsys, "cache")
    assert status == 1, "an artifact is unusable"
    assert [line.split()[0] for line in out.splitlines()[:-1]] == ["name", "damaged", "tiny-1", "tiny-2"]
    status, out, _ = run_command(capsys, "cache", "list", "--json")
    damaged, first, _ = json.loads(out)
    assert "manifest.sha256: missing" in damaged["problem"]
    assert first["bytes"] == sum(path.stat().st_size for path in tiny_artifact.rglob("*") if path.is_file())
    status, out, _ = run_command(capsys, "cache", "show", "tiny-1", "--json")
    assert (status, json.loads(out)) == (0, first)
    status, _, err = run_command(capsys, "cache", "show", first["source"])
    assert status == 65
    assert "source of several artifacts" in err
    assert "(artifacts: tiny-1, tiny-2)" in err


def test_remove_of_a_link_keeps_its_target(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = (cache / "tiny-2").rename(tmp_path / "elsewhere")
    (cache / "tiny-2").symlink_to(target)
    assert run_command(capsys, "cache", "remove", "tiny-2")[0] == 0
    assert not (cache / "tiny-2").is_symlink()
    assert (target / "manifest.json").is_file()


def test_remove(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(capsys, "cache", "remove", "--unusable")[0] == 0
    assert not (cache / "damaged").exists()
    assert run_command(capsys, "cache", "remove", "tiny-1", "tiny-1")[0] == 0
    assert sorted(path.name for path in cache.iterdir()) == ["locks", "tiny-2"]
    with (cache / "locks" / "tiny-2").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, _, err = run_command(capsys, "cache", "remove", "--all")
        assert (status, "tiny-2: in use by an exporter" in err) == (73, True)
    assert run_command(capsys, "cache", "remove", "--all")[0] == 0
    status, out, _ = run_command(capsys, "cache", "list")
    assert (status, out) == (0, f"{cache}: no artifacts\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["show"],
            "attendant cache show: the following arguments are required: NAME. See: attendant cache show --help",
        ),
        (["remove", "--al"], "attendant cache remove: unknown option --al (did you mean --all?)."),
    ],
)
def test_usage_errors_are_one_line(
    cache: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    status, _, err = run_command(capsys, "cache", *arguments)
    assert (status, err.count("\n"), err.startswith(problem)) == (2, 1, True), err
    assert (cache / "tiny-1").exists()


@pytest.mark.parametrize("arguments", [["remove"], ["remove", "tiny-1", "--all"], ["remove", "--all", "--unusable"]])
def test_remove_needs_one_choice(cache: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    status, _, err = run_command(capsys, "cache", *arguments)
    assert (status, "set NAME, --all or --unusable" in err) == (2, True)
    assert (cache / "tiny-1").exists()
