"""The artifact: the directory that `attendant-model export` writes and `attendant serve` reads.

It is the only interface between model/ and service/. `Artifact.open` rejects a directory with a file that differs
from the manifest, is missing, or is not listed. Every file is opened once: later reads return the verified file, even
after another artifact was moved to the directory. This module imports neither torch nor onnxruntime.
"""

import base64
import hashlib
import mmap
import os
import re
import stat
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from model.console import EX_CONFIG
from model.manifest import FORMAT_VERSION, FileRecord, GoldenVectors, Manifest, ManifestVersion, Report, TensorRecord

MANIFEST = "manifest.json"
MANIFEST_DIGEST = "manifest.sha256"
TOKENIZER = "tokenizer.json"
REPORT = "report.json"
GOLDEN = "golden.json"
TRAINING = "training.json"
"""The training record of a model that is not yet an artifact, next to its weights."""
WEIGHTS = "weights.bin"


class ArtifactError(Exception):
    """An invalid artifact. The message names the file and a remedy."""

    status = EX_CONFIG


class _OpenFiles:
    """Descriptors of the files of a directory. Each is opened on first use, and closed with this object."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        weakref.finalize(self, _close_all, self._descriptors)

    def descriptor(self, root: Path, name: str) -> int:
        if name not in self._descriptors:
            self._descriptors[name] = _open(root, name)
        return self._descriptors[name]


@dataclass(frozen=True)
class Artifact:
    """A verified artifact. `digest` is the SHA-256 of the manifest, which contains the digest of every file."""

    root: Path
    manifest: Manifest
    digest: str
    _files: _OpenFiles = field(default_factory=_OpenFiles, init=False, repr=False, compare=False)

    @classmethod
    def open(cls, root: Path, expected_digest: str | None = None) -> "Artifact":
        """Verify every file of `root`.

        Raises:
            ArtifactError: a file is invalid, missing or unlisted, or the digest is not `expected_digest`.
        """
        if not root.is_dir():
            raise ArtifactError(f"{root}: no such directory. Create it with: attendant-model export SOURCE -o {root}")
        root = root.resolve()
        body = _read(root, MANIFEST)
        digest = hashlib.sha256(body).hexdigest()
        if digest not in _listed_digests(_read(root, MANIFEST_DIGEST)):
            raise ArtifactError(f"{root / MANIFEST}: SHA-256 mismatch with {MANIFEST_DIGEST}. Export again.")
        if expected_digest is not None and expected_digest.removeprefix("sha256:") != digest:
            raise ArtifactError(
                f"{root / MANIFEST}: not the pinned digest (sha256:{digest}, pinned {expected_digest}). "
                "Change the pin or the artifact."
            )
        artifact = cls(root, _parse(root, body), digest)
        artifact._reject_unlisted_files()
        for name in artifact.manifest.files:
            artifact.read(name)
        return artifact

    def read(self, name: str) -> bytes:
        """Return the bytes of a listed file after verifying its digest. Raises ArtifactError."""
        record = self.manifest.files[name]
        body = _read_all(self._files.descriptor(self.root, name))
        if len(body) != record.size:
            raise ArtifactError(
                f"{self.root / name}: size mismatch with {MANIFEST} ({len(body)} bytes, expected {record.size}). "
                "Export again."
            )
        if hashlib.sha256(body).hexdigest() != record.sha256:
            raise ArtifactError(f"{self.root / name}: SHA-256 mismatch with {MANIFEST}. Export again.")
        return body

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
            size = len(base64.b64decode(golden.vectors, validate=True))
        except ValueError:
            size = -1
        if size < 0 or size != 4 * len(golden.texts) * self.manifest.hidden_size:
            raise ArtifactError(f"{self.root / GOLDEN}: invalid golden vectors. Export again.")
        return golden

    def map(self, tensor: TensorRecord) -> NDArray[np.float32]:
        """Return a read-only memory map of a tensor. Raises ArtifactError if its file can no longer be opened."""
        mapped = mmap.mmap(self._files.descriptor(self.root, tensor.file), 0, access=mmap.ACCESS_READ)
        return np.ndarray(tensor.shape, "<f4", mapped, tensor.offset)

    def _reject_unlisted_files(self) -> None:
        listed = {*self.manifest.files, MANIFEST, MANIFEST_DIGEST, REPORT, GOLDEN}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if name not in listed:
                raise ArtifactError(f"{path}: not listed in {MANIFEST}. Remove it.")
        for name in [
            *(name for graph in self.manifest.graphs.values() for name in (graph.file, graph.weights)),
            TOKENIZER,
            self.manifest.static.file,
            *(tensor.file for block in self.manifest.blocks for tensor in block.tensors()),
            *(tensor.file for dense in self.manifest.dense for tensor in (dense.weight, dense.bias) if tensor),
        ]:
            if name not in self.manifest.files:
                raise ArtifactError(f"{self.root / MANIFEST}: refers to unlisted file {name!r}. Export again.")


def write_manifest(root: Path, manifest: Manifest) -> str:
    """Write the manifest and its digest file; return the digest."""
    body = manifest.model_dump_json(indent=1).encode()
    digest = hashlib.sha256(body).hexdigest()
    (root / MANIFEST).write_bytes(body)
    (root / MANIFEST_DIGEST).write_text(digest + "\n")
    return digest


def describe_file(path: Path) -> FileRecord:
    """Return the record of a file."""
    with path.open("rb") as file:
        return FileRecord(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=path.stat().st_size)


def _parse(root: Path, body: bytes) -> Manifest:
    try:
        version = ManifestVersion.model_validate_json(body).format_version
        if version != FORMAT_VERSION:
            raise ArtifactError(
                f"{root / MANIFEST}: unsupported format ({version}, expected {FORMAT_VERSION}). Export again."
            )
        return Manifest.model_validate_json(body)
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise ArtifactError(f"{root / MANIFEST}: invalid manifest (at {field or 'the top'}). Export again.") from None


def _listed_digests(body: bytes) -> list[str]:
    """Return the digests of a digest file: one, or two while the manifest is replaced (manifest_update.py)."""
    return body.decode().split() if re.fullmatch(rb"([0-9a-f]{64}\n){1,2}", body) else []


def _read(root: Path, name: str) -> bytes:
    descriptor = _open(root, name)
    try:
        return _read_all(descriptor)
    finally:
        os.close(descriptor)


def _open(root: Path, name: str) -> int:
    """Open a regular file of `root`. Links are rejected: their target can change before a file is opened."""
    path = root / name
    if "\0" in name or root not in path.resolve().parents:
        raise ArtifactError(f"{path}: outside of the artifact. Export again.")
    try:
        descriptor = os.open(
            path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )  # O_NONBLOCK: opening a pipe blocks
    except FileNotFoundError:
        if name == MANIFEST:
            remedy = "Export a model: attendant-model export SOURCE -o DIR."
            raise ArtifactError(f"{root}: not an artifact ({MANIFEST} is missing). {remedy}") from None
        raise ArtifactError(f"{path}: missing. Export again.") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}). Check its type and permissions.") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise ArtifactError(f"{path}: not a regular file with a single link. Copy the artifact without links.")
    return descriptor


def _read_all(descriptor: int) -> bytes:
    """Return the content of a file. Threads may share the descriptor: its position is not used."""
    size = os.fstat(descriptor).st_size
    body = os.pread(descriptor, size, 0)
    while len(body) < size and (more := os.pread(descriptor, size - len(body), len(body))):
        body += more  # one call returns at most 2 GiB
    return body


def _close_all(descriptors: dict[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
