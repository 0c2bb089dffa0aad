"""What a run leaves behind: a table on the screen and bench-results/results.json."""

import json
import math
import os
from collections.abc import Sequence
from typing import Any

from tests.bench.bars import Verdict
from tests.bench.closed import Figure
from tests.bench.load import ROOT

DIRECTORY = ROOT / "bench-results"
RESULTS = DIRECTORY / "results.json"


def table(figures: Sequence[Figure]) -> str:
    """Medians, one line a workload and contestant."""
    header = (
        f"{'workload':<11} {'contestant':<16} {'texts/s':>8} {'tokens/s':>9} {'share':>6} {'p50 ms':>8} {'p99 ms':>8}"
    )
    lines = [
        f"{found.workload:<11} {found.contestant:<16} {found.texts_per_second:8.0f} {found.tokens_per_second:9.0f} "
        f"{found.share:6.2f} {found.p50_ms:8.2f} {found.p99_ms:8.2f}"
        for found in figures
    ]
    return "\n".join([header, *lines])


def stage_table(figures: Sequence[Figure]) -> str:
    """Means in ms, of those that have stages."""
    with_stages = [figure for figure in figures if figure.stages]
    names = list(with_stages[0].stages) if with_stages else []
    header = f"{'mean ms':<11}" + "".join(f" {name:>11}" for name in names)
    lines = [
        f"{figure.workload:<11}" + "".join(f" {figure.stages.get(name, math.nan):11.2f}" for name in names)
        for figure in with_stages
    ]
    return "\n".join([header, *lines])


def busyness() -> str:
    """How busy the machine was: figures of a shared one mean less."""
    return f"load average {' '.join(f'{load:.1f}' for load in os.getloadavg())}"


def write(record: dict[str, Any], verdicts: Sequence[Verdict]) -> None:
    """What is not a number is written as null."""
    DIRECTORY.mkdir(exist_ok=True)
    bars = [{"line": verdict.describe(), "reached": verdict.reached} for verdict in verdicts]
    RESULTS.write_text(json.dumps(clean(record | {"bars": bars}), indent=1))


def clean(value: Any) -> Any:
    """With None for every float that JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [clean(inner) for inner in value]
    return value
