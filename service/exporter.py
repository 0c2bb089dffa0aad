"""Runs the exporter in a child process, because the server never imports PyTorch."""

import contextlib
import importlib.util
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

import model
from model.artifact.console import EX_CANTCREAT, EX_CONFIG, EX_INTERRUPTED, EX_SOFTWARE, EX_UNAVAILABLE, STATUSES
from model.artifact.memory import available_memory

PROGRESS = re.compile(r"\[ *\d+\.\d s\] ")
PREFIX = "attendant-model: "
OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad.?alloc|(can't|cannot|unable to|failed to) allocate|cannot map zero-fill|failed to map segment"
    r"|can't start new thread",
    re.IGNORECASE,
)
"""Error messages of Python, C++, PyTorch, the dynamic linker and thread creation at the memory limit."""
STOP_TIMEOUT_S = 10.0
KEPT_LINES = 50

_running: "set[subprocess.Popen[str]]" = set()


class ExportError(Exception):
    """An artifact that cannot be exported or stored. `status` is the exit status of the command."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run_exporter(source: str, out: Path, lock: int) -> None:
    """Export `source` to the directory `out`, and print the progress to stderr.

    Args:
        source: "default", a directory, or a Hugging Face model ID.
        out: directory of the artifact, which is replaced.
        lock: descriptor of a locked file. The child inherits it, so that the lock lasts as long as either process.

    Raises:
        ExportError: the exporter is not installed, or it failed.
    """
    if importlib.util.find_spec("torch") is None:
        raise ExportError(
            f"{source}: must be exported first, which needs PyTorch (not installed). Run: pip install '.[cpu,export]'",
            EX_CONFIG,
        )
    limit = available_memory()
    # -P: do not import a directory named "model" from the current directory.
    process = subprocess.Popen(  # noqa: S603  # a source that starts with "-" is neither a directory nor a model ID
        [sys.executable, "-P", "-m", "model", "export", source, "-o", str(out), "--overwrite"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=os.environ | {"PYTHONPATH": python_path()},
        pass_fds=(lock,),
    )
    _limit_memory(process.pid, limit)
    _running.add(process)
    try:
        lines = _relay_progress(process)
        status = process.wait()
    except BaseException:
        _stop(process)
        raise
    finally:
        _running.discard(process)
        if process.stderr is not None:
            process.stderr.close()
    if status != 0:
        raise _failure(source, out, status, lines, limit)


def stop_exporters() -> None:
    """Terminate exports started by other threads. A signal that stops the server does not reach its child processes."""
    for process in list(_running):
        _stop(process)


def _limit_memory(pid: int, limit: int | None) -> None:
    """Make allocations beyond the available memory fail in the exporter, before the kernel kills other processes.

    The limit counts private writable memory, not address space: PyTorch reserves 10 GB and uses 0.7 GB for the default
    model. The exporter raises the limit by the size of the files that it maps.
    """
    if limit is None or not hasattr(resource, "prlimit"):
        return
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        bounded = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, (bounded, hard))


def python_path() -> str:
    """Return PYTHONPATH including the folder of this package, in case it is a checkout that is not installed."""
    folder = Path(model.__file__).parents[1]
    own = "" if folder.name in ("site-packages", "dist-packages") else str(folder)
    return os.pathsep.join(part for part in (os.environ.get("PYTHONPATH"), own) if part)


def _relay_progress(process: "subprocess.Popen[str]") -> deque[str]:
    """Print progress lines as they arrive; return the last lines of other output."""
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    assert process.stderr is not None
    for line in process.stderr:
        if PROGRESS.match(line):
            sys.stderr.write(line)
            sys.stderr.flush()
        elif line.strip():
            lines.append(line.strip())
    return lines


def _stop(process: "subprocess.Popen[str]") -> None:
    """Stop the exporter. It removes its temporary files on SIGTERM."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except BaseException:  # noqa: BLE001  # a second signal must not leave the process behind
        process.kill()
        process.wait()


def _failure(source: str, out: Path, status: int, lines: deque[str], limit: int | None) -> BaseException:
    message = next((line.removeprefix(PREFIX) for line in reversed(lines) if line.startswith(PREFIX)), None)
    if message is not None:
        if status == EX_CANTCREAT and str(out.parent) in message:
            message += " ATTENDANT_CACHE_DIR selects the directory."
        return ExportError(message, status if status in STATUSES else EX_SOFTWARE)
    if status == EX_INTERRUPTED or -status == signal.SIGINT:
        return KeyboardInterrupt()
    if any(OUT_OF_MEMORY.search(line) for line in lines) or -status == signal.SIGKILL:
        shown = "unknown" if limit is None else f"{limit:,} bytes"
        return ExportError(
            f"{source}: not enough memory to export it (limit {shown}). Free memory, or export it on a larger machine "
            f"and serve the directory: attendant-model export {shlex.quote(source)} -o DIR",
            EX_UNAVAILABLE,
        )
    problem = signal.Signals(-status).name if status < 0 else (lines[-1] if lines else f"exit status {status}")
    return ExportError(
        f"{source}: the exporter failed ({problem}). For details, run: attendant-model export {shlex.quote(source)} "
        "-o DIR",
        EX_SOFTWARE,
    )
