"""Memory verdicts, and soak requests."""

import httpx
import pytest

from tests.bench.load import Answered
from tests.bench.project import Model
from tests.bench.soak import Soak
from tests.bench.soak_requests import draw_requests
from tests.bench.workloads import Corpus, read_corpus

ANSWERED = Answered(requests=1000, seconds=100, p50_ms=1, p99_ms=2, failed=0)
SECONDS = [10.0 * step for step in range(1, 101)]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return read_corpus(Model.default().tokenizer(), 200)


def test_memory_passes_when_it_grows_only_initially() -> None:
    soak = Soak(SECONDS, [200 + min(second, 250) / 10 for second in SECONDS], 300, ANSWERED, 0)
    assert [verdict.passed for verdict in soak.verdicts()] == [True, True, True]


def test_memory_fails_when_it_keeps_growing() -> None:
    soak = Soak(SECONDS, [200 + second / 10 for second in SECONDS], 1000, ANSWERED, 0)
    assert [verdict.passed for verdict in soak.verdicts()] == [False, False, True]


def test_growth_is_not_measured_when_the_soak_is_short() -> None:
    assert Soak([10.0, 20.0], [200.0, 300.0], 300, ANSWERED, 0).verdicts()[0].passed is None


@pytest.mark.slow
def test_drawn_requests_are_accepted(rest: httpx.Client, corpus: Corpus) -> None:
    drawn = draw_requests(str(rest.base_url).rstrip("/"), corpus, 120)
    assert len(drawn) > 60
    assert {"/v1/encode", "/v1/attend", "/v1/compare"} <= {path for path, _ in drawn}
    for path, body in drawn[:20]:
        assert rest.post(path, json=body).status_code == 200, body
