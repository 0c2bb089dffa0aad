"""The event loop (C21): throughput of a server with a fast, simulated device."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.costs import infer_body
from bench.load import GZIP, Answered, Load, bodies_file, progress, run_wrk
from bench.project import encode_body, served_name
from bench.rpc_load import run_rpc
from bench.simulated_device import DEVICE_FILE
from bench.targets import Verdict, judge
from bench.workloads import Corpus
from tests.conftest import RunningServer, serving

CONNECTIONS = (1, 16, 64, 256, 512)
TEXTS = 32
REQUESTS = 256
"""Number of distinct requests per workload."""
WORKLOADS = ("W1", "W32 JSON", "W32 base64", "W32 gRPC", "W32 OIP binary")
SINGLE = "W1"
SHARED, SHARED_CONNECTIONS = "W32 base64", 64
"""The workload, and its number of connections, for comparing the CPU time per text of two workers and of one."""
WORKERS = (1, 2)
CROWD = 512
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class LoopFigure:
    """A workload over some connections: texts per second, and the server's CPU time per text in microseconds.

    Requests of 32 texts over hundreds of connections exceed the queue limit; rejected ones do not count.
    """

    workload: str
    workers: int
    connections: int
    texts_per_second: float
    cpu_us: float
    answered: Answered

    def describe(self) -> str:
        times = self.answered
        return (
            f"{self.workload:<15} {self.workers:>7} {self.connections:>11} {self.texts_per_second:>9.0f} "
            f"{self.cpu_us:>10.1f} {times.p50_ms:>8.1f} {times.p99_ms:>8.1f} {times.max_ms:>8.1f} {times.failed:>7}"
        )


HEAD = "workload        workers connections   texts/s us CPU/text  p50 ms   p99 ms   max ms  failed"


@dataclass(frozen=True)
class LoopFigures:
    """All figures."""

    figures: list[LoopFigure]

    def describe(self) -> str:
        return "\n".join([HEAD, *(figure.describe() for figure in self.figures)])

    def verdicts(self) -> list[Verdict]:
        found = {(figure.workload, figure.workers, figure.connections): figure for figure in self.figures}
        times = found[SINGLE, 1, CROWD].answered
        one, two = (found[SHARED, workers, SHARED_CONNECTIONS].cpu_us for workers in WORKERS)
        return [
            judge("loop_tail", times.p99_ms / times.p50_ms),
            judge("loop_longest", times.max_ms / times.p50_ms),
            judge("loop_workers", two / one),
            judge("failed", times.failed, f"{SINGLE} c={CROWD}, simulated device"),
        ]


def measure_loop(model_dir: Path, corpus: Corpus, seconds: float) -> LoopFigures:
    """Measure every workload over every number of connections."""
    texts = [text for text, _ in corpus.sentences]
    figures = []
    progress(f"simulated device\n{HEAD}")
    for workers in WORKERS:
        with (
            tempfile.NamedTemporaryFile() as device,
            patch.dict(os.environ, {DEVICE_FILE: device.name}),
            serving(module="bench.simulated_device", model_dir=model_dir, workers=workers) as server,
        ):
            for workload in WORKLOADS:
                with bodies_file(_bodies(workload, texts)) as bodies:
                    for connections in CONNECTIONS:
                        figure = _measure(server, workload, workers, connections, bodies, seconds)
                        progress(figure.describe())
                        figures.append(figure)
    return LoopFigures(figures)


def _bodies(workload: str, texts: Sequence[str]) -> list[dict[str, Any]]:
    if workload == SINGLE:
        return [encode_body([text]) for text in texts[:REQUESTS]]
    batches = [[texts[(start + place) % len(texts)] for place in range(TEXTS)] for start in range(REQUESTS)]
    if workload == "W32 OIP binary":
        return [infer_body(batch, binary=True) for batch in batches]
    return [encode_body(batch, "base64" if workload == "W32 base64" else "float") for batch in batches]


def _measure(
    server: RunningServer, workload: str, workers: int, connections: int, bodies: str, seconds: float
) -> LoopFigure:
    before = cpu_seconds(server.pid)
    if workload == "W32 gRPC":
        answered = run_rpc(Load(server.grpc, connections, bodies), seconds, processes=1)
    else:
        path = f"/v2/models/{served_name(server.rest)}/infer" if "OIP" in workload else "/v1/encode"
        answered = run_wrk(Load(f"{server.rest}{path}", connections, bodies, GZIP), seconds)
    succeeded = answered.requests - (0 if workload == "W32 gRPC" else answered.failed)  # wrk counts all responses
    accepted = succeeded * (1 if workload == SINGLE else TEXTS)
    cpu_us = (cpu_seconds(server.pid) - before) / accepted * 1e6
    return LoopFigure(workload, workers, connections, accepted / answered.seconds, cpu_us, answered)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_seconds(int(child)) for child in children)
