"""Copies of artifacts that tests modify."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model.artifact.files import MANIFEST, MANIFEST_DIGEST


def copy_artifact(source: Path, folder: Path) -> Path:
    """Return a writable copy of an artifact in a folder."""
    root = folder / "artifact"
    root.mkdir()
    for path in source.iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    return root


def rewrite_manifest(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and its digest, as an attacker with write access could."""
    value = json.loads((root / MANIFEST).read_text())
    change(value)
    body = json.dumps(value).encode()
    (root / MANIFEST).write_bytes(body)
    (root / MANIFEST_DIGEST).write_text(hashlib.sha256(body).hexdigest() + "\n")
