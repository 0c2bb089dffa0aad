"""Callers (C20): the p99 of one caller's sentences while another caller floods the server.

The reference is its p99 beside another caller with the same load. The target is for a flood that has run for `RAMP_S`;
the p99 of seconds that include its start, when all connections send their first request at once, is printed as well.
"""

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.load import GZIP, Answered, Load, bodies_file, run_wrk, started_wrk, wrk_result
from bench.machine import Machine, load_average
from bench.project import Model, attend_body, encode_body
from bench.workloads import read_corpus
from tests.conftest import serving

CONNECTIONS = 4
SECONDS = 8.0
RAMP_S = 3.0
ALLOWED = 2.0
BULK_TEXTS = 256


@dataclass(frozen=True)
class Flood:
    """Requests of one kind over several connections."""

    name: str
    kind: str
    connections: int


FLOODS = (
    Flood("one sentence, 1 connection", "sentence", 1),
    Flood("one sentence, 64 connections", "sentence", 64),
    Flood("one sentence, 1000 connections", "sentence", 1000),
    Flood("256 passages, 1 connection", "bulk", 1),
    Flood("256 passages, 32 connections", "bulk", 32),
    Flood("attention maps, 32 connections", "attend", 32),
)


def main(arguments: Sequence[str]) -> int:
    """Measure all floods; return 0 if each keeps the p99 within twice the reference."""
    parser = argparse.ArgumentParser(prog="python -m bench.callers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    seconds = parser.parse_args(arguments).seconds
    corpus = read_corpus(Model.default().tokenizer(), 300)
    print(f"{Machine.read().describe()}, {load_average()}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        keys = Path(folder, "keys")
        keys.write_text("".join(f"{name}:{hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("a", "b")))
        server = stack.enter_context(serving(api_keys_file=keys))
        passages = [corpus.passages[place % len(corpus.passages)][0] for place in range(BULK_TEXTS)]
        bodies = {
            "sentence": [encode_body([text]) for text, _ in corpus.sentences],
            "bulk": [encode_body(passages)],
            "attend": [attend_body(text, unit="word", head_reduce="mean") for text, _ in corpus.sentences],
        }
        files = {kind: stack.enter_context(bodies_file(items)) for kind, items in bodies.items()}

        def load(caller: str, kind: str, connections: int) -> Load:
            path = "attend" if kind == "attend" else "encode"
            headers = {**GZIP, "authorization": f"Bearer {caller}"}
            return Load(f"{server.rest}/v1/{path}", connections, files[kind], headers)

        def measure(flood: Flood, ramp_s: float = RAMP_S) -> tuple[Answered, Answered]:
            with started_wrk(load("b", flood.kind, flood.connections), seconds + 60) as wrk:
                time.sleep(ramp_s)
                figure = run_wrk(load("a", "sentence", CONNECTIONS), seconds)
                return figure, wrk_result(wrk, stop=True)

        run_wrk(load("a", "sentence", CONNECTIONS), 2.0)  # warm-up
        alone = run_wrk(load("a", "sentence", CONNECTIONS), seconds)
        print(f"alone: p99 {alone.p99_ms:.0f} ms, p50 {alone.p50_ms:.0f} ms")
        met = True
        for flood in FLOODS:
            reference, _ = measure(Flood("", "sentence", CONNECTIONS))
            figure, other = measure(flood)
            started, _ = measure(flood, ramp_s=0)
            ratio = figure.p99_ms / reference.p99_ms
            met = met and ratio <= ALLOWED and not figure.failed
            print(
                f"{flood.name}: p99 {figure.p99_ms:.0f} ms, {ratio:.1f} x {reference.p99_ms:.0f} ms ({ALLOWED:g}), "
                f"p50 {figure.p50_ms:.0f} and {reference.p50_ms:.0f} ms, {figure.failed} failed; "
                f"flood {other.per_second:.0f}/s, {other.failed} rejected; with its start: p99 {started.p99_ms:.0f} ms"
            )
    print(load_average())
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
