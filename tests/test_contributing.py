"""CONTRIBUTING.md only mentions existing files, functions and commands."""

import re
import subprocess

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
NAMES = sorted(set(re.findall(r"`([^`\n]+)`", PAGE)))


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Return the paths of all files of the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def sources(tracked: list[str]) -> str:
    """Return the text of all files that can define a name."""
    suffixes = (".py", ".js", ".toml", ".proto", "Makefile")
    return "\n".join((ROOT / path).read_text() for path in tracked if path.endswith(suffixes))


@pytest.mark.parametrize("name", NAMES)
def test_name_exists(name: str, tracked: list[str], sources: str) -> None:
    if name.startswith("make "):
        target = name.split()[1]
        assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif "/" in name or re.search(r"\.(py|js|toml|md|txt)$", name):
        is_ignored = name.strip("/") in (ROOT / ".gitignore").read_text().replace("/", "").split()  # output folders
        assert is_ignored or any(f"/{path}".endswith(f"/{name}") or f"/{name}" in f"/{path}" for path in tracked)
    else:
        assert re.search(rf"(?<![\w.]){re.escape(name.partition('(')[0].strip('[]'))}\b", sources)
