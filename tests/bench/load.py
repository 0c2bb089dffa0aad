"""Load from outside: wrk in its own process, posting the bodies of a file in turn."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


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


def run_wrk(load: Load, seconds: float) -> Answered:
    """Run wrk and read the line that its script prints."""
    command = ["wrk", "-t1", f"-c{load.connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s",
               "-s", str(Path(__file__).parent / "load.lua"), load.url]  # fmt: skip
    environment = os.environ | {"BENCH_BODIES": load.bodies}
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    line = next(line for line in out.splitlines() if line.startswith("BENCH "))
    return Answered(**json.loads(line.removeprefix("BENCH ")))
