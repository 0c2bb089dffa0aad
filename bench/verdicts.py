"""C1 to C6: verdicts on the closed-loop figures, using medians over rounds."""

from collections.abc import Callable, Sequence

import numpy as np

from bench.closed_loop import ATTENDANT, Figure
from bench.targets import Verdict, judge, not_measured

LIMIT_TARGETS = {
    "w32": "W32",
    "w32_base64": "W32 base64",
    "w32_grpc": "W32 gRPC",
    "p8": "P8",
    "w1_64": "W1 c=64",
    "t32_base64": "T32 base64",
    "t32_grpc": "T32 gRPC",
}
PEER_TARGETS = {"peers_w1_64": "W1 c=64", "peers_w32": "W32", "peers_p8": "P8"}
INFINITY_TARGETS = {"infinity_w1_64": "W1 c=64", "infinity_w32": "W32"}

Measure = Callable[[Figure], float]


def judge_figures(figures: Sequence[Figure], has_bfloat16: bool) -> list[Verdict]:
    """Return the verdicts on the measured workloads and on failed requests."""
    own = _medians(figures, lambda figure: figure.share).get(ATTENDANT, {})
    verdicts = [judge(key, own[workload]) for key, workload in LIMIT_TARGETS.items() if workload in own]
    if "W1 c=64" in own:
        tails = _medians(figures, lambda figure: figure.p99_ms / figure.p50_ms)
        verdicts.append(judge("w1_64_tail", tails[ATTENDANT]["W1 c=64"]))
    if {"W1 c=64", "W1 c=512"} <= own.keys():
        rates = _medians(figures, lambda figure: figure.texts_per_second)[ATTENDANT]
        verdicts.append(judge("w1_512", rates["W1 c=512"] / rates["W1 c=64"]))
        verdicts.append(judge("w1_512_failed", _failed(figures, "W1 c=512")))
    if "W1 c=1" in own:
        above = _medians(figures, lambda figure: figure.p50_ms - (figure.bare_run_ms or 0.0))
        verdicts.append(judge("w1_1", above[ATTENDANT]["W1 c=1"]))
        verdicts.append(_single_beside_peers(figures))
    rate: Measure = lambda figure: figure.texts_per_second  # noqa: E731 - one line, used twice
    verdicts += [_beside(key, name, figures, rate) for key, name in PEER_TARGETS.items() if name in own]
    suffix = "" if has_bfloat16 else "_float32"
    verdicts += [
        _beside(key + suffix, name, figures, rate, "infinity") for key, name in INFINITY_TARGETS.items() if name in own
    ]
    verdicts.append(judge("failed", _failed(figures, *(own.keys() - {"W1 c=512"}))))
    return verdicts


def _beside(key: str, workload: str, figures: Sequence[Figure], rate: Measure, prefix: str = "") -> Verdict:
    """Compare Attendant's rate with the best peer whose name starts with `prefix`."""
    rates = {name: medians[workload] for name, medians in _medians(figures, rate).items() if workload in medians}
    own = rates.pop(ATTENDANT)
    peers = {name: value for name, value in rates.items() if name.startswith(prefix) and value > 0}
    if not peers:
        return not_measured(key, "no peer was measured")
    best = max(peers, key=lambda name: peers[name])
    return judge(key, own / peers[best], best)


def _single_beside_peers(figures: Sequence[Figure]) -> Verdict:
    medians = _medians(figures, lambda figure: figure.p50_ms)
    latencies = {name: values["W1 c=1"] for name, values in medians.items() if "W1 c=1" in values}
    own = latencies.pop(ATTENDANT)
    peers = {name: latency for name, latency in latencies.items() if np.isfinite(latency)}
    if not peers:
        return not_measured("peers_w1_1", "no peer was measured")
    best = min(peers, key=lambda name: peers[name])
    return judge("peers_w1_1", own / peers[best], best)


def _medians(figures: Sequence[Figure], measure: Measure) -> dict[str, dict[str, float]]:
    """Return the median of a measure per system and workload."""
    values: dict[str, dict[str, list[float]]] = {}
    for figure in figures:
        values.setdefault(figure.system, {}).setdefault(figure.workload, []).append(measure(figure))
    return {
        system: {workload: float(np.median(samples)) for workload, samples in by_workload.items()}
        for system, by_workload in values.items()
    }


def _failed(figures: Sequence[Figure], *workloads: str) -> int:
    return sum(figure.failed for figure in figures if figure.system == ATTENDANT and figure.workload in workloads)
