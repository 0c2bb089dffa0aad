"""How well two orders agree, and how sure a mean is: the few statistics that tests of explanations need."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]


def ranks(values: Floats) -> NDArray[np.float64]:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: NDArray[np.float64] = last - (counts - 1) / 2
    return mean[inverse]


def spearman(left: Floats, right: Floats) -> float:
    """The rank correlation of two lists of numbers."""
    return float(np.corrcoef(ranks(left), ranks(right))[0, 1])


def area_under_curve(higher: Floats, lower: Floats) -> float:
    """How often one of `higher` is above one of `lower`; a tie is half."""
    differences = np.subtract.outer(higher, lower)
    return float(np.mean((differences > 0) + 0.5 * (differences == 0)))


def interval_of_mean(values: Floats, draws: int = 2000) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean, with a seed of its own."""
    chosen = np.random.default_rng(11).integers(len(values), size=(draws, len(values)))
    low, high = np.quantile(values[chosen].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)
