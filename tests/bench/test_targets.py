"""The judge of bars."""

import math

import pytest

from tests.bench.bars import all_reached, at_least, at_most, unmeasured


def test_a_bar_to_reach_says_by_how_much_it_was_passed() -> None:
    verdict = at_least("C2", "P8", 0.87, 0.75, "of the ceiling")
    assert verdict.reached is True
    assert verdict.describe() == "pass   C2  P8: 0.87 (>= 0.75 of the ceiling, by 16%)"


def test_a_bar_to_stay_under_says_by_how_much_it_was_missed() -> None:
    verdict = at_most("C4", "p50 of W1 c=1", 3.0, 1.5, "x a bare run")
    assert verdict.reached is False
    assert verdict.describe() == "SHORT  C4  p50 of W1 c=1: 3 (<= 1.5 x a bare run, by 100%)"


@pytest.mark.parametrize("verdict", [at_least("C1", "W32", math.nan, 0.7), at_most("C9", "p99", math.nan, 50)])
def test_what_is_not_a_number_reaches_nothing(verdict: object) -> None:
    assert verdict.reached is False  # type: ignore[attr-defined]


def test_a_bar_of_zero_is_exact() -> None:
    assert at_most("", "failed requests", 0, 0).reached is True
    assert at_most("", "failed requests", 1, 0).describe() == "SHORT      failed requests: 1 (<= 0)"


def test_what_was_not_measured_is_said_and_does_not_count() -> None:
    verdict = unmeasured("C5", "P8 beside infinity", "no engine of it took part")
    assert verdict.describe() == "--     C5  P8 beside infinity: not measured, no engine of it took part"
    assert all_reached([verdict, at_most("C10", "memory", 200, 600)])
    assert not all_reached([verdict, at_most("C10", "memory", 700, 600)])


def test_what_is_not_a_number_has_no_margin() -> None:
    assert (
        at_most("C9", "p99 of refusals", math.nan, 50, "ms").describe() == "SHORT  C9  p99 of refusals: nan (<= 50 ms)"
    )
