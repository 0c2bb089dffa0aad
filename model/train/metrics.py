"""The metrics of a run: metrics.csv, TensorBoard if it is installed, and loss curves as a picture."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

METRICS, CURVES = "metrics.csv", "curves.png"
COLUMNS = (
    "step", "tokens", "loss", "learning_rate", "gradient_norm", "tokens_per_second", "validation_loss", "perplexity",
)  # fmt: skip


class MetricsFile:
    """metrics.csv, with one row per step. Rows after `step` are removed: a resumed run writes them again."""

    def __init__(self, directory: Path, step: int) -> None:
        self._path = directory / METRICS
        kept = [row for row in read_metrics(directory) if int(row["step"]) <= step]
        self._file = self._path.open("w", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS)
        self._writer.writeheader()
        self._writer.writerows(kept)
        self._board = _open_board(directory)

    def write(self, row: Mapping[str, float]) -> None:
        """Append a row; missing columns are empty."""
        self._writer.writerow(row)
        for name, value in row.items():
            if self._board is not None and name != "step":
                self._board.add_scalar(name, value, int(row["step"]))

    def close(self) -> None:
        """Write what is buffered."""
        self._file.close()
        if self._board is not None:
            self._board.close()

    def flush(self) -> None:
        """Write what is buffered, so that a checkpoint never has fewer rows than steps."""
        self._file.flush()


def read_metrics(directory: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv; none if it does not exist."""
    path = directory / METRICS
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        # A kill can cut the last row.
        return [row for row in csv.DictReader(file) if row.get(COLUMNS[-1]) is not None]


def _open_board(directory: Path) -> Any:
    """Return a writer for TensorBoard; None if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory / "tensorboard"))


def draw_curves(directory: Path, unit: str) -> None:
    """Write curves.png from metrics.csv: training and validation loss by tokens; `unit` is the loss's unit."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = read_metrics(directory)
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([int(row["tokens"]) for row in rows], [float(row["loss"]) for row in rows], lw=0.8, label="training")
    validated = [row for row in rows if row["validation_loss"]]
    axes.plot(
        [int(row["tokens"]) for row in validated], [float(row["validation_loss"]) for row in validated],
        marker="o", ms=3, label="validation",
    )  # fmt: skip
    axes.set(xlabel="tokens", ylabel=f"loss ({unit})")
    axes.legend()
    figure.savefig(directory / CURVES, dpi=120)
    plt.close(figure)
