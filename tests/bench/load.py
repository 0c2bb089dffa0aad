"""Load from other processes: wrk, and senders in Python. Each sends the bodies of a file in turn."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
GZIP = {"accept-encoding": "gzip, deflate"}
"""What httpx, requests, the openai package and browsers send."""
CLOSE = {"connection": "close"}
END_TIMEOUT_S = 10


class LoadError(Exception):
    """A sender could not do its work; the message names it."""


@dataclass(frozen=True)
class Load:
    """What is sent where, over how many connections; `bodies` is a file with one JSON body per line."""

    url: str
    connections: int
    bodies: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answered:
    """What was answered: `failed` counts every status but 2xx, and broken connections; latencies are of all."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    failed: int
    bytes: int = 0

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


@contextmanager
def bodies_file(bodies: Sequence[object], paths: Sequence[str] = ()) -> Iterator[str]:
    """Write JSON bodies to a file, one per line, each with its own path if `paths` are given, until the block ends."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        heads = [f"{path}\t" for path in paths] or [""] * len(bodies)
        file.writelines(f"{head}{json.dumps(body)}\n" for head, body in zip(heads, bodies, strict=True))
        file.flush()
        yield file.name


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that ends with the block, whatever ends the block."""
    process = subprocess.Popen(command, text=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def started_wrk(load: Load, seconds: float) -> Iterator["subprocess.Popen[str]"]:
    """Start wrk; read its figures with `wrk_answer`."""
    command = ["wrk", "-t1", f"-c{load.connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s",
               "-s", str(Path(__file__).parent / "load.lua"), load.url]  # fmt: skip
    headers = "\n".join(f"{name}: {value}" for name, value in load.headers.items())
    environment = os.environ | {"BENCH_BODIES": load.bodies, "BENCH_HEADERS": headers}
    with started(command, env=environment, stdout=subprocess.PIPE) as process:
        yield process


def wrk_answer(process: "subprocess.Popen[str]", stop: bool = False) -> Answered:
    """Wait for wrk, or stop it now, and read the line that its script prints. Raises `LoadError`."""
    if stop:
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    line = next((line for line in out.splitlines() if line.startswith("BENCH ")), None)
    if line is None:
        raise LoadError(f"wrk ended with {process.returncode} and no figures: {out}")
    return Answered(**json.loads(line.removeprefix("BENCH ")))


def run_wrk(load: Load, seconds: float) -> Answered:
    """Send a load for `seconds`. Raises `LoadError`."""
    with started_wrk(load, seconds) as process:
        return wrk_answer(process)


def run_senders(module: str, jobs: Sequence[dict[str, object]]) -> list[dict[str, Any]]:
    """Run one process of tests.bench.`module` per job and return the JSON object that each prints.

    A sender reads its job from its first line of input, prints "ready", and begins when the next line comes, so that
    all begin together. Raises `LoadError`.
    """
    command = [sys.executable, "-m", f"tests.bench.{module}"]
    with ExitStack() as stack:
        senders = [
            stack.enter_context(started(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) for _ in jobs
        ]
        for sender, job in zip(senders, jobs, strict=True):
            _write(sender, json.dumps(job))
        for sender in senders:
            assert sender.stdout is not None
            if sender.stdout.readline().strip() != "ready":
                raise LoadError(f"{module}: a sender did not become ready")
        for sender in senders:
            _write(sender, "go")
        answers = [sender.communicate()[0] for sender in senders]
    return [json.loads(answer) for answer in answers]


def receive_job() -> dict[str, Any]:
    """Read a sender's job from its first line of input."""
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    return job


def await_start() -> None:
    """Report that a sender is ready, and wait until all are."""
    print("ready", flush=True)
    sys.stdin.readline()


def _write(sender: "subprocess.Popen[str]", line: str) -> None:
    assert sender.stdin is not None
    sender.stdin.write(line + "\n")
    sender.stdin.flush()
