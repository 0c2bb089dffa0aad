"""The exporter as a child process: its memory limit, its failures and its end."""

import os
import signal
import sys
from pathlib import Path

import pytest

from model.artifact import memory
from model.artifact.memory import available_memory
from service import exporter
from service.exporter import ExportError, run_exporter
from tests.model.conftest import definitions, publish, published, source

__all__ = ["definitions", "publish", "published", "source"]
PROGRAM = """#!{python}
import os, signal, sys
print("[  0.1 s] one", file=sys.stderr)
print("a warning of a library", file=sys.stderr)
{code}
"""


@pytest.fixture
def lock(tmp_path: Path) -> int:
    return os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)


@pytest.fixture
def failing(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    replace_exporter(monkeypatch, tmp_path, request.param)
    return tmp_path


def replace_exporter(monkeypatch: pytest.MonkeyPatch, directory: Path, code: str) -> None:
    """Run a program instead of Python, as an exporter that fails in a certain way."""
    program = directory / "python"
    program.write_text(PROGRAM.format(python=sys.executable, code=code))
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))


def test_error_of_exporter_is_raised_with_its_status(
    source: Path, tmp_path: Path, lock: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users keep models in a directory "model", which Python would import from the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "__main__.py").write_text("raise SystemExit('wrong package')")
    (source / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ExportError, match=r"^config\.json: model_type: unsupported \('gpt2'\)\.") as raised:
        run_exporter(str(source), tmp_path / "out", lock)
    assert raised.value.status == 65
    assert [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()] == [
        f"locating {source}", "reading tiny-bert"
    ]  # fmt: skip


def test_memory_limit_fails_with_a_remedy(
    published: Path, tmp_path: Path, lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "available_memory", lambda: 100_000_000)
    with pytest.raises(ExportError, match=r"not enough memory to export it \(limit 100,000,000 bytes\)\. Free memory,"):
        run_exporter(str(published), tmp_path / "out", lock)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("failing", "message", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "not enough memory to export it", 69),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            r"the exporter failed \(SIGSEGV\)\. For details, run: attendant-model",
            70,
        ),
        ("raise ValueError('unforeseen')", r"the exporter failed \(ValueError: unforeseen\)", 70),
        ("sys.exit(3)", r"the exporter failed \(a warning of a library\)", 70),
        ("print('attendant-model: full.', file=sys.stderr); sys.exit(73)", r"^full\.$", 73),
        (
            "print(f'attendant-model: {sys.argv[7]}: full.', file=sys.stderr); sys.exit(73)",
            r"/out: full\. ATTENDANT_CACHE_DIR selects the directory\.$",
            73,
        ),
    ],
    indirect=["failing"],
)
def test_failure_of_exporter_is_one_line(
    lock: int, failing: Path, capsys: pytest.CaptureFixture[str], message: str, status: int
) -> None:
    with pytest.raises(ExportError, match=message) as raised:
        run_exporter("owner/tiny", failing / "out", lock)
    assert raised.value.status == status
    assert "\n" not in str(raised.value)
    assert capsys.readouterr().err == "[  0.1 s] one\n"


def test_interrupted_exporter_interrupts_the_server(tmp_path: Path, lock: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_exporter(monkeypatch, tmp_path, "os.kill(os.getpid(), signal.SIGINT)")
    with pytest.raises(KeyboardInterrupt):
        run_exporter("owner/tiny", tmp_path / "out", lock)


def test_exporter_that_ignores_signals_is_killed(tmp_path: Path, lock: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "STOP_TIMEOUT_S", 0.2)
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('[  0.2 s]', os.getpid(), file=sys.stderr, flush=True)"
    replace_exporter(monkeypatch, tmp_path, f"{code}; signal.pause()")
    pids: list[int] = []

    def interrupt(line: str) -> None:
        if line.startswith("[  0.2 s]"):
            pids.append(int(line.rsplit(maxsplit=1)[-1]))
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("sys.stderr.write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_exporter("owner/tiny", tmp_path / "out", lock)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 2_000_000 * 1024), (str(10**9), 10**9 - 600_000_000 + 100_000_000)]
)
def test_available_memory_is_the_smaller_of_machine_and_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  4000000 kB\nMemAvailable:    2000000 kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("600000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 100000000\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP_MEMORY", tmp_path)
    assert available_memory() == expected


def test_available_memory_is_unknown_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP_MEMORY", tmp_path)
    assert available_memory() is None
