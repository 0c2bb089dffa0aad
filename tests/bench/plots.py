"""PNG plots of a run. Without matplotlib (the extra `bench`) there are none, and the run says so."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.closed import Figure
from tests.bench.growth import Growth
from tests.bench.open_loop import Offered
from tests.bench.stages import STAGES

README = Path(__file__).parent / "plots"
INK, SECOND, THIRD, FOURTH = "#1f4e79", "#c55a11", "#548235", "#7f7f7f"


def can_plot() -> bool:
    """Say once, where it matters, when it cannot be done."""
    if importlib.util.find_spec("matplotlib"):
        return True
    print("no plots: matplotlib is not installed (pip install -e '.[bench]')")
    return False


def plot_run(figures: Sequence[Figure], offered: Sequence[Offered], growth: Growth, directory: Path) -> None:
    """Everything but the soak."""
    if not can_plot():
        return
    plot_offered(offered, directory)
    plot_stages(figures, directory)
    plot_growth(growth, directory)


def plot_offered(found: Sequence[Offered], directory: Path) -> None:
    """Goodput, refusals and latency against what was offered."""
    canvas, (rates, times) = _axes(2)
    offered = [one.offered for one in found]
    rates.plot(offered, offered, color=FOURTH, linestyle=":", label="offered")
    rates.plot(offered, [one.goodput for one in found], color=INK, marker="o", label="answered")
    rates.plot(offered, [one.refused for one in found], color=SECOND, marker="s", label="refused")
    rates.set(xlabel="offered, requests/s", ylabel="requests/s", title="throughput against offered load")
    times.plot(offered, [one.p50_ms for one in found], color=INK, marker="o", label="answered, p50")
    times.plot(offered, [one.p99_ms for one in found], color=THIRD, marker="^", label="answered, p99")
    times.plot(offered, [one.refusal_p99_ms for one in found], color=SECOND, marker="s", label="refused, p99")
    times.set(xlabel="offered, requests/s", ylabel="ms", yscale="log", title="latency against offered load")
    _save(canvas, (rates, times), directory / "offered.png")


def plot_stages(figures: Sequence[Figure], directory: Path) -> None:
    """Each workload's time by stage, as the server's own metrics tell."""
    shown = [figure for figure in figures if figure.stages]
    canvas, (axes,) = _axes(1)
    left = [0.0] * len(shown)
    names = [figure.workload for figure in shown]
    for stage, colour in zip(STAGES, (THIRD, FOURTH, INK, SECOND), strict=True):
        widths = [figure.stages.get(stage, 0.0) for figure in shown]
        axes.barh(names, widths, left=left, color=colour, label=stage)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="mean ms; inference is of one row", title="where the time goes")
    _save(canvas, (axes,), directory / "stages.png")


def plot_growth(growth: Growth, directory: Path) -> None:
    """Cost against length, and tokens a second against texts in flight."""
    canvas, (cost, flight) = _axes(2)
    lengths = list(growth.by_length)
    cost.plot(lengths, [1e6 / rate for rate in growth.by_length.values()], color=INK, marker="o", label="as measured")
    cost.plot(lengths, [1e6 / rate for rate in growth.even.values()], color=SECOND, marker="s",
              label="attention set aside")  # fmt: skip
    cost.set(xlabel="tokens in a text", ylabel="microseconds a token", title="cost against length")
    counts = list(growth.by_flight)
    flight.plot(counts, list(growth.by_flight.values()), color=INK, marker="o", label="sentences, one a request")
    flight.set(xlabel="texts in flight", ylabel="tokens/s", title="rate against texts in flight")
    for axes, ticks in ((cost, lengths), (flight, counts)):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_ylim(0, 1.15 * axes.dataLim.ymax)
    _save(canvas, (cost, flight), directory / "growth.png")


def plot_soak(seconds: Sequence[float], mib: Sequence[float], directory: Path) -> None:
    """Memory over the soak."""
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
    for one in axes:
        one.grid(alpha=0.25)
        one.legend(frameon=False, fontsize="small")
        one.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110, metadata={"Software": None})
    print(f"wrote {path.parent.name}/{path.name}")
