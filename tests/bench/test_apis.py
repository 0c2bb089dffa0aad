"""Verdicts on the cost of other APIs and on several models."""

from dataclasses import replace

import pytest

from tests.bench.apis import ApiFigures
from tests.bench.load import Answered
from tests.bench.models import ModelFigures

SINGLE = Answered(requests=1000, seconds=10, p50_ms=10, p99_ms=20, failed=0)


def test_cost_is_the_median_of_the_rounds() -> None:
    figures = ApiFigures({"native": [100, 50, 80], "tei": [100, 40, 20], "oip": [100, 50, 80]}, 0)
    assert (figures.cost("tei"), figures.cost("oip")) == (1.25, 1.0)
    assert [verdict.passed for verdict in figures.verdicts()] == [False, True, True]
    assert [verdict.passed for verdict in replace(figures, failed=1).verdicts()][-1] is False


@pytest.mark.parametrize(("p99_ms", "failed", "passed"), [(79, 0, [True, True]), (81, 0, [False, True]),
                                                         (20, 1, [True, False])])  # fmt: skip
def test_tail_beside_another_model_is_judged(p99_ms: float, failed: int, passed: list[bool]) -> None:
    beside = replace(SINGLE, p99_ms=p99_ms, failed=failed)
    figures = ModelFigures([SINGLE] * 3, [replace(SINGLE, p99_ms=500), beside, replace(beside, p99_ms=1)])
    assert [verdict.passed for verdict in figures.verdicts()] == [passed[0], failed == 0 and passed[1]]
