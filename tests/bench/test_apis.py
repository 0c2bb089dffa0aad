"""Verdicts on the cost of other APIs and of options, on several models and on attendant embed."""

from dataclasses import replace

import pytest

from tests.bench.apis import ApiFigures
from tests.bench.bulk_embed import EmbedFigures, Run
from tests.bench.load import Answered
from tests.bench.models import ModelFigures
from tests.bench.option_cost import OptionFigures

SINGLE = Answered(requests=1000, seconds=10, p50_ms=10, p99_ms=20, failed=0)


def test_cost_is_the_median_of_the_rounds() -> None:
    figures = ApiFigures({"native": [100, 50, 80], "tei": [100, 40, 20], "oip": [100, 50, 80]}, 0)
    assert (figures.cost("tei"), figures.cost("oip")) == (1.25, 1.0)
    assert [verdict.passed for verdict in figures.verdicts()] == [False, True, True]
    assert [verdict.passed for verdict in replace(figures, failed=1).verdicts()][-1] is False


@pytest.mark.parametrize(("name", "limit"), [("tls", 95), ("traces", 97)])
def test_share_with_an_option_is_the_median_of_the_rounds(name: str, limit: int) -> None:
    figures = OptionFigures(name, [100, 50, 80], [limit, 40, 80], 0)
    assert figures.share == limit / 100
    assert [verdict.passed for verdict in figures.verdicts()] == [True, True]
    assert [verdict.passed for verdict in OptionFigures(name, [100], [limit - 1], 1).verdicts()] == [False, False]


@pytest.mark.parametrize(("p99_ms", "failed", "passed"), [(79, 0, [True, True]), (81, 0, [False, True]),
                                                         (20, 1, [True, False])])  # fmt: skip
def test_tail_beside_another_model_is_judged(p99_ms: float, failed: int, passed: list[bool]) -> None:
    beside = replace(SINGLE, p99_ms=p99_ms, failed=failed)
    figures = ModelFigures([SINGLE] * 3, [replace(SINGLE, p99_ms=500), beside, replace(beside, p99_ms=1)])
    assert [verdict.passed for verdict in figures.verdicts()] == [passed[0], failed == 0 and passed[1]]


def test_embed_is_judged_by_rate_memory_and_the_cost_of_ray() -> None:
    figures = EmbedFigures(1000, 20.0, 20_000, Run(950, 10, 900), Run(900, 10.5, 300))
    assert figures.share == pytest.approx(0.95)
    assert [verdict.passed for verdict in figures.verdicts()] == [True] * 3
    slow = replace(figures, plain=Run(850, 10, 1100), ray=Run(900, 11.5, 300))
    assert [verdict.passed for verdict in slow.verdicts()] == [False] * 3
    assert replace(figures, ray=None).verdicts()[-1].passed is None
