"""Fairness (C14): single sentences while one client sends requests of 256 passages back to back."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.bulk_load import BulkFigure
from bench.load import GZIP, Answered, Load, bodies_file, run_senders, run_wrk, started_wrk, wrk_result
from bench.project import encode_body
from bench.targets import TARGETS, Verdict, judge
from tests.conftest import RunningServer

BULK_TEXTS = 256
BULK_BODIES = 4
FEW, MANY = 4, 64
MAX_S = 180.0
ALLOWED_MS = 150.0


@dataclass(frozen=True)
class FairnessFigures:
    """Figures of each client alone, and of the bulk client together with W1 at 4 and at 64."""

    single_alone: Answered
    bulk_alone: BulkFigure
    single_beside: Answered
    bulk_beside: BulkFigure
    many_beside: Answered
    bulk_beside_many: BulkFigure

    def verdicts(self) -> list[Verdict]:
        bulk_failed = self.bulk_beside.failed + self.bulk_beside_many.failed
        return [
            judge("fair_tail", tail_ratio(self.single_alone.p99_ms, self.single_beside.p99_ms)),
            judge("fair_failed", self.single_beside.failed),
            judge("fair_bulk", self.bulk_beside.per_second / self.bulk_alone.per_second),
            judge("fair_progress", self.bulk_beside_many.per_second / self.bulk_alone.per_second),
            judge("fair_deadlines", bulk_failed),
        ]

    def describe(self) -> str:
        bulk = [figure.per_second * BULK_TEXTS for figure in (self.bulk_alone, self.bulk_beside, self.bulk_beside_many)]
        return (
            f"W1 c={FEW} p99 {self.single_alone.p99_ms:.0f} ms, beside {BULK_TEXTS} passages "
            f"{self.single_beside.p99_ms:.0f} ms; passages/s alone {bulk[0]:.0f}, beside W1 c={FEW} {bulk[1]:.0f}, "
            f"beside W1 c={MANY} {bulk[2]:.0f}"
        )


def tail_ratio(alone_ms: float, beside_ms: float) -> float:
    """Return the ratio of the 99th percentiles. An increase of at most 150 ms always passes."""
    ratio = beside_ms / alone_ms
    return min(ratio, TARGETS["fair_tail"].threshold) if beside_ms - alone_ms <= ALLOWED_MS else ratio


def measure_fairness(
    server: RunningServer,
    sentences: Sequence[str],
    passages: Sequence[str],
    seconds: float,
) -> FairnessFigures:
    """Measure each client alone, then both together. W1 runs until the bulk client's last request ends."""
    url = f"{server.rest}/v1/encode"
    ends = range(BULK_BODIES)
    rotated = [[passages[(end + place) % len(passages)] for place in range(BULK_TEXTS)] for end in ends]
    with (
        bodies_file([encode_body([text]) for text in sentences]) as w1,
        bodies_file([encode_body(texts) for texts in rotated]) as bulk,
    ):
        single_alone = run_wrk(Load(url, FEW, w1, GZIP), seconds)
        bulk_alone = _run_bulk(url, bulk, seconds)
        pairs = []
        for connections in (FEW, MANY):
            with started_wrk(Load(url, connections, w1, GZIP), MAX_S) as wrk:
                bulk_beside = _run_bulk(url, bulk, seconds)
                pairs.append((wrk_result(wrk, stop=True), bulk_beside))
    return FairnessFigures(single_alone, bulk_alone, *pairs[0], *pairs[1])


def _run_bulk(url: str, bodies: str, seconds: float) -> BulkFigure:
    (result,) = run_senders("bulk_load", [{"url": url, "bodies": bodies, "seconds": seconds}])
    return BulkFigure(**result)
