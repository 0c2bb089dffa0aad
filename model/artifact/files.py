"""The artifact: the directory that `attendant-model export` writes and `attendant serve` reads."""

import errno
import fcntl
import hashlib
import json
import math
import mmap
import os
import re
import shlex
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from model.artifact.console import EX_CONFIG, ReportedError
from model.artifact.manifest import (
    FORMAT_VERSION,
    VARIANTS,
    FileRecord,
    GoldenVectors,
    Manifest,
    ManifestVersion,
    Report,
    TensorRecord,
)
from model.artifact.names import is_model_name

STORED = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
"""NumPy has no bfloat16, so its bits are read as integers."""


class MappedTensor:
    """A read-only tensor in a memory-mapped file. Indexing returns float32: a view of float32 data, else a copy."""

    def __init__(self, record: TensorRecord, mapping: mmap.mmap) -> None:
        self.shape = record.shape
        self._stored: NDArray[Any] = np.ndarray(record.shape, STORED[record.dtype], mapping, record.offset)

    def __getitem__(self, index: Any) -> NDArray[np.float32]:
        values = self._stored[index]
        if values.dtype == np.uint16:  # bfloat16 is the upper half of float32
            return (values.astype(np.uint32) << 16).view(np.float32)  # type: ignore[no-any-return]
        return values.astype(np.float32, copy=False)  # type: ignore[no-any-return]


MANIFEST = "manifest.json"
MANIFEST_DIGEST = "manifest.sha256"
TOKENIZER = "tokenizer.json"
REPORT = "report.json"
GOLDEN = "golden.json"
TRAINING = "training.json"
"""The training record of a model that is not yet an artifact, next to its weights."""
WEIGHTS = "weights.bin"
DEFAULT_SOURCE = "sentence-transformers/all-MiniLM-L6-v2"
"""The source of the model that the commands call "default"."""
CHUNK_BYTES = 2**20


class ArtifactError(ReportedError):
    """An invalid artifact. The message names the file and a remedy."""

    status = EX_CONFIG


@dataclass(frozen=True)
class Artifact:
    """A verified artifact. `digest` is the SHA-256 of the manifest, which contains the digest of every file.

    Files are opened on first use. Descriptors close when this object is freed, and a memory map when this object and
    all arrays over it are freed.
    """

    root: Path
    manifest: Manifest
    digest: str
    _descriptors: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _maps: dict[str, mmap.mmap] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        weakref.finalize(self, _close_all, self._descriptors)

    @classmethod
    def open(cls, root: Path, expected_digest: str | None = None) -> "Artifact":
        """Verify every file in `root`. Raises ArtifactError."""
        manifest, digest = cls.read_manifest(root, expected_digest)
        artifact = cls(root.resolve(), manifest, digest)
        artifact._reject_unlisted_files()
        artifact._check_tensors()
        for name in artifact.manifest.files:
            for _ in artifact._read_chunks(name):
                pass
        return artifact

    @staticmethod
    def read_manifest(root: Path, expected_digest: str | None = None) -> tuple[Manifest, str]:
        """Return the manifest and its digest, without verifying the other files. Raises the errors of `open`."""
        if not root.is_dir():
            raise ArtifactError(
                f"{root}: no such directory. Name another one, or run: attendant-model export SOURCE -o {root}"
            )
        root = root.resolve()
        body = _read(root, MANIFEST)
        digest = hashlib.sha256(body).hexdigest()
        listed = _read(root, MANIFEST_DIGEST)  # one digest, or two while the manifest is being replaced
        if not re.fullmatch(rb"([0-9a-f]{64}\n){1,2}", listed) or digest.encode() not in listed.split():
            raise ArtifactError(f"{root / MANIFEST}: SHA-256 mismatch with {MANIFEST_DIGEST}. Export again.")
        if expected_digest is not None and expected_digest.removeprefix("sha256:") != digest:
            raise ArtifactError(
                f"{root / MANIFEST}: not the pinned digest (sha256:{digest}, pinned {expected_digest})."
            )
        return _parse(root, body), digest

    def read(self, name: str) -> bytes:
        """Return the bytes of a listed file after verifying its digest. Raises ArtifactError."""
        return b"".join(self._read_chunks(name))

    def _read_chunks(self, name: str) -> Iterator[bytes]:
        """Yield a listed file in blocks, to limit memory use. The last step verifies the digest."""
        record, digest = self.manifest.files[name], hashlib.sha256()
        descriptor = self._descriptor(name)
        size = os.fstat(descriptor).st_size
        if size != record.size:
            raise ArtifactError(
                f"{self.root / name}: size mismatch ({size} bytes, expected {record.size}). Export again."
            )
        for offset in range(0, size, CHUNK_BYTES):
            chunk = os.pread(descriptor, CHUNK_BYTES, offset)
            digest.update(chunk)
            yield chunk
        if digest.hexdigest() != record.sha256:
            raise ArtifactError(f"{self.root / name}: SHA-256 mismatch with {MANIFEST}. Export again.")

    def read_report(self) -> Report | None:
        """Return the measurements of the export; None if report.json is missing or invalid."""
        try:
            return Report.model_validate_json(_read(self.root, REPORT))
        except (ArtifactError, ValidationError):
            return None

    def read_golden_vectors(self) -> GoldenVectors | None:
        """Return the golden vectors; None if golden.json is missing. Raises ArtifactError if it is invalid."""
        if not (self.root / GOLDEN).exists():
            return None
        try:
            golden = GoldenVectors.model_validate_json(_read(self.root, GOLDEN))
        except ValueError:
            golden = None
        heads = {head.type for head in self.manifest.heads}
        vocabulary = self.manifest.architecture.vocab_size
        if (
            golden is None
            or {name.removesuffix("_query") for name in golden.heads} != heads
            or any(not golden_head.has_ids_below(vocabulary) for golden_head in golden.heads.values())
        ):
            raise ArtifactError(f"{self.root / GOLDEN}: invalid golden vectors. Export again.")
        return golden

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file, without mapping it."""
        return os.pread(self._descriptor(name), end - start, start)

    def _descriptor(self, name: str) -> int:
        if name not in self._descriptors:
            self._descriptors[name] = _open(self.root, name)
        return self._descriptors[name]

    def map_file(self, name: str) -> mmap.mmap:
        """Return a read-only memory map of a file, the same on every call. Raises ArtifactError."""
        if name not in self._maps:
            self._maps[name] = mmap.mmap(self._descriptor(name), 0, access=mmap.ACCESS_READ)
        return self._maps[name]

    def release_pages(self) -> None:
        """Drop the mapped pages from the memory of this process; later accesses read them again.

        Sessions copy almost all weights when they are opened or warmed up.
        """
        for mapping in self._maps.values():
            mapping.madvise(mmap.MADV_DONTNEED)

    def map(self, tensor: TensorRecord) -> MappedTensor:
        """Return a memory-mapped tensor. Raises ArtifactError if its file can no longer be opened."""
        return MappedTensor(tensor, self.map_file(tensor.file))

    def _reject_unlisted_files(self) -> None:
        listed = {*self.manifest.files, MANIFEST, MANIFEST_DIGEST, REPORT, GOLDEN}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if name not in listed:
                raise ArtifactError(f"{path}: not listed in {MANIFEST}. Remove it.")
        for name in _referenced_files(self.manifest):
            if name not in self.manifest.files:
                raise ArtifactError(f"{self.root / MANIFEST}: refers to unlisted file {name!r}. Export again.")

    def _check_tensors(self) -> None:
        """Raise ArtifactError for a tensor beyond the end of its file: mapping it would fail or yield a wrong size."""
        for name, tensor in self.manifest.tensors():
            end = tensor.offset + math.prod(tensor.shape) * np.dtype(STORED[tensor.dtype]).itemsize
            if end > self.manifest.files[tensor.file].size:
                raise ArtifactError(f"{self.root / MANIFEST}: {name}: beyond the end of {tensor.file}. Export again.")


def write_manifest(root: Path, manifest: Manifest) -> str:
    """Write the manifest and its digest file; return the digest."""
    body = manifest.model_dump_json(indent=1).encode()
    digest = hashlib.sha256(body).hexdigest()
    (root / MANIFEST).write_bytes(body)
    (root / MANIFEST_DIGEST).write_text(digest + "\n")
    return digest


def describe_file(path: Path) -> FileRecord:
    with path.open("rb") as file:
        return FileRecord(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=path.stat().st_size)


def _referenced_files(manifest: Manifest) -> Iterator[str]:
    """Yield the files that the manifest refers to."""
    yield from (name for graph in manifest.graphs.values() for name in (graph.file, *graph.weights))
    yield from (TOKENIZER, *manifest.notices)
    yield from (tensor.file for _, tensor in manifest.tensors())


def _parse(root: Path, body: bytes) -> Manifest:
    try:
        version = ManifestVersion.model_validate_json(body).format_version
        if version != FORMAT_VERSION:
            raise ArtifactError(
                f"{root / MANIFEST}: unsupported format ({version}, expected {FORMAT_VERSION}). "
                f"Run: {_export_command(root, json.loads(body))}"
            )
        return Manifest.model_validate_json(body)
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise ArtifactError(f"{root / MANIFEST}: invalid manifest (at {field or 'the top'}). Export again.") from None


def _export_command(root: Path, manifest: Any) -> str:
    """Return the command that re-exports an artifact of another format with its original options."""
    source, graphs = manifest.get("source"), manifest.get("graphs")
    # A Hugging Face model ID has a commit; the default model is verified by its weights.
    if source == DEFAULT_SOURCE and str(manifest.get("revision")).startswith("sha256:"):
        source = "default"
    words = ["attendant-model", "export", str(source or "SOURCE"), "-o", str(root)]
    revision, name = str(manifest.get("revision")), str(manifest.get("name"))
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        words += ["--revision", revision]
    if source and name != Path(str(manifest.get("source"))).name and is_model_name(name):
        words += ["--name", name]
    for variant in VARIANTS:
        if isinstance(graphs, dict) and variant in graphs:
            words += ["--variant", variant]
    origins, heads, explain = manifest.get("origins"), manifest.get("heads"), manifest.get("explain")
    settings = manifest | (heads[0] if isinstance(heads, list) and heads and isinstance(heads[0], dict) else {})
    for setting, origin in origins.items() if isinstance(origins, dict) else ():
        if origin in ("--pooling", "--max-input-tokens", "--task"):
            words += [origin, str(settings.get(setting))]
        elif origin in ("--normalize", "--no-normalize"):
            words.append(origin)
    if isinstance(explain, dict) and "reason" in explain:
        words.append("--no-explain")
    return shlex.join(words)


def _read(root: Path, name: str) -> bytes:
    descriptor = _open(root, name)
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def _open(root: Path, name: str) -> int:
    """Open a regular file of `root`.

    Symbolic links are rejected, because their target can change before the file is opened. Hard links are accepted:
    anyone who can write to the file through another name can also write to it through this one.
    """
    path = root / name
    if "\0" in name or root not in Path(os.path.realpath(path)).parents:  # Path.resolve raises for symlink loops
        raise ArtifactError(f"{path}: outside of the artifact. Export again, or copy it without links: cp -rL.")
    try:
        descriptor = os.open(
            path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )  # O_NONBLOCK: otherwise, opening a pipe blocks
    except FileNotFoundError:
        if name == MANIFEST:
            remedy = "Export a model: attendant-model export SOURCE -o DIR."
            raise ArtifactError(f"{root}: not an artifact ({MANIFEST} is missing). {remedy}") from None
        raise ArtifactError(f"{path}: missing. Export again.") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ArtifactError(f"{path}: a symbolic link. Copy the artifact without links: cp -rL.") from None
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}). Check its type and permissions.") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError(f"{path}: not a regular file. Copy or export the artifact again.")
    return descriptor


def _close_all(descriptors: dict[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)


def check_writable(root: Path) -> None:
    """Raise `ArtifactError` unless `update_manifest` can create files in the directory and beside it."""
    for directory in (root, root.parent):
        if not os.access(directory, os.W_OK):
            raise ArtifactError(f"{directory}: not writable. Change its permissions or copy the artifact.")


def update_manifest(root: Path, change: Callable[[Manifest], Manifest]) -> str:
    """Replace the manifest with the result of `change` and return its digest. `root` is an `Artifact.root`.

    After a crash or on a full disk, either the old or the new artifact is valid. Concurrent updates wait for each
    other.

    Raises:
        ArtifactError: the artifact is invalid or cannot be written, or `change` raises it.
    """
    try:
        with locked(root):
            artifact = Artifact.open(root)
            body = change(artifact.manifest).model_dump_json(indent=1).encode()
            digest = hashlib.sha256(body).hexdigest()
            # Outside of the artifact directory, which must not contain unlisted files.
            with tempfile.TemporaryDirectory(dir=root.parent, prefix=f".{root.name}.") as scratch:
                _replace(root, Path(scratch), body, artifact.digest, digest)
            return digest
    except OSError as error:
        raise ArtifactError(
            f"{root}: cannot be written ({error.strerror}). Check permissions and space, and run the command again."
        ) from None


def _replace(root: Path, scratch: Path, body: bytes, old_digest: str, digest: str) -> None:
    steps = (
        (MANIFEST_DIGEST, f"{old_digest}\n{digest}\n".encode()),
        (MANIFEST, body),
        (MANIFEST_DIGEST, f"{digest}\n".encode()),
    )
    written = []
    for number, (name, content) in enumerate(steps):  # all must be on disk before the first one replaces a file
        path = scratch / str(number)
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(root / name, path)
        written.append((path, root / name))
    for path, target in written:
        os.replace(path, target)
        sync_directory(root)


def sync_directory(directory: Path) -> None:
    """Wait until renames in a directory are on disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the exclusive lock of a directory. Raises BlockingIOError if it is already held and `wait` is False."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)
