"""The judge of the closed-loop workloads."""

from dataclasses import replace

from tests.bench.bars import Verdict
from tests.bench.closed import US, WORKLOADS, Contestant, Figure, judge

OURS = [Figure(workload.name, US, 900.0, 9000.0, 10000.0, 10.0, 20.0, 0, bare_run_ms=8.0) for workload in WORKLOADS]


def verdict(bar: str, what: str, figures: list[Figure]) -> Verdict:
    return next(found for found in judge(figures) if (found.bar, found.what) == (bar, what))


def test_all_is_well_without_peers_and_their_bars_are_not_measured() -> None:
    verdicts = judge(OURS)
    assert {found.reached for found in verdicts if "infinity" not in found.what} == {True}
    assert {found.reached for found in verdicts if "infinity" in found.what} == {None}


def test_we_are_held_against_the_better_engine() -> None:
    peers = [
        replace(figure, contestant=f"infinity {engine}", texts_per_second=rate)
        for figure in OURS
        for engine, rate in (("onnx", 100.0), ("torch", 150.0))
    ]
    found = verdict("C5", "W32 beside infinity", OURS + peers)
    assert (found.found, found.reached, found.unit) == (6.0, False, "x infinity torch")


def test_a_peer_that_answered_nothing_measures_nothing() -> None:
    peers = [replace(figure, contestant="infinity onnx", texts_per_second=0.0) for figure in OURS]
    assert verdict("C3", "W1 c=64 beside infinity", OURS + peers).reached is None


def test_peers_are_asked_in_their_own_words() -> None:
    workload = next(found for found in WORKLOADS if found.name == "W32")
    assert Contestant("infinity onnx", "", model="m").body(["a"], workload) == {"model": "m", "input": ["a"]}
    assert Contestant(US, "").body(["a"], workload) == {"inputs": ["a"], "encoding": "float"}
