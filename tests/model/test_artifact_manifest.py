"""Artifact verification: manifests that are invalid, of another format, or refer to other files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.artifact.files import MANIFEST, Artifact, ArtifactError
from model.artifact.manifest import FORMAT_VERSION
from tests.model.artifact_copies import copy_artifact, rewrite_manifest


@pytest.fixture
def artifact(exported_labse: Path, tmp_path: Path) -> Path:
    return copy_artifact(exported_labse, tmp_path)


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
