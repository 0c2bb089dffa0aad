"""Several models (C15): single sentences for one model while another one is flooded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.load import GZIP, Answered, Load, bodies_file, run_wrk, started_wrk, wrk_result
from bench.targets import Verdict, judge
from tests.conftest import RunningServer

FLOODED, OTHER = "flooded", "other"
CONNECTIONS, FLOOD_CONNECTIONS = 4, 16
FLOOD_TEXTS = 32


@dataclass(frozen=True)
class ModelFigures:
    """Figures of W1 at 4 for one model, in pairs: alone, and alongside W32 at 16 for another model."""

    alone: list[Answered]
    beside: list[Answered]

    @property
    def tail_ratio(self) -> float:
        """Median ratio of the 99th percentiles."""
        return median(beside.p99_ms / alone.p99_ms for alone, beside in zip(self.alone, self.beside, strict=True))

    def verdicts(self) -> list[Verdict]:
        failed = sum(figure.failed for figure in (*self.alone, *self.beside))
        return [judge("models_tail", self.tail_ratio), judge("models_failed", failed)]

    def describe(self) -> str:
        alone, beside = (
            ", ".join(f"{figure.p99_ms:.0f}" for figure in figures) for figures in (self.alone, self.beside)
        )
        return f"W1 c={CONNECTIONS} of one model: p99 {alone} ms alone, {beside} ms beside a flood of another one"


def measure_models(
    server: RunningServer, sentences: Sequence[str], seconds: float, rounds: int, progress: Callable[[str], None]
) -> ModelFigures:
    """Measure a server with two models in alternating rounds."""
    url = f"{server.rest}/v1/encode"
    starts = range(0, len(sentences) - FLOOD_TEXTS, FLOOD_TEXTS)
    flood_bodies = [{"inputs": sentences[start : start + FLOOD_TEXTS], "model": FLOODED} for start in starts]
    figures = ModelFigures([], [])
    with (
        bodies_file([{"inputs": [text], "model": OTHER} for text in sentences]) as single,
        bodies_file(flood_bodies) as flood,
    ):
        load = Load(url, CONNECTIONS, single, GZIP)
        run_wrk(load, 1)
        for _ in range(rounds):
            figures.alone.append(run_wrk(load, seconds))
            with started_wrk(Load(url, FLOOD_CONNECTIONS, flood, GZIP), 2 * seconds + 5) as wrk:
                run_wrk(load, 1)
                figures.beside.append(run_wrk(load, seconds))
                wrk_result(wrk, stop=True)
    progress(figures.describe())
    return figures
