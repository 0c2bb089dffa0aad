"""How long a queue takes to fill, and the judge of what was offered."""

import math

import pytest

from tests.bench.open_loop import Offered
from tests.bench.overload import MOST_FILL_S, SHARES, judge, time_to_fill


def offered(goodput: float, refusal_ms: float = 5.0) -> Offered:
    return Offered(100, 100, goodput, 0, 0, 1, 2, refusal_ms, refusal_ms, 0)


def test_a_queue_fills_only_when_more_comes_than_is_answered() -> None:
    assert time_to_fill(1.0, 500, 65536) == time_to_fill(0.5, 500, 65536)
    assert time_to_fill(4.0, 500, 65536) < time_to_fill(2.0, 500, 65536)
    assert time_to_fill(2.0, 1, 65536) == MOST_FILL_S


@pytest.mark.parametrize(("last", "reached"), [(95.0, True), (80.0, False)])
def test_goodput_at_the_most_is_held_against_the_peak(last: float, reached: bool) -> None:
    goodput, refusals = judge([*[offered(100)] * (len(SHARES) - 1), offered(last)])
    assert goodput.reached is reached
    assert refusals.reached is True


def test_nothing_answered_and_nothing_refused_fall_short() -> None:
    assert [verdict.reached for verdict in judge([offered(0, math.nan)])] == [False, False]
