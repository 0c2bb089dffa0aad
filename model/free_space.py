"""A check of the free disk space before files are written."""

import shutil
from pathlib import Path

from model.source_name import SpaceError


def check_free_space(directory: Path, required: int, contents: str, remedy: str) -> None:
    """Raise SpaceError if the file system of `directory`, which may not exist yet, has less than `required` bytes."""
    existing = next(parent for parent in (directory.absolute(), *directory.absolute().parents) if parent.exists())
    available = shutil.disk_usage(existing).free
    if available < required:
        raise SpaceError(
            f"{directory}: not enough free space for {contents} ({available:,} bytes available, {required:,} "
            f"required). Free some space, or {remedy}."
        )
