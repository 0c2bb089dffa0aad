"""Tools for the deploy/ tests, installed by `make deploy-tools`."""

import shutil
import subprocess
from pathlib import Path

from tests.conftest import ROOT, skip_without

DEPLOY = ROOT / "deploy"
CHECKERS = ROOT / ".venv-deploy" / "bin"


def find_tool(name: str) -> str:
    """Return the path of a command; see `skip_without`."""
    own = CHECKERS / name
    path = str(own) if own.exists() else shutil.which(name)
    if path is None:
        skip_without(name, "make deploy-tools installs what this machine offers")
    return path


def run_tool(name: str, *arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [find_tool(name), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
