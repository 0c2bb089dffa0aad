"""`make soak`: memory growth (C8) under mixed requests over 16 connections, for an hour or `SOAK` seconds."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from bench.load import GZIP, Answered, Load, bodies_file, started_wrk, wrk_result
from bench.machine import Machine
from bench.plots import plot_soak
from bench.project import Model
from bench.report import DIRECTORY, clean
from bench.soak_requests import draw_requests
from bench.startup import resident_mib
from bench.targets import Verdict, all_passed, judge, not_measured
from bench.workloads import read_corpus
from tests.conftest import start_server, stop_server

HOUR_S, MAX_S = 3600, 24 * 3600
SETTLED_S = 300
SAMPLES = 360
REQUESTS = 2000
CONNECTIONS = 16


@dataclass(frozen=True)
class Soak:
    """Memory samples (time in seconds, resident MiB), the peak memory, and the responses."""

    seconds: list[float]
    mib: list[float]
    peak_mib: float
    answered: Answered
    server_errors: float

    def verdicts(self) -> list[Verdict]:
        settled = [mib for second, mib in zip(self.seconds, self.mib, strict=True) if second >= SETTLED_S]
        growth = (
            judge("soak_growth", abs(self.mib[-1] - settled[0]) / settled[0], f"over {self.seconds[-1]:.0f} s")
            if self.seconds[-1] >= 2 * SETTLED_S
            else not_measured("soak_growth", f"{self.seconds[-1]:.0f} s are too short")
        )
        return [growth, judge("soak_peak", self.peak_mib), judge("soak_errors", self.server_errors)]

    def describe(self) -> str:
        answered = self.answered
        return (
            f"{answered.requests} requests in {answered.seconds:.0f} s, {answered.per_second:.0f}/s, "
            f"p50 {answered.p50_ms:.1f} ms, p99 {answered.p99_ms:.1f} ms, {answered.failed} rejected or failed\n"
            f"memory {self.mib[0]:.1f} MiB first, {self.mib[-1]:.1f} last, {self.peak_mib:.1f} at most"
        )


def soak(seconds: float) -> Soak:
    """Start a server, send requests, and sample its resident memory."""
    model = Model.default()
    corpus = read_corpus(model.tokenizer())
    interval = max(0.5, seconds / SAMPLES)
    times: list[float] = []
    mib: list[float] = []
    server = start_server(model_dir=model.directory)
    try:
        drawn = draw_requests(server.rest, corpus, REQUESTS)
        with bodies_file([body for _, body in drawn], [path for path, _ in drawn]) as bodies:
            started = reported = time.monotonic()
            with started_wrk(Load(server.rest, CONNECTIONS, bodies, GZIP), seconds) as wrk:
                while wrk.poll() is None and time.monotonic() - started < seconds + interval:
                    try:
                        wrk.wait(interval)
                        break
                    except subprocess.TimeoutExpired:
                        now = time.monotonic()
                    times.append(now - started)
                    mib.append(resident_mib(server.pid))
                    if now - reported >= max(10.0, seconds / 20):
                        reported = now
                        print(f"{times[-1]:6.0f} of {seconds:.0f} s  {mib[-1]:.1f} MiB", flush=True)
                answered = wrk_result(wrk)
        return Soak(times, mib, resident_mib(server.pid, "VmHWM"), answered, _server_errors(server.admin))
    finally:
        stop_server(server)


def _server_errors(admin: str) -> float:
    """Return the number of 5xx responses."""
    metrics = text_string_to_metric_families(httpx.get(f"{admin}/metrics", timeout=30).text)
    return sum(
        sample.value
        for family in metrics
        if family.name == "attendant_requests"
        for sample in family.samples
        if sample.labels.get("code", "").startswith("5")
    )


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every measured target was met."""
    seconds = float(arguments[0]) if arguments else HOUR_S
    if not 10 <= seconds <= MAX_S:
        print(f"soak: {seconds:g} s: out of range (10 to {MAX_S} s)", file=sys.stderr)
        return 2
    try:
        result = soak(seconds)
    except KeyboardInterrupt:
        print("\ninterrupted, no results written", file=sys.stderr)
        return 130
    print(result.describe())
    verdicts = result.verdicts()
    print("\n".join(verdict.describe() for verdict in verdicts))
    DIRECTORY.mkdir(exist_ok=True)
    record = {
        "machine": asdict(Machine.read()),
        **asdict(result),
        "targets": [verdict.describe() for verdict in verdicts],
    }
    (DIRECTORY / "soak.json").write_text(json.dumps(clean(record), indent=1))
    plot_soak(result.seconds, result.mib, DIRECTORY)
    return 0 if all_passed(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
