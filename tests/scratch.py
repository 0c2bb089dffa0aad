"""Directories for files that the tests of a process share, such as exported models."""

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp


@cache
def _process_directory() -> Path:
    directory = Path(mkdtemp(prefix="attendant-tests-"))
    atexit.register(shutil.rmtree, directory)
    return directory


def make_directory() -> Path:
    """Return a new directory that is removed when the process exits."""
    return Path(mkdtemp(dir=_process_directory()))
