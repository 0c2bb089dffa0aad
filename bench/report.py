"""Tables, records and PNG plots of a run; plots need matplotlib (the `bench` extra)."""

import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.closed_loop import STAGES, Figure
from bench.load import ROOT
from bench.open_loop import Offered
from bench.scaling import Scaling
from bench.targets import Verdict

README = Path(__file__).parent / "plots"
INK, SECOND, THIRD, FOURTH = "#1f4e79", "#c55a11", "#548235", "#7f7f7f"


def can_plot() -> bool:
    """Return whether matplotlib is installed; print a line if it is not."""
    if importlib.util.find_spec("matplotlib"):
        return True
    print("no plots: matplotlib is not installed (pip install -e '.[bench]')")
    return False


def plot_run(figures: Sequence[Figure], offered: Sequence[Offered], scaling: Scaling | None, directory: Path) -> None:
    if not can_plot():
        return
    if offered:
        plot_offered(offered, directory)
    if any(figure.stages for figure in figures):
        plot_stages(figures, directory)
    if scaling:
        plot_scaling(scaling, directory)


def plot_offered(results: Sequence[Offered], directory: Path) -> None:
    """Plot goodput, rejections and latency vs. offered load."""
    canvas, (rates, times) = _axes(2)
    offered = [result.offered for result in results]
    rates.plot(offered, offered, color=FOURTH, linestyle=":", label="offered")
    rates.plot(offered, [result.goodput for result in results], color=INK, marker="o", label="accepted")
    rates.plot(offered, [result.rejected for result in results], color=SECOND, marker="s", label="rejected")
    rates.set(xlabel="offered, requests/s", ylabel="requests/s", title="throughput against offered load")
    times.plot(offered, [result.p50_ms for result in results], color=INK, marker="o", label="accepted, p50")
    times.plot(offered, [result.p99_ms for result in results], color=THIRD, marker="^", label="accepted, p99")
    times.plot(
        offered, [result.rejection_p99_ms for result in results], color=SECOND, marker="s", label="rejected, p99"
    )
    times.set(xlabel="offered, requests/s", ylabel="ms", yscale="log", title="latency against offered load")
    _save(canvas, (rates, times), directory / "offered.png")


def plot_stages(figures: Sequence[Figure], directory: Path) -> None:
    """Plot the time per stage of each workload, from the server's metrics."""
    shown = [figure for figure in figures if figure.stages]
    canvas, (axes,) = _axes(1)
    left = [0.0] * len(shown)
    names = [figure.workload for figure in shown]
    for stage, color in zip(STAGES, (THIRD, FOURTH, INK, SECOND), strict=True):
        widths = [figure.stages.get(stage, 0.0) for figure in shown]
        axes.barh(names, widths, left=left, color=color, label=stage)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="mean ms; inference is per batch", title="where the time goes")
    _save(canvas, (axes,), directory / "stages.png")


def plot_scaling(scaling: Scaling, directory: Path) -> None:
    """Plot time per token over text length, and tokens per second over texts in flight."""
    canvas, (cost, flight) = _axes(2)
    lengths = list(scaling.by_length)
    cost.plot(lengths, [1e6 / rate for rate in scaling.by_length.values()], color=INK, marker="o",
              label="256 tokens per request")  # fmt: skip
    cost.set(xlabel="tokens per text", ylabel="microseconds per token", title="cost by length")
    counts = list(scaling.by_flight)
    flight.plot(counts, list(scaling.by_flight.values()), color=INK, marker="o", label="sentences, one per request")
    flight.set(xlabel="texts in flight", ylabel="tokens/s", title="rate by texts in flight")
    for axes, ticks in ((cost, lengths), (flight, counts)):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_ylim(0, 1.15 * axes.dataLim.ymax)
    _save(canvas, (cost, flight), directory / "scaling.png")


def plot_soak(seconds: Sequence[float], mib: Sequence[float], directory: Path) -> None:
    if not can_plot():
        return
    canvas, (axes,) = _axes(1)
    axes.plot([at / 60 for at in seconds], mib, color=INK, label="resident memory")
    axes.set(xlabel="minutes", ylabel="MiB", title="memory under load")
    axes.set_ylim(0, 1.15 * axes.dataLim.ymax)
    _save(canvas, (axes,), directory / "soak.png")


def _axes(count: int) -> tuple[Any, tuple[Any, ...]]:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(5.2 * count, 3.6), layout="constrained")
    return canvas, tuple(canvas.subplots(1, count, squeeze=False)[0])


def _save(canvas: Any, axes: Sequence[Any], path: Path) -> None:
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize="small")
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110, metadata={"Software": None})
    print(f"wrote {path.parent.name}/{path.name}")


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
