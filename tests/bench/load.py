"""Load from outside: wrk, and senders of our own, each in its own processes, sending the bodies of a file in turn."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
END_TIMEOUT_S = 10


class LoadError(Exception):
    """A sender could not do its work; the message says which."""


@dataclass(frozen=True)
class Load:
    """What is sent where, over how many connections; `bodies` is a file with one JSON body a line."""

    url: str
    connections: int
    bodies: str


@dataclass(frozen=True)
class Answered:
    """What came of it."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    failed: int

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


@contextmanager
def bodies_file(bodies: Sequence[object]) -> Iterator[str]:
    """A file of JSON bodies, one a line, for as long as the block lasts."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(body) + "\n" for body in bodies)
        file.flush()
        yield file.name


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """A process that ends with the block, whatever ends the block."""
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
    """Wrk, running; read it with `wrk_answer`."""
    command = ["wrk", "-t1", f"-c{load.connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s",
               "-s", str(Path(__file__).parent / "load.lua"), load.url]  # fmt: skip
    environment = os.environ | {"BENCH_BODIES": load.bodies}
    with started(command, env=environment, stdout=subprocess.PIPE) as process:
        yield process


def wrk_answer(process: "subprocess.Popen[str]") -> Answered:
    """Wait for wrk and read the line that its script prints."""
    out, _ = process.communicate()
    line = next((line for line in out.splitlines() if line.startswith("BENCH ")), None)
    if line is None:
        raise LoadError(f"wrk ended with {process.returncode} and no figures: {out}")
    return Answered(**json.loads(line.removeprefix("BENCH ")))


def run_wrk(load: Load, seconds: float) -> Answered:
    with started_wrk(load, seconds) as process:
        return wrk_answer(process)


def run_senders(module: str, jobs: Sequence[dict[str, object]]) -> list[dict[str, Any]]:
    """One process of tests.bench.`module` a job; they start sending together, and each gives one JSON object.

    A sender reads its job from its first line of input, says "ready", and begins when the next line comes.
    """
    command = [sys.executable, "-m", f"tests.bench.{module}"]
    with ExitStack() as stack:
        senders = [
            stack.enter_context(started(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) for _ in jobs
        ]
        for sender, job in zip(senders, jobs, strict=True):
            _tell(sender, json.dumps(job))
        for sender in senders:
            assert sender.stdout is not None
            if sender.stdout.readline().strip() != "ready":
                raise LoadError(f"{module}: a sender did not become ready")
        for sender in senders:
            _tell(sender, "go")
        answers = [sender.communicate()[0] for sender in senders]
    return [json.loads(answer) for answer in answers]


def receive_job() -> dict[str, Any]:
    """A sender's first line: what it is to do."""
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    return job


def await_start() -> None:
    """Say that all is prepared, and wait for the others."""
    print("ready", flush=True)
    sys.stdin.readline()


def _tell(sender: "subprocess.Popen[str]", line: str) -> None:
    assert sender.stdin is not None
    sender.stdin.write(line + "\n")
    sender.stdin.flush()
