"""Open-loop workload OL (C9): W1 at multiples of the capacity. Overload must not reduce goodput."""

import math
import time
from collections.abc import Sequence

from bench.load import GZIP, Load, bodies_file, progress
from bench.open_loop import Offered, run_open
from bench.project import encode_body
from bench.targets import Verdict, judge
from tests.conftest import RunningServer

SHARES = (0.5, 0.8, 1.0, 2.0, 4.0)
CAPACITY_SHARE = SHARES.index(1.0)
SETTLE_S = 1.0
WARM_UP_S = 2.0


def measure_overload(
    server: RunningServer,
    texts: Sequence[str],
    capacity: float,
    seconds: float,
    queue_ms: int,
) -> list[Offered]:
    """Offer increasing multiples of `capacity` (requests per second), each for `seconds` after the queue has filled."""
    results = []
    with bodies_file([encode_body([text]) for text in texts]) as bodies:
        load = Load(f"{server.rest}/v1/encode", 0, bodies, GZIP)
        for share in SHARES:
            results.append(run_open(load, share * capacity, seconds_to_fill(share, queue_ms), seconds, server.pid))
            progress(f"OL {share:<4g} {results[-1].describe()}")
            time.sleep(SETTLE_S)
    return results


def seconds_to_fill(share: float, queue_ms: int) -> float:
    """Return the seconds until the queue wait reaches its limit under a load over capacity."""
    return WARM_UP_S if share <= 1 else WARM_UP_S + queue_ms / 1000 / (share - 1)


def judge_overload(results: Sequence[Offered], queue_ms: int) -> list[Verdict]:
    """Return the verdicts on the last result, the one with the highest load."""
    peak = max(result.goodput for result in results)
    highest = results[-1]
    return [
        judge("goodput", highest.goodput / peak if peak else math.nan),
        judge("rejection_tail", highest.rejection_p99_ms),
        judge("rejection_cpu", rejection_cpu_ms(results)),
        judge("accepted_tail", highest.p99_ms - queue_ms),
    ]


def rejection_cpu_ms(results: Sequence[Offered]) -> float:
    """Return the event loop's CPU time per rejection at the highest load, in milliseconds.

    This assumes that an accepted request costs the same CPU time as at capacity, and attributes the rest to rejections.
    """
    capacity, highest = results[CAPACITY_SHARE], results[-1]
    if not highest.rejected:
        return math.nan
    answered = highest.goodput + highest.rejected
    spent = highest.loop_ms_per_request * answered - capacity.loop_ms_per_request * highest.goodput
    return max(0.0, spent / highest.rejected)
