"""Artifacts for `attendant serve SOURCE`, exported on first use and cached in ATTENDANT_CACHE_DIR."""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from model.artifact.console import EX_CANTCREAT, EX_CONFIG
from model.artifact.files import MANIFEST, MANIFEST_DIGEST, Artifact, ArtifactError
from model.artifact.names import HubId, SourceError, is_commit, parse_hub_id
from service.exporter import ExportError, run_exporter

DEFAULT = "default"
LOCKS = "locks"
MAX_LABEL = 100

log = logging.getLogger("attendant.cache")


@dataclass(frozen=True)
class CacheKey:
    """The identity of a cached artifact.

    `label` is the readable part of the directory name; `identity` is hashed. `exported` is the source to pass to the
    exporter, and `hub_id` the ID of a Hugging Face model.
    """

    label: str
    identity: str
    exported: str
    hub_id: HubId | None = None

    @property
    def name(self) -> str:
        """The directory name in the cache."""
        return f"{self.label}-{_digest(self.identity)}"


def prepare_artifact(source: str, cache: Path, before_export: Callable[[], None] = lambda: None) -> Path:
    """Return the directory of the artifact for `source`. Exports it unless it is an artifact or cached.

    Args:
        source: the directory of an artifact, "default", a directory of published files, or a Hugging Face model ID.
        cache: directory of the cache.
        before_export: called before the export, which takes minutes, to detect other errors first.

    Raises:
        ExportError: the source is unavailable, the export failed, or the cache cannot be written.
        SourceError: the source is neither a directory of a model nor a valid model ID.
    """
    if (Path(source) / MANIFEST).is_file():
        return Path(source)
    key = _cache_key(source)
    try:
        artifact = _find(cache, key)
        if artifact is None:
            before_export()
            artifact = _export_locked(cache, key, source)
    except OSError as error:
        raise ExportError(
            f"ATTENDANT_CACHE_DIR: {error.filename or cache} cannot be read or written ({error.strerror or error}). "
            "Set it to a directory of this user.",
            EX_CANTCREAT,
        ) from None
    manifest = artifact.manifest
    log.info(
        "artifact found source=%s model=%s revision=%s directory=%s",
        source, manifest.source, manifest.revision, artifact.root,
    )  # fmt: skip
    return artifact.root


@dataclass(frozen=True)
class CachedArtifact:
    """One directory of the cache. `exported` is a Unix time; `problem` tells why an artifact is unusable."""

    directory: Path
    size: int
    exported: float
    artifact: Artifact | None
    problem: str = ""

    @property
    def name(self) -> str:
        """The name in the cache."""
        return self.directory.name


def cached_artifacts(cache: Path) -> list[CachedArtifact]:
    """Return the artifacts in the cache, by name. Raises `OSError`."""
    found = []
    for directory in sorted(cache.iterdir()) if cache.is_dir() else ():
        if directory.name == LOCKS or directory.name.startswith(".") or not directory.is_dir():
            continue
        size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        artifact, problem = None, ""
        try:
            artifact = Artifact.open(directory)
        except ArtifactError as error:
            problem = str(error)
        found.append(CachedArtifact(directory, size, directory.stat().st_mtime, artifact, problem))
    return found


def remove_artifact(cache: Path, name: str) -> bool:
    """Remove an artifact and leftovers of killed exports; return False while it is being exported. Raises `OSError`."""
    with _locked(cache, name, wait=False) as lock:
        if lock is None:
            return False
        for path in (cache / name, *cache.glob(f".{name}.*")):
            if path.is_symlink():
                path.unlink()
            elif path.exists():
                shutil.rmtree(path)
        return True


def source_state(source: str) -> str:
    """Return a value that changes with the source: the digest of an artifact, or the state of published files.

    Constant for a Hugging Face model, and for a source that cannot be read.
    """
    try:
        return (Path(source) / MANIFEST_DIGEST).read_text()
    except (OSError, UnicodeDecodeError):
        pass
    try:
        return _cache_key(source).name
    except SourceError:
        return ""


def cache_directory(option: Path | None) -> Path:
    """Return the cache directory: the option, or the default according to the XDG Base Directory Specification.

    Raises:
        ExportError: there is no home directory.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        if option is not None:
            return option.expanduser().absolute()
        return (base if base.is_absolute() else Path.home() / ".cache") / "attendant"  # relative paths are ignored
    except RuntimeError:
        raise ExportError("ATTENDANT_CACHE_DIR: this user has no home directory. Set it.", EX_CONFIG) from None


def _cache_key(source: str) -> CacheKey:
    if source == DEFAULT:
        return CacheKey(DEFAULT, DEFAULT, DEFAULT)
    directory = Path(source)
    if directory.is_dir():
        # The exporter explains why it cannot read GGUF files.
        if not (directory / "config.json").is_file() and not any(directory.glob("*.gguf")):
            raise SourceError(
                f"{directory}: neither an artifact (no {MANIFEST}) nor a model (no config.json). Check the path."
            )
        resolved = directory.resolve()
        label = f"{_safe(resolved.name)}-{_digest(str(resolved))}"
        return CacheKey(label, _fingerprint(resolved), str(resolved))
    hub_id = parse_hub_id(source)
    return CacheKey(_safe(str(hub_id).replace("/", "--", 1)), str(hub_id), str(hub_id), hub_id)


def _fingerprint(directory: Path) -> str:
    """Return the names, sizes and modification times of a model's files, as JSON.

    Reading gigabytes of weights would take seconds at every start. A changed time with unchanged contents only costs an
    export.
    """
    try:
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        states = [(path.relative_to(directory).as_posix(), path.stat()) for path in files]
    except OSError as error:
        raise SourceError(
            f"{error.filename or directory}: cannot be read ({error.strerror}). Check the permissions."
        ) from None
    return json.dumps([[name, state.st_size, state.st_mtime_ns] for name, state in states])


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.@-]", "-", text)[:MAX_LABEL]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _find(cache: Path, key: CacheKey) -> Artifact | None:
    """Return the valid artifact for a key. A commit is also found if it was exported under a branch or tag name."""
    commit = key.hub_id.commit if key.hub_id is not None else None
    directories = [cache / key.name]
    if key.hub_id is not None and commit is not None:
        recorded = (key.hub_id.model_id, commit)
        directories += [path for path in sorted(cache.glob("*")) if _recorded(path) == recorded]
    for directory in dict.fromkeys(directories):
        if directory.exists():
            try:
                return Artifact.open(directory)
            except ArtifactError as error:
                log.warning('cached artifact invalid directory=%s reason="%s"', directory, error)
    return None


def _recorded(directory: Path) -> tuple[str, str] | None:
    """Return source and revision from an artifact's manifest, even in an older format; None if unreadable."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        return str(manifest["source"]), str(manifest["revision"])
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return None


def _export_locked(cache: Path, key: CacheKey, source: str) -> Artifact:
    with _locked(cache, key.name, source) as lock:
        assert lock is not None  # never None, because it waits
        artifact = _find(cache, key)  # another process may have exported it in the meantime
        if artifact is None:
            _export(cache, key, lock)
            artifact = _find(cache, key)
    if artifact is None:
        raise ExportError(f"{cache / key.name}: removed after the export. Run the command again.", EX_CONFIG)
    return artifact


def _export(cache: Path, key: CacheKey, lock: int) -> None:
    """Export a model to its cache directory, and remove leftovers of a killed export and outdated files."""
    out = cache / key.name
    source = key.exported
    recorded = _recorded(out)
    if key.hub_id is not None and recorded is not None and is_commit(recorded[1]):
        # Replace an unusable artifact with the same commit, never with a newer one.
        source = str(HubId(key.hub_id.model_id, recorded[1]))
    if out.exists() and not (out / MANIFEST).is_file():
        shutil.rmtree(out)  # the exporter replaces only artifacts
    sys.stderr.write(f"exporting {source} to {out}\n")
    sys.stderr.flush()
    try:
        run_exporter(source, out, lock)
    finally:
        for scratch in cache.glob(f".{key.name}.*"):
            shutil.rmtree(scratch, ignore_errors=True)
    if key.exported != DEFAULT and key.hub_id is None:
        for stale in cache.glob(f"{key.label}-*"):
            if stale != out:
                shutil.rmtree(stale, ignore_errors=True)


@contextlib.contextmanager
def _locked(cache: Path, name: str, source: str = "", *, wait: bool = True) -> Iterator[int | None]:
    """Hold the lock of a cached artifact and yield its descriptor, or None if it is already held and `wait` is False.

    The kernel releases the lock when the last process with this descriptor exits, even if it is killed. With a
    third-party lock, the exporter could not inherit the descriptor.
    """
    (cache / LOCKS).mkdir(parents=True, exist_ok=True)
    path = cache / LOCKS / name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                yield None
                return
            sys.stderr.write(f"waiting for another process that exports {source} (lock {path})\n")
            sys.stderr.flush()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
