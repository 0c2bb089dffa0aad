"""Whether memory grew, judged from samples."""

import pytest

from tests.bench.load import Answered
from tests.bench.soak import Soak, slope

ANSWERED = Answered(requests=1000, seconds=100, p50_ms=1, p99_ms=2, failed=0)
SECONDS = [float(second) for second in range(100)]


def test_the_slope_is_of_a_straight_line() -> None:
    assert slope([0.0, 1.0, 2.0], [100.0, 101.0, 102.0]) == pytest.approx(1.0)


def test_what_grows_only_at_first_is_flat() -> None:
    found = Soak(SECONDS, [200 + min(second, 20) for second in SECONDS], ANSWERED)
    assert found.mib_per_hour == pytest.approx(0, abs=1e-6)
    assert all(verdict.reached for verdict in found.verdicts())


def test_what_goes_on_growing_falls_short() -> None:
    found = Soak(SECONDS, [200 + second / 10 for second in SECONDS], ANSWERED)
    assert found.mib_per_hour == pytest.approx(360)
    assert found.verdicts()[0].reached is False
