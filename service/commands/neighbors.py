"""Nearest neighbors of embeddings, and how much their ranks differ between two models.

Similarities are rounded to `DECIMALS`, so that the last bits of a matrix product do not change ranks. Ties are ordered
by index, so that results are reproducible.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import Similarity
from service.engine.encode.similarity_functions import compare_all, compare_rows

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
    k = old.shape[1]
    return np.array(
        [len(np.intersect1d(*pair, assume_unique=True)) / k for pair in zip(old, new, strict=True)], np.float64
    )


def sample_pairs(queries: int | None, texts: int) -> tuple[Indices, Indices]:
    """Return indices of queries and texts: all pairs, or `MAX_PAIRS` random ones, the same in every run.

    If `queries` is None, pair distinct texts.
    """
    if queries is None:
        total = texts * (texts - 1) // 2
        if total <= MAX_PAIRS:
            left, right = np.triu_indices(texts, 1)
            return left.astype(np.int64), right.astype(np.int64)
        random = np.random.default_rng(SEED)
        left = random.integers(texts, size=MAX_PAIRS)
        return left, (left + 1 + random.integers(texts - 1, size=MAX_PAIRS)) % texts
    if queries * texts <= MAX_PAIRS:
        left, right = np.divmod(np.arange(queries * texts), texts)
        return left, right
    random = np.random.default_rng(SEED)
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
