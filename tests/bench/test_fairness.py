"""Verdicts on fairness."""

from dataclasses import replace

import pytest

from tests.bench.bulk_load import BulkFigure
from tests.bench.fairness import FairnessFigures, tail_ratio
from tests.bench.load import Answered

SINGLE = Answered(requests=1000, seconds=10, p50_ms=10, p99_ms=20, failed=0)
BULK = BulkFigure(answered=10, failed=0, seconds=10)
FIGURES = FairnessFigures(SINGLE, BULK, SINGLE, BULK, SINGLE, BULK)


@pytest.mark.parametrize(("alone", "beside", "ratio"), [(20, 60, 3.0), (20, 160, 4.0), (20, 200, 10.0)])
def test_tail_increase_of_at_most_150_ms_passes(alone: float, beside: float, ratio: float) -> None:
    assert tail_ratio(alone, beside) == pytest.approx(ratio)


def test_fairness_passes_when_figures_are_equal() -> None:
    assert {verdict.passed for verdict in FIGURES.verdicts()} == {True}


def test_fairness_fails_when_the_bulk_client_starves() -> None:
    starved = replace(FIGURES, bulk_beside_many=BulkFigure(answered=0, failed=1, seconds=60))
    assert [verdict.passed for verdict in starved.verdicts()[-2:]] == [False, False]
