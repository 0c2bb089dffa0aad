"""The cache of exported artifacts: which one is used, and when a model is exported again.

The exporter runs in this process, so that it shares graphs with other tests; tests/e2e/test_serve_source.py runs it in
its own.
"""

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.artifact.files import Artifact
from model.artifact.names import SourceError
from model.export.export import Variants, export
from service import model_cache
from service.exporter import ExportError
from service.model_cache import cache_directory, prepare_artifact
from tests.model.conftest import definitions, publish, published, source
from tests.model.hub_server import COMMIT, HubServer, Repository, hub_in_process

__all__ = ["definitions", "publish", "published", "source"]
MODEL = "owner/tiny"
OTHER_COMMIT = "f" * 40


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "attendant"


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of exported sources, to which the exporter in this process adds."""
    exported: list[str] = []

    def run(source: str, out: Path, lock: int) -> None:
        exported.append(source)
        export(source, out, revision=None, name=None, progress=print, variants=Variants(explain=False), overwrite=True)

    monkeypatch.setattr(model_cache, "run_exporter", run)
    return exported


@pytest.fixture
def hub(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_in_process(monkeypatch, tmp_path / "hub") as server:
        server.repositories[MODEL] = Repository.of(published)
        yield server


def revision(directory: Path) -> str | None:
    return Artifact.open(directory).manifest.revision


def test_artifact_directory_wins_over_the_default_model(
    tiny_artifact: Path, cache: Path, exports: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_artifact, "default")
    assert prepare_artifact("default", cache) == Path("default")
    assert exports == []


def test_hub_model_is_never_upgraded(
    hub: HubServer, cache: Path, exports: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    directory = prepare_artifact(MODEL, cache)
    hub.repositories[MODEL].revisions = {"main": OTHER_COMMIT, "old": COMMIT}
    hub.requests.clear()
    with caplog.at_level(logging.INFO):
        assert prepare_artifact(MODEL, cache) == directory
    assert (hub.requests, exports) == ([], [MODEL])
    assert f"artifact found source={MODEL} model={MODEL} revision={COMMIT} directory={directory}" in caplog.messages


def test_commit_is_found_under_the_name_of_its_branch(hub: HubServer, cache: Path, exports: list[str]) -> None:
    directory = prepare_artifact(MODEL, cache)
    hub.requests.clear()
    assert prepare_artifact(f"{MODEL}@{COMMIT}", cache) == directory
    assert (hub.requests, exports) == ([], [MODEL])


def test_other_model_of_the_same_commit_is_not_used(hub: HubServer, cache: Path, exports: list[str]) -> None:
    """A copy of a repository under another name has the same commits."""
    hub.repositories["other/tiny"] = hub.repositories[MODEL]
    prepare_artifact(MODEL, cache)
    assert Artifact.open(prepare_artifact(f"other/tiny@{COMMIT}", cache)).manifest.source == "other/tiny"


@pytest.mark.parametrize("damage", ["weights", "format"])
def test_unusable_artifact_is_exported_again_at_its_commit(
    hub: HubServer, cache: Path, exports: list[str], caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    directory = prepare_artifact(MODEL, cache)
    if damage == "weights":
        (directory / "weights.bin").write_bytes(b"")
    else:
        manifest = json.loads((directory / "manifest.json").read_text())
        (directory / "manifest.json").write_text(json.dumps(manifest | {"format_version": 5}))
    hub.repositories[MODEL].revisions = {"main": OTHER_COMMIT, "old": COMMIT}
    assert prepare_artifact(MODEL, cache) == directory
    assert exports == [MODEL, f"{MODEL}@{COMMIT}"]
    assert revision(directory) == COMMIT
    assert any(message.startswith(f"cached artifact invalid directory={directory} ") for message in caplog.messages)


def test_entry_without_manifest_is_exported_again(hub: HubServer, cache: Path, exports: list[str]) -> None:
    directory = prepare_artifact(MODEL, cache)
    (directory / "manifest.json").unlink()
    assert revision(prepare_artifact(MODEL, cache)) == COMMIT
    assert exports == [MODEL, MODEL]


def test_directory_is_exported_again_after_a_change(source: Path, cache: Path, exports: list[str]) -> None:
    first = prepare_artifact(str(source), cache)
    assert prepare_artifact(str(source), cache) == first
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 17}')
    second = prepare_artifact(str(source), cache)
    assert Artifact.open(second).manifest.max_input_tokens == 17
    assert len(exports) == 2
    assert not first.exists()


def test_directories_of_the_same_name_are_exported_apart(
    source: Path, tmp_path: Path, cache: Path, exports: list[str]
) -> None:
    other = shutil.copytree(source, tmp_path / "other" / source.name)
    first, second = prepare_artifact(str(source), cache), prepare_artifact(str(other), cache)
    assert first != second
    assert first.exists()


def test_files_of_a_killed_export_are_removed(hub: HubServer, cache: Path, exports: list[str]) -> None:
    directory = prepare_artifact(MODEL, cache)
    scratch = cache / f".{directory.name}.x1y2"
    scratch.mkdir()
    shutil.rmtree(directory)
    prepare_artifact(MODEL, cache)
    assert {path.name for path in cache.iterdir()} == {directory.name, "locks"}


def test_other_errors_are_found_before_the_export(hub: HubServer, cache: Path, exports: list[str]) -> None:
    def check() -> None:
        raise ExportError("port in use", 78)

    with pytest.raises(ExportError, match="port in use"):
        prepare_artifact(MODEL, cache, check)
    assert exports == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", r"empty: neither an artifact \(no manifest\.json\) nor a model \(no config\.json\)\. Check the path"),
        ("notes", r"notes: not a directory"),
        ("./none", r"\./none: no such directory"),
        ("a/b/c", r"a/b/c: no such directory"),
        ("what?", r"what\?: neither a directory nor a Hugging Face model ID"),
        ("owner/tiny@", r"owner/tiny@: invalid revision"),
    ],
)
def test_invalid_source_is_rejected_at_once(
    tmp_path: Path, cache: Path, exports: list[str], monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").touch()
    with pytest.raises(SourceError, match=f"^{message}"):
        prepare_artifact(name, cache)
    assert exports == []
    assert not cache.exists()


def test_unwritable_cache_names_the_option(source: Path, tmp_path: Path, exports: list[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ExportError, match=r"^ATTENDANT_CACHE_DIR: .*/file.* cannot be read or written \(.*\)"
    ) as raised:
        prepare_artifact(str(source), tmp_path / "file" / "cache")
    assert raised.value.status == 73


@pytest.mark.parametrize(
    ("variable", "option", "expected"),
    [
        ("/data/cache", None, "/data/cache/attendant"),
        ("relative", None, "~/.cache/attendant"),
        (None, None, "~/.cache/attendant"),
        ("/data/cache", "~/mine", "~/mine"),
    ],
)
def test_cache_directory_follows_option_and_xdg(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, option: str | None, expected: str
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if variable is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", variable)
    assert cache_directory(None if option is None else Path(option)) == Path(expected).expanduser()


def test_unknown_home_directory_names_the_option() -> None:
    with pytest.raises(ExportError, match=r"^ATTENDANT_CACHE_DIR: this user has no home directory\. Set it\."):
        cache_directory(Path("~no-such-user/cache"))
