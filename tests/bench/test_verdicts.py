"""Verdicts on closed-loop figures."""

from dataclasses import replace

from tests.bench.closed_loop import ATTENDANT, WORKLOADS, Figure
from tests.bench.limit import LimitFigure
from tests.bench.targets import Verdict
from tests.bench.verdicts import judge_figures

LIMIT = LimitFigure(tokens_per_second=10_000, float32_tokens_per_second=5_000, backend="OpenVINO bfloat16")
OWN = [Figure(workload.name, ATTENDANT, 900.0, 9500.0, LIMIT, 10.0, 15.0, 0, bare_run_ms=9.0) for workload in WORKLOADS]


def peers(**rates: float) -> list[Figure]:
    return [
        replace(figure, system=name.replace("_", " "), texts_per_second=rate, p50_ms=20.0)
        for figure in OWN
        for name, rate in rates.items()
    ]


def verdict(what: str, unit: str, figures: list[Figure], has_bfloat16: bool = True) -> Verdict:
    verdicts = judge_figures(figures, has_bfloat16)
    return next(item for item in verdicts if (item.target.what, item.target.unit[: len(unit)]) == (what, unit))


def test_targets_of_peers_are_not_measured_without_them() -> None:
    verdicts = judge_figures(OWN, has_bfloat16=True)
    assert {verdict.passed for verdict in verdicts if verdict.target.name != "C5"} == {True}
    assert {verdict.passed for verdict in verdicts if verdict.target.name == "C5"} == {None}


def test_rate_is_compared_with_the_best_peer_and_the_better_infinity_engine() -> None:
    figures = OWN + peers(infinity_onnx=100.0, infinity_torch=150.0, st_openvino=300.0)
    best = verdict("W32", "x the best peer", figures)
    assert (best.measured, best.note, best.passed) == (3.0, "st openvino", True)
    infinity = verdict("W32", "x the better infinity", figures)
    assert (infinity.measured, infinity.note, infinity.passed) == (6.0, "infinity torch", True)


def test_target_for_infinity_depends_on_the_bfloat16_unit() -> None:
    figures = OWN + peers(infinity_onnx=300.0)
    assert verdict("W32", "x the better infinity", figures, has_bfloat16=True).passed is False
    assert verdict("W32", "x the better infinity", figures, has_bfloat16=False).passed is True


def test_peer_without_responses_is_not_compared() -> None:
    assert verdict("W32", "x the best peer", OWN + peers(infinity_onnx=0.0)).passed is None


def test_single_latency_is_compared_with_the_fastest_peer() -> None:
    single = verdict("p50 of W1 c=1", "x the best peer", OWN + peers(st_openvino=100.0))
    assert (single.measured, single.passed) == (0.5, True)


def test_only_measured_workloads_are_judged() -> None:
    verdicts = judge_figures([figure for figure in OWN if figure.workload == "P8"], has_bfloat16=True)
    assert {verdict.target.what for verdict in verdicts} == {"P8", "failed requests"}


def test_failed_requests_fail_the_run() -> None:
    assert verdict("failed requests", "", [replace(OWN[0], failed=1), *OWN[1:]]).passed is False
