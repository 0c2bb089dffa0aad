"""Output of a run: tables on screen and bench-results/results.json."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.closed_loop import Figure
from bench.load import ROOT
from bench.targets import Verdict

DIRECTORY = ROOT / "bench-results"
RESULTS = DIRECTORY / "results.json"


def table(figures: Sequence[Figure]) -> str:
    """Format medians, one line per workload and system."""
    header = (
        f"{'workload':<13} {'system':<22} {'texts/s':>8} {'tokens/s':>9} {'limit':>6} {'float32':>8} "
        f"{'p50 ms':>8} {'p99 ms':>8} {'B/text':>7}"
    )
    lines = [
        f"{figure.workload:<13} {figure.system:<22} {figure.texts_per_second:8.0f} {figure.tokens_per_second:9.0f} "
        f"{figure.share:6.2f} {figure.tokens_per_second / figure.limit.float32_tokens_per_second:8.2f} "
        f"{figure.p50_ms:8.2f} {figure.p99_ms:8.2f} {figure.bytes_per_text:7.0f}"
        for figure in figures
    ]
    return "\n".join([header, *lines])


def stage_table(figures: Sequence[Figure]) -> str:
    """Format the mean time per stage in milliseconds, for figures that have stages."""
    with_stages = [figure for figure in figures if figure.stages]
    names = list(with_stages[0].stages) if with_stages else []
    header = f"{'mean ms':<13}" + "".join(f" {name:>11}" for name in names)
    lines = [
        f"{figure.workload:<13}" + "".join(f" {figure.stages.get(name, math.nan):11.2f}" for name in names)
        for figure in with_stages
    ]
    return "\n".join([header, *lines])


def write(record: dict[str, Any], verdicts: Sequence[Verdict]) -> None:
    """Write results.json, with null for floats that are not finite."""
    DIRECTORY.mkdir(exist_ok=True)
    targets = [asdict(verdict.target) | {"measured": verdict.measured, "passed": verdict.passed, "note": verdict.note}
               for verdict in verdicts]  # fmt: skip
    RESULTS.write_text(json.dumps(clean(record | {"targets": targets}), indent=1))


def clean(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [clean(inner) for inner in value]
    return value
