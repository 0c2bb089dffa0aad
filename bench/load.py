"""Load generators in separate processes: wrk and Python senders. They cycle through the request bodies in a file."""

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

ROOT = Path(__file__).parent.parent
GZIP = {"accept-encoding": "gzip, deflate"}
"""What httpx, requests, the openai package and browsers send by default."""
CLOSE = {"connection": "close"}
END_TIMEOUT_S = 10


def progress(line: str) -> None:
    print(line, flush=True)


class LoadError(Exception):
    """A sender failed. The message names it."""


@dataclass(frozen=True)
class Load:
    """A load on a URL over several connections. `bodies` is a file with one JSON body per line."""

    url: str
    connections: int
    bodies: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answered:
    """Responses under a load. `failed` counts non-2xx responses and lost connections. Latencies include all
    responses; `max_ms` is the longest one.
    """

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    failed: int
    bytes: int = 0
    max_ms: float = 0.0

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


@contextmanager
def bodies_file(bodies: Sequence[object], paths: Sequence[str] = ()) -> Iterator[str]:
    """Write a temporary file with one JSON body per line, preceded by its path if `paths` is not empty."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        heads = [f"{path}\t" for path in paths] or [""] * len(bodies)
        file.writelines(f"{head}{json.dumps(body)}\n" for head, body in zip(heads, bodies, strict=True))
        file.flush()
        yield file.name


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[str]"]:
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
    """Start wrk. Get its figures from `wrk_result`."""
    command = ["wrk", "-t1", f"-c{load.connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s",
               "-s", str(Path(__file__).parent / "load.lua"), load.url]  # fmt: skip
    headers = "\n".join(f"{name}: {value}" for name, value in load.headers.items())
    environment = os.environ | {"BENCH_BODIES": load.bodies, "BENCH_HEADERS": headers}
    with started(command, env=environment, stdout=subprocess.PIPE) as process:
        yield process


def wrk_result(process: "subprocess.Popen[str]", stop: bool = False) -> Answered:
    """Wait for wrk or stop it, and parse the line printed by its script. Raises `LoadError`."""
    if stop:
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    line = next((line for line in out.splitlines() if line.startswith("BENCH ")), None)
    if line is None:
        raise LoadError(f"wrk ended with {process.returncode} and no figures: {out}")
    return Answered(**json.loads(line.removeprefix("BENCH ")))


def run_wrk(load: Load, seconds: float) -> Answered:
    with started_wrk(load, seconds) as process:
        return wrk_result(process)


def run_senders(module: str, jobs: Sequence[dict[str, object]]) -> list[dict[str, Any]]:
    """Run one bench.`module` process per job and return the JSON object that each prints.

    A sender reads its job from its first line of input, prints "ready", and starts after the next line, so that all
    senders start together. Raises `LoadError`.
    """
    command = [sys.executable, "-m", f"bench.{module}"]
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
        outputs = [sender.communicate()[0] for sender in senders]
    return [json.loads(output) for output in outputs]


def receive_job() -> dict[str, Any]:
    """Read a sender's job from its first line of input."""
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    return job


def await_start() -> None:
    """Report that the sender is ready, and wait for the start signal."""
    print("ready", flush=True)
    sys.stdin.readline()


def _write(sender: "subprocess.Popen[str]", line: str) -> None:
    assert sender.stdin is not None
    sender.stdin.write(line + "\n")
    sender.stdin.flush()
