"""Verdicts and their margins."""

import math

import pytest

from tests.bench.targets import TARGETS, Verdict, all_passed, judge, not_measured


def test_verdict_names_margin_when_target_is_reached() -> None:
    verdict = judge("p8", 0.945)
    assert verdict.passed is True
    assert verdict.describe() == "pass  C2   P8: 0.945 (>= 0.9 of the limit, by 5%)"


def test_verdict_names_margin_when_target_is_missed() -> None:
    verdict = judge("rejection_tail", 100)
    assert verdict.passed is False
    assert verdict.describe() == "FAIL  C9   p99 of rejections at 4 x capacity: 100 (<= 50 ms, by 100%)"


@pytest.mark.parametrize("key", ["p8", "rejection_tail"])
def test_verdict_fails_without_margin_when_measurement_is_nan(key: str) -> None:
    verdict = judge(key, math.nan)
    assert verdict.passed is False
    assert ", by" not in verdict.describe()


def test_target_of_zero_is_exact() -> None:
    assert judge("failed", 0).passed is True
    assert judge("failed", 1).describe() == "FAIL       failed requests: 1 (<= 0)"


def test_cosine_is_printed_with_7_decimals() -> None:
    assert "0.9999519" in judge("bfloat16", 0.9999519).describe()


def test_verdict_without_a_measurement_does_not_fail_the_run() -> None:
    verdict = not_measured("peers_p8", "no peer was measured")
    assert verdict.describe() == "--    C5   P8: not measured, no peer was measured"
    assert all_passed([verdict, judge("at_rest", 200)])
    assert not all_passed([verdict, judge("at_rest", 700)])


def test_every_cpu_target_has_a_number() -> None:
    names = {target.name for target in TARGETS.values()}
    assert {f"C{number}" for number in range(1, 15)} <= names
    assert all(isinstance(Verdict(target, 0.0).passed, bool) for target in TARGETS.values())
