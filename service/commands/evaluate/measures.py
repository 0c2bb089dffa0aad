"""Similarity and ranking measures with bootstrap intervals. docs/evaluation.md has the formulas and sources.

Ties are in random order, so ranking measures are expected values over all orders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.commands.neighbors import BLOCK_BYTES, Indices, Vectors, mean_ranks, pearson, value_codes

RESAMPLES = 1000
SEED = 20_261
NDCG_DEPTH = 10

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Estimate:
    """A measure and its 95 % interval. Undefined values are None, as are bounds if no resample has a value."""

    value: float | None
    low: float | None
    high: float | None
    resampled: Values = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    """The measure of each resample, (RESAMPLES,), NaN where undefined; empty if `value` is None."""

    @classmethod
    def of(cls, value: float | None, resampled: Values) -> "Estimate":
        """Return a measure with its 2.5th and 97.5th percentiles over resamples."""
        if value is None:
            return cls(None, None, None)
        defined = resampled[~np.isnan(resampled)]
        if not len(defined):
            return cls(value, None, None, resampled)
        low, high = np.percentile(defined, (2.5, 97.5)).tolist()
        return cls(value, low, high, resampled)

    def minus(self, baseline: "Estimate") -> "Estimate":
        """Return the paired difference and its interval. Both must measure the same items, so that resamples match."""
        if self.value is None or baseline.value is None:
            return Estimate(None, None, None)
        return Estimate.of(self.value - baseline.value, self.resampled - baseline.resampled)


def bootstrap(measure: Callable[[Indices], float | None], count: int) -> Estimate:
    """Return `measure` of 0..count-1 and its interval. The resamples depend only on `count`."""
    value = measure(np.arange(count))
    if value is None:
        return Estimate(None, None, None)
    random = np.random.default_rng(SEED)
    values = [measure(random.integers(count, size=count)) for _ in range(RESAMPLES)]
    return Estimate.of(value, np.array(values, np.float64))  # None becomes NaN


def estimate_mean(values: Values) -> Estimate:
    return bootstrap(lambda sample: float(values[sample].mean()), len(values))


def estimate_pearson(left: Values, right: Values) -> Estimate:
    return bootstrap(lambda sample: pearson(left[sample], right[sample]), len(left))


def estimate_spearman(left: Values, right: Values) -> Estimate:
    """Return Spearman's correlation and its interval; ties get their mean rank."""
    codes = value_codes(left), value_codes(right)

    def measure(sample: Indices) -> float | None:
        return pearson(*(mean_ranks(side[sample]) for side in codes))

    return bootstrap(measure, len(left))


def estimate_auc(similarities: Values, same: Flags) -> Estimate:
    codes = value_codes(similarities)
    return bootstrap(lambda sample: auc(codes[sample], same[sample]), len(same))


def auc(codes: Indices, same: Flags) -> float | None:
    """Return the fraction of positive-negative pairs in the right order; ties count half.

    `codes` are integers >= 0. The result is None without positives or without negatives.
    """
    positives = int(same.sum())
    negatives = len(same) - positives
    if not positives or not negatives:
        return None
    rank_sum = float(mean_ranks(codes)[same].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def top_precision(scores: Values, relevant: Flags) -> float:
    """Return the precision@1 of a ranking by `scores`; if the largest score is tied, the expected value."""
    return float(relevant[scores == scores.max()].mean())


def best_threshold(similarities: Values, same: Flags) -> float:
    """Return the threshold t for which "same if similarity >= t" is most accurate.

    Candidates are the midpoints between adjacent values, -inf and inf. If several are equally accurate, the middle one
    is chosen.
    """
    values = np.unique(similarities)
    codes = np.searchsorted(values, similarities)
    positives = np.bincount(codes[same], minlength=len(values))
    negatives = np.bincount(codes[~same], minlength=len(values))
    # correct[i]: negatives below candidate i, and positives from it on
    correct = np.append(0, np.cumsum(negatives)) + positives.sum() - np.append(0, np.cumsum(positives))
    best = np.flatnonzero(correct == correct.max())
    candidates = np.concatenate([[-np.inf], (values[:-1] + values[1:]) / 2, [np.inf]])
    return float(candidates[best[len(best) // 2]])


def cross_validate(similarities: Values, same: Flags) -> tuple[Flags, tuple[float, float]]:
    """Return whether the other fold's threshold classifies each pair correctly, and both thresholds.

    Folds are stratified random halves, the same in every run.
    """
    random = np.random.default_rng(SEED)
    fold = np.zeros(len(same), np.int64)
    for label in (False, True):
        members = random.permutation(np.flatnonzero(same == label))
        fold[members[1::2]] = 1
    thresholds = [best_threshold(similarities[fold != part], same[fold != part]) for part in (0, 1)]
    correct: Flags = (similarities >= np.array(thresholds)[fold]) == same
    return correct, (thresholds[0], thresholds[1])


def rank_measures(
    vectors: Vectors, relevant: Sequence[Indices], k: int, block_bytes: int = BLOCK_BYTES
) -> NDArray[np.float64]:
    """Return recall@k, nDCG@10 and reciprocal rank of each query, (Q, 3); `relevant` lists relevant text indices.

    This takes Q * N * D multiplications, sorts Q * N values, and needs memory for a few blocks of `block_bytes`.
    """
    step = max(1, block_bytes // (4 * len(vectors.texts)))
    discounts = np.append(0, np.cumsum(1 / np.log2(np.arange(2, NDCG_DEPTH + 2))))
    result = np.empty((len(relevant), 3))
    for start in range(0, len(relevant), step):
        similarities = vectors.block_similarities(slice(start, start + step))
        sorted_rows = np.sort(similarities, axis=1)
        for query, (values, ordered) in enumerate(zip(similarities, sorted_rows, strict=True), start):
            scores = values[relevant[query]]
            last = np.searchsorted(ordered, scores, "right")
            equal = last - np.searchsorted(ordered, scores, "left")
            greater = len(values) - last
            gains = discounts[np.minimum(greater + equal, NDCG_DEPTH)] - discounts[np.minimum(greater, NDCG_DEPTH)]
            result[query] = (
                np.clip((k - greater) / equal, 0, 1).mean(),
                (gains / equal).sum() / discounts[min(len(scores), NDCG_DEPTH)],
                _reciprocal_rank(greater, equal),
            )
    return result


def _reciprocal_rank(greater: Indices, equal: Indices) -> float:
    """Return the expected reciprocal rank of the first relevant text.

    For each relevant text, `greater` and `equal` count the texts with a larger and with an equal similarity.
    """
    first = int(np.argmin(greater))
    above, size = int(greater[first]), int(equal[first])
    count = int((greater == above).sum())
    # P(the first of `count` relevant texts among `size` is at position j), for j = 1, 2, ...
    positions = np.arange(1, size - count + 1)
    probabilities = count / size * np.append(1, np.cumprod((size - positions - count + 1) / (size - positions)))
    return float((probabilities / (above + 1 + np.arange(len(probabilities)))).sum())
