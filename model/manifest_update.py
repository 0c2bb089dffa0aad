"""Replacement of the manifest of an existing artifact, which stays valid at every moment.

The manifest and its digest are two files, so no single step can replace both. In between, the digest file lists the
old and the new digest, and `Artifact.open` accepts a manifest with either.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from model.artifact import MANIFEST, MANIFEST_DIGEST, Artifact, ArtifactError
from model.manifest import Manifest


def check_writable(root: Path) -> None:
    """Raise `ArtifactError` unless `update_manifest` can create files in the directory and beside it."""
    for directory in (root, root.parent):
        if not os.access(directory, os.W_OK):
            raise ArtifactError(f"{directory}: not writable. Change its permissions or copy the artifact.")


def update_manifest(root: Path, change: Callable[[Manifest], Manifest]) -> str:
    """Replace the manifest by the result of `change` and return its digest. `root` is an `Artifact.root`.

    The old or the new artifact is valid after a crash or a full disk. Concurrent updates wait for each other.

    Raises:
        ArtifactError: the artifact is invalid or cannot be written, or `change` raises it.
    """
    try:
        with _lock(root):
            artifact = Artifact.open(root)
            body = change(artifact.manifest).model_dump_json(indent=1).encode()
            digest = hashlib.sha256(body).hexdigest()
            # Beside the artifact, because an unlisted file in it is invalid.
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
    for number, (name, content) in enumerate(steps):  # all are on the disk before the first replaces a file
        path = scratch / str(number)
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(root / name, path)
        written.append((path, root / name))
    for path, target in written:
        os.replace(path, target)
        _sync_directory(root)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
