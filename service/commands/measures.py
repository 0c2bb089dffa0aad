"""Nearest neighbors, and similarity and ranking measures with bootstrap confidence intervals (docs/evaluation.md).

Similarities are rounded to `DECIMALS`, so that the last bits of a matrix product do not change ranks. Ties are ordered
by index, so that results are reproducible.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import Similarity
from service.engine.vectors import compare_all, compare_rows

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

DECIMALS = 6
BLOCK_BYTES = 32 * 2**20
"""Size of a block of similarities. A search holds about three of them."""
PAIR_BLOCK = 4096
MAX_PAIRS = 50_000
SEED = 20_261


@dataclass(frozen=True)
class Vectors:
    """Embeddings of texts, (N, D), and of queries, (Q, D). If `queries` is None, every text is a query.

    For cosine similarity, vectors must be normalized (`normalize`).
    """

    texts: Floats
    queries: Floats | None = None
    similarity: Similarity = "dot"

    @property
    def asked(self) -> Floats:
        return self.texts if self.queries is None else self.queries

    def block_similarities(self, rows: slice) -> Floats:
        """Return similarities between a block of queries and all texts, (rows, N); -inf between a text and itself."""
        similarities = compare_all(self.asked[rows], self.texts, self.similarity).astype(np.float32, copy=False)
        np.round(similarities, DECIMALS, out=similarities)
        if self.queries is None:
            own = np.arange(rows.start, rows.start + len(similarities))
            similarities[own - rows.start, own] = -np.inf
        return similarities


def normalize(vectors: Floats, similarity: Similarity) -> Floats:
    """Return vectors as `compare_all` expects them: of length 1 for the cosine. Zero vectors remain zero."""
    if similarity != "cosine":
        return vectors
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    normalized: Floats = vectors / np.maximum(norms, np.finfo(np.float32).tiny)
    return normalized


def top_neighbors(vectors: Vectors, k: int, block_bytes: int = BLOCK_BYTES) -> Indices:
    """Return the indices of each query's `k` most similar texts, (Q, k), best first.

    This takes Q * N * D multiplications, and memory for a few blocks of `block_bytes` rather than Q * N similarities.
    """
    step = max(1, block_bytes // (4 * len(vectors.texts)))
    count = len(vectors.asked)
    result = np.empty((count, k), np.int64)
    for start in range(0, count, step):
        similarities = vectors.block_similarities(slice(start, start + step))
        # argpartition would break ties arbitrarily, so find the k-th value first, then order all candidates.
        thresholds = np.partition(similarities, -k, axis=1)[:, -k]
        for row, (values, threshold) in enumerate(zip(similarities, thresholds, strict=True), start):
            candidates = np.flatnonzero(values >= threshold)
            result[row] = candidates[np.argsort(-values[candidates], kind="stable")[:k]]
    return result


def overlaps(old: Indices, new: Indices) -> NDArray[np.float64]:
    """Return the share of common neighbors per query, (Q,), in 0..1."""
    common = [len(np.intersect1d(*pair, assume_unique=True)) for pair in zip(old, new, strict=True)]
    shares: NDArray[np.float64] = np.array(common, np.float64) / old.shape[1]
    return shares


def sample_pairs(queries: int | None, texts: int) -> tuple[Indices, Indices]:
    """Return indices of queries and texts: all pairs, or `MAX_PAIRS` random ones, the same in every run.

    If `queries` is None, pair distinct texts.
    """
    random = np.random.default_rng(SEED)
    if queries is None:
        if texts * (texts - 1) // 2 <= MAX_PAIRS:
            left, right = np.triu_indices(texts, 1)
            return left.astype(np.int64), right.astype(np.int64)
        left = random.integers(texts, size=MAX_PAIRS)
        return left, (left + 1 + random.integers(texts - 1, size=MAX_PAIRS)) % texts
    if queries * texts <= MAX_PAIRS:
        left, right = np.divmod(np.arange(queries * texts), texts)
        return left, right
    return random.integers(queries, size=MAX_PAIRS), random.integers(texts, size=MAX_PAIRS)


def pair_similarities(vectors: Vectors, pairs: tuple[Indices, Indices]) -> Floats:
    blocks = []
    for start in range(0, len(pairs[0]), PAIR_BLOCK):
        left, right = (side[start : start + PAIR_BLOCK] for side in pairs)
        blocks.append(compare_rows(vectors.asked[left], vectors.texts[right], vectors.similarity))
    return np.round(np.concatenate(blocks), DECIMALS)


def row_cosines(old: Floats, new: Floats) -> NDArray[np.float64]:
    """Return the rounded cosines of corresponding rows of `old` and `new`, both (N, D), in -1..1."""
    blocks = []
    for start in range(0, len(old), PAIR_BLOCK):
        left, right = (normalize(part[start : start + PAIR_BLOCK], "cosine") for part in (old, new))
        blocks.append(np.einsum("nd,nd->n", left, right))
    return np.clip(np.round(np.concatenate(blocks).astype(np.float64), DECIMALS), -1, 1)


def pearson(left: NDArray[Any], right: NDArray[Any]) -> float | None:
    """Return Pearson's correlation, or None if one side is constant."""
    if min(np.ptp(left), np.ptp(right)) == 0:
        return None
    x, y = (values - values.mean() for values in (left, right))
    # Scale first, because squares of very small values would underflow to 0.
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))


def spearman(left: NDArray[Any], right: NDArray[Any]) -> float | None:
    """Return Spearman's rank correlation, with mean ranks for ties. It is None if one side is constant."""
    return pearson(*(mean_ranks(value_codes(side)) for side in (left, right)))


def value_codes(values: NDArray[Any]) -> Indices:
    """Return each value's index among the sorted distinct values."""
    codes: Indices = np.unique(values, return_inverse=True)[1]
    return codes


def mean_ranks(codes: Indices) -> NDArray[np.float64]:
    """Return ranks, from 1, of integers >= 0 in linear time; ties get their mean rank."""
    counts = np.bincount(codes)
    ranks: NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2
    return ranks[codes]


RESAMPLES = 1000
NDCG_DEPTH = 10

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Estimate:
    """A measure and its 95% confidence interval. Undefined values are None, as are bounds if all resamples are."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    resampled: Values = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    """The measure of each resample, (RESAMPLES,), NaN where undefined; empty if `value` is None."""

    @classmethod
    def of(cls, value: float | None, resampled: Values) -> "Estimate":
        """Return a measure with its 2.5th and 97.5th percentiles over resamples."""
        if value is None:
            return cls()
        defined = resampled[~np.isnan(resampled)]
        if not len(defined):
            return cls(value, None, None, resampled)
        low, high = np.percentile(defined, (2.5, 97.5)).tolist()
        return cls(value, low, high, resampled)

    def minus(self, baseline: "Estimate") -> "Estimate":
        """Return the paired difference and its interval. Both must measure the same items, so that resamples match."""
        if self.value is None or baseline.value is None:
            return Estimate()
        return Estimate.of(self.value - baseline.value, self.resampled - baseline.resampled)


def bootstrap(measure: Callable[[Indices], float | None], count: int) -> Estimate:
    """Return `measure` of 0..count-1 and its interval. The resamples depend only on `count`."""
    value = measure(np.arange(count))
    if value is None:
        return Estimate()
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
