"""Closed-loop workloads: requests and ratios."""

from dataclasses import replace

import pytest

from tests.bench.closed_loop import ATTENDANT, BY_NAME, WORKLOADS, Figure, System, median
from tests.bench.limit import LimitFigure
from tests.bench.load import CLOSE, GZIP

LIMIT = LimitFigure(tokens_per_second=10_000, float32_tokens_per_second=5_000, backend="OpenVINO bfloat16")
FIGURE = Figure("W32", ATTENDANT, 900.0, 9000.0, LIMIT, 10.0, 15.0, 0, bare_run_ms=9.5)


def test_peer_request_has_the_fields_of_the_peer() -> None:
    workload = BY_NAME["W32"]
    assert System("infinity onnx", "", model="m").body(["a"], workload) == {"model": "m", "input": ["a"]}
    assert System("st torch", "").body(["a"], workload) == {"inputs": ["a"]}
    assert System(ATTENDANT, "").body(["a"], workload) == {"inputs": ["a"]}


def test_http_workloads_accept_gzip_unless_plain() -> None:
    for workload in WORKLOADS:
        if not workload.grpc:
            assert (GZIP.items() <= dict(workload.headers).items()) != ("plain" in workload.name), workload.name
    assert CLOSE.items() <= dict(BY_NAME["N1"].headers).items()


def test_share_is_relative_to_the_limit() -> None:
    assert FIGURE.share == pytest.approx(0.9)


def test_median_is_selected_by_share() -> None:
    figures = [replace(FIGURE, tokens_per_second=rate) for rate in (7000.0, 9000.0, 8000.0)]
    figure = median("W32", ATTENDANT, figures)
    assert figure is not None
    assert figure.tokens_per_second == 8000
    assert median("P8", ATTENDANT, figures) is None
