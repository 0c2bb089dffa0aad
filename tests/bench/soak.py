"""`make soak`: W1 over 16 connections for an hour, or `SOAK` seconds, and whether memory grows meanwhile (C8).

The first quarter is left out: caches and allocators fill. A straight line through the rest says what grew in it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from model.artifact import Artifact
from model.tokenizer import Tokenizer
from service.config import load_settings
from tests.bench.bars import Verdict, all_reached, at_most
from tests.bench.load import ROOT, Answered, Load, bodies_file, started_wrk, wrk_answer
from tests.bench.plots import plot_soak
from tests.bench.report import DIRECTORY, clean
from tests.bench.startup import resident_mib
from tests.bench.workloads import read_corpus
from tests.conftest import start_server, stop_server

HOUR_S, MOST_S = 3600, 24 * 3600
SAMPLES = 360
LEFT_OUT = 0.25
GROWTH_BAR = 0.02
CONNECTIONS = 16


@dataclass(frozen=True)
class Soak:
    """Seconds from the start and MiB at each, and what was answered meanwhile."""

    seconds: list[float]
    mib: list[float]
    answered: Answered

    @property
    def mib_per_hour(self) -> float:
        """The slope of what is counted."""
        return slope(*self._counted()) * HOUR_S

    def verdicts(self) -> list[Verdict]:
        seconds, mib = self._counted()
        grown = slope(seconds, mib) * (seconds[-1] - seconds[0]) / mib[0]
        return [
            at_most("C8", f"growth of memory over {seconds[-1] - seconds[0]:.0f} s", grown, GROWTH_BAR, "of it"),
            at_most("", "failed requests", self.answered.failed, 0),
        ]

    def _counted(self) -> tuple[list[float], list[float]]:
        first = int(len(self.seconds) * LEFT_OUT)
        return self.seconds[first:], self.mib[first:]


def slope(seconds: Sequence[float], mib: Sequence[float]) -> float:
    """MiB a second, by least squares."""
    return float(np.polyfit(seconds, mib, 1)[0])


def soak(seconds: float) -> Soak:
    """Serve, load, and sample the server's resident memory."""
    settings = load_settings(environ={})
    artifact = Artifact.open(ROOT / settings.model_dir)
    corpus = read_corpus(Tokenizer(artifact.read("tokenizer.json")))
    every = max(0.5, seconds / SAMPLES)
    times: list[float] = []
    mib: list[float] = []
    server = start_server(model_dir=artifact.root)
    try:
        with bodies_file([{"inputs": text} for text, _ in corpus.sentences]) as bodies:
            load = Load(f"{server.rest}/v1/encode", CONNECTIONS, bodies)
            started = said = time.monotonic()
            with started_wrk(load, seconds) as wrk:
                while True:
                    try:
                        wrk.wait(every)
                        break
                    except subprocess.TimeoutExpired:
                        now = time.monotonic()
                    times.append(now - started)
                    mib.append(resident_mib(server.pid))
                    if now - said >= max(10.0, seconds / 20):
                        said = now
                        print(f"{times[-1]:6.0f} of {seconds:.0f} s  {mib[-1]:.1f} MiB", flush=True)
                answered = wrk_answer(wrk)
    finally:
        stop_server(server)
    return Soak(times, mib, answered)


def main(arguments: Sequence[str]) -> int:
    seconds = float(arguments[0]) if arguments else HOUR_S
    if not 10 <= seconds <= MOST_S:
        print(f"soak: {seconds:g} s; between 10 and {MOST_S}", file=sys.stderr)
        return 2
    try:
        found = soak(seconds)
    except KeyboardInterrupt:
        print("\nstopped; nothing was written", file=sys.stderr)
        return 130
    answered = found.answered
    print(
        f"{answered.requests} requests in {answered.seconds:.0f} s, {answered.per_second:.0f}/s, "
        f"p50 {answered.p50_ms:.1f} ms, p99 {answered.p99_ms:.1f} ms, {answered.failed} failed\n"
        f"memory {found.mib[0]:.1f} MiB at first, {found.mib[-1]:.1f} at last, slope {found.mib_per_hour:+.1f} MiB/h"
    )
    verdicts = found.verdicts()
    print("\n".join(verdict.describe() for verdict in verdicts))
    DIRECTORY.mkdir(exist_ok=True)
    record = clean(asdict(found) | {"mib_per_hour": found.mib_per_hour, "bars": [v.describe() for v in verdicts]})
    (DIRECTORY / "soak.json").write_text(json.dumps(record, indent=1))
    plot_soak(found.seconds, found.mib, DIRECTORY)
    return 0 if all_reached(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
