"""Computations and verdicts for the overload workload."""

import math

import pytest

from tests.bench.open_loop import Offered
from tests.bench.overload import SHARES, judge_overload, rejection_cpu_ms, seconds_to_fill


def offered(goodput: float, rejected: float = 0.0, rejection_ms: float = 5.0, loop_ms: float = 0.5) -> Offered:
    return Offered(100, 100, goodput, rejected, 0, 0, 1, 2, rejection_ms, rejection_ms, 0, loop_ms)


def test_queue_fills_faster_at_a_higher_load() -> None:
    assert seconds_to_fill(1.0, 2000) == seconds_to_fill(0.5, 2000)
    assert seconds_to_fill(4.0, 2000) < seconds_to_fill(2.0, 2000)


@pytest.mark.parametrize(("last", "passed"), [(95.0, True), (80.0, False)])
def test_goodput_at_the_highest_load_is_compared_with_the_peak(last: float, passed: bool) -> None:
    verdicts = judge_overload([*[offered(100)] * (len(SHARES) - 1), offered(last, rejected=300)], 2000)
    assert [verdict.passed for verdict in verdicts[:2]] == [passed, True]


def test_verdicts_fail_without_responses() -> None:
    verdicts = judge_overload([offered(0, 0, math.nan, math.nan)] * len(SHARES), 2000)
    assert [verdict.passed for verdict in verdicts[:3]] == [False, False, False]


def test_rejection_cost_excludes_accepted_requests() -> None:
    # 100 accepted requests at 0.5 ms and 300 rejections at 0.1 ms take 80 ms for 400 responses.
    results = [*[offered(100)] * (len(SHARES) - 1), offered(100, rejected=300, loop_ms=80 / 400)]
    assert rejection_cpu_ms(results) == pytest.approx(0.1)
