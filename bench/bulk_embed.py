"""`attendant embed` (C16): rate relative to the limit, memory, and the cost of a Ray cluster."""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from bench.limit import Limit
from bench.load import ROOT
from bench.project import Model
from bench.startup import resident_mib
from bench.targets import Verdict, judge, not_measured
from tests.conftest import server_environment

RAY_WORKERS = 2
LIMIT_S = 3.0
MEMORY_PERIOD_S = 0.5


class EmbedError(Exception):
    """The command failed. The message is its output."""


@dataclass(frozen=True)
class Run:
    """A run of the command. `rows_per_second` excludes startup, `seconds` includes it."""

    rows_per_second: float
    seconds: float
    peak_mib: float


@dataclass(frozen=True)
class EmbedFigures:
    """The command without and with --ray on the same file. The latter is None if Ray is not installed."""

    rows: int
    tokens_per_row: float
    limit_tokens_per_second: float
    plain: Run
    ray: Run | None

    @property
    def share(self) -> float:
        """Rate without --ray as a share of the limit."""
        return self.plain.rows_per_second * self.tokens_per_row / self.limit_tokens_per_second

    def verdicts(self) -> list[Verdict]:
        note = f"{self.rows:,} rows"
        verdicts = [judge("embed", self.share, note), judge("embed_peak", self.plain.peak_mib, note)]
        if self.ray is None:
            return [*verdicts, not_measured("embed_ray", "Ray is not installed")]
        return [*verdicts, judge("embed_ray", self.ray.seconds / self.plain.seconds, note)]

    def describe(self) -> str:
        runs = {"plain": self.plain, "--ray": self.ray}
        shown = "; ".join(
            f"{name} {run.rows_per_second:.0f} rows/s, {run.seconds:.0f} s, {run.peak_mib:.0f} MiB"
            for name, run in runs.items()
            if run is not None
        )
        return f"attendant embed, {self.rows:,} rows: {shown}; {self.share:.2f} of the limit"


def measure_embed(model: Model, sentences: Sequence[tuple[str, int]], rows: int, limit: Limit) -> EmbedFigures:
    """Embed a file of `rows` sentences with the command's own engine, and with two workers of a local Ray cluster."""
    chosen = list(islice(cycle(sentences), rows))
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "in.jsonl"
        with source.open("w") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text, _ in chosen)
        before = limit.measure(LIMIT_S).tokens_per_second
        plain = run_embed(model, source, Path(directory) / "plain.npy")
        after = limit.measure(LIMIT_S).tokens_per_second
        ray = None
        if importlib.util.find_spec("ray") is not None:
            ray = run_embed(model, source, Path(directory) / "ray.npy", "--ray", "--ray-workers", str(RAY_WORKERS))
    mean = sum(tokens for _, tokens in chosen) / rows
    return EmbedFigures(rows, mean, (before + after) / 2, plain, ray)


def run_embed(model: Model, source: Path, target: Path, *options: str) -> Run:
    """Run the command and parse its report. Raises `EmbedError`."""
    environment = server_environment(model_dir=model.directory)
    command = [sys.executable, "-m", "service", "embed", str(source), "-o", str(target), *options]
    started = time.perf_counter()
    peak_mib = 0.0
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while True:
            try:
                _, output = process.communicate(timeout=MEMORY_PERIOD_S)
                break
            except subprocess.TimeoutExpired:
                with suppress(OSError, StopIteration):  # it has ended
                    peak_mib = resident_mib(process.pid, "VmHWM")
    seconds = time.perf_counter() - started
    match = re.search(r"([\d,]+) rows/s", output.splitlines()[-1] if output else "")
    if process.returncode or match is None:
        raise EmbedError(output)
    return Run(float(match[1].replace(",", "")), seconds, peak_mib)
