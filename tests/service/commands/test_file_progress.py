"""Progress of `attendant embed IN -o OUT`, and missing packages."""

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from service.commands import embed as file_progress
from tests.conftest import HANG_TIMEOUT_S, ROOT, server_environment
from tests.service.commands.embed_command import RunEmbed, write_rows


def test_bar_is_shown_on_a_terminal(tmp_path: Path) -> None:
    """It shows the rate and the time left."""
    path = write_rows(tmp_path / "in.txt", [{"text": f"text {number}"} for number in range(5000)])
    command = [sys.executable, "-m", "tests.service.commands.embed_stub", "embed", str(path), "-o", f"{path}.npy"]
    terminal, stderr = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 120))
    process = subprocess.Popen(command, cwd=ROOT, env=server_environment() | {"TERM": "xterm"}, stderr=stderr)
    os.close(stderr)
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # how Linux reports the end of a terminal
        pass
    os.close(terminal)
    assert process.wait(HANG_TIMEOUT_S) == 0
    text = shown.decode()
    assert re.search(r"\d+%\|.*\| [\d.]+k/[\d.]+k \[\d\d:\d\d<\d\d:\d\d, [\d.]+k?row/s\]", text), text
    assert "attendant embed: wrote 5,000 embeddings" in text


@pytest.mark.usefixtures("stub_engine")
def test_lines_are_printed_elsewhere(tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_progress, "INTERVAL_S", 0)
    path = write_rows(tmp_path / "in.txt", [{"text": "a text"} for _ in range(6)])
    status, err = run_embed(path, "-o", tmp_path / "out.npy")
    *lines, last = err.splitlines()
    assert (status, len(lines)) == (0, 3)
    assert re.fullmatch(r"attendant embed: 6 of about 6 rows, [\d,]+ rows/s, 0 s left", lines[-1])
    assert last.startswith("attendant embed: wrote 6 embeddings")


@pytest.mark.usefixtures("stub_engine")
def test_missing_package_is_an_error(tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other formats need no additional package."""
    path = write_rows(tmp_path / "in.txt", [{"text": "a"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "attendant_client", None)
    assert run_embed(path, "-o", tmp_path / "out.parquet") == (
        78,
        "attendant embed: Parquet needs pyarrow, which is not installed. "
        "Install the extra \"data\": pip install -c constraints.txt -e '.[cpu,data]'.\n",
    )
    assert run_embed(path, "-o", tmp_path / "out.npy", "--server", "http://127.0.0.1:9") == (
        78,
        "attendant embed: --server: attendant-client is not installed. "
        "Install it: pip install -c constraints.txt ./client.\n",
    )
    assert run_embed(path, "-o", tmp_path / "out.npy")[0] == 0
