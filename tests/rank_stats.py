"""Rank correlation, area under the curve, and bootstrap confidence intervals for tests of explanations."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]


def ranks(values: Floats) -> NDArray[np.float64]:
    """Return ranks from 1 in ascending order; ties get their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: NDArray[np.float64] = last - (counts - 1) / 2
    return mean[inverse]


def spearman(left: Floats, right: Floats) -> float:
    return float(np.corrcoef(ranks(left), ranks(right))[0, 1])


def area_under_curve(higher: Floats, lower: Floats) -> float:
    """Return the probability that a value from `higher` exceeds one from `lower`, with ties counting half (ROC AUC)."""
    differences = np.subtract.outer(higher, lower)
    return float(np.mean((differences > 0) + 0.5 * (differences == 0)))


def interval_of_mean(values: Floats) -> tuple[float, float]:
    """Return the 95% bootstrap confidence interval of the mean, with a fixed seed."""
    chosen = np.random.default_rng(11).integers(len(values), size=(2000, len(values)))
    low, high = np.quantile(values[chosen].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)
