"""Neighbors and rank changes, compared with brute force in numpy and scipy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import spearmanr

from model.artifact.manifest import Similarity
from service.commands import measures as neighbors
from service.commands.measures import (
    MAX_PAIRS,
    Vectors,
    normalize,
    row_cosines,
    sample_pairs,
    spearman,
    top_neighbors,
)

Floats = NDArray[np.float32]


def integer_vectors(seed: int, count: int, dimensions: int = 3) -> Floats:
    """Return small integers, so that products are exact and often tied."""
    return np.random.default_rng(seed).integers(-2, 3, (count, dimensions)).astype(np.float32)


def score(query: Any, text: Any, similarity: Similarity) -> float:
    """Return a score that orders like the similarity, without rounding: the square of Euclidean distances."""
    products = {"euclidean": -np.square(query - text), "manhattan": -np.abs(query - text)}
    return float(products.get(similarity, query * text).sum())


def brute_force(vectors: Vectors, k: int) -> list[list[int]]:
    """Return the neighbors by sorting all pairs (-similarity, index)."""
    result = []
    for query, vector in enumerate(vectors.asked.tolist()):
        scored = [
            (-score(np.array(vector), np.array(text), vectors.similarity), index)
            for index, text in enumerate(vectors.texts.tolist())
            if vectors.queries is not None or index != query
        ]
        result.append([index for _, index in sorted(scored)[:k]])
    return result


@pytest.mark.parametrize("similarity", ["dot", "euclidean", "manhattan"])
@given(st.integers(0, 10**6), st.integers(3, 30), st.integers(1, 12), st.integers(4, 400), st.data())
def test_top_neighbors_equal_brute_force(
    similarity: Similarity, seed: int, texts: int, queries: int, block_bytes: int, data: st.DataObject
) -> None:
    """Ties are ordered by index, whatever the block size."""
    asked = integer_vectors(seed + 1, queries) if data.draw(st.booleans()) else None
    vectors = Vectors(integer_vectors(seed, texts), asked, similarity)
    k = data.draw(st.integers(1, texts - 1))
    assert top_neighbors(vectors, k, block_bytes).tolist() == brute_force(vectors, k)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=50))
def test_spearman_equals_scipy(pairs: list[tuple[int, int]]) -> None:
    """Ties get their mean rank."""
    old, new = np.array(pairs, np.float32).T
    if np.ptp(old) == 0 or np.ptp(new) == 0:
        assert spearman(old, new) is None
    else:
        assert spearman(old, new) == pytest.approx(spearmanr(old, new).statistic)


@pytest.mark.parametrize("queries", [None, 1000])
def test_pairs_of_a_large_file_are_a_reproducible_sample(queries: int | None) -> None:
    left, right = sample_pairs(queries, 2000)
    assert len(left) == len(right) == MAX_PAIRS
    assert left.max() == (queries or 2000) - 1
    assert (right.min(), right.max()) == (0, 1999)
    assert queries is not None or not np.any(left == right)
    again = sample_pairs(queries, 2000)
    assert all(np.array_equal(a, b) for a, b in zip((left, right), again, strict=True))


def test_row_cosines_equal_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "PAIR_BLOCK", 4)
    old, new = (np.random.default_rng(seed).normal(size=(11, 8)) for seed in (1, 2))
    expected = np.sum(old * new, 1) / np.linalg.norm(old, axis=1) / np.linalg.norm(new, axis=1)
    np.testing.assert_allclose(row_cosines(old.astype(np.float32), new.astype(np.float32)), expected, atol=2e-6)


def test_search_holds_a_few_blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call may multiply all queries by all texts."""
    sizes: list[int] = []
    original: Any = Vectors.block_similarities

    def record(vectors: Vectors, rows: slice) -> Floats:
        similarities: Floats = original(vectors, rows)
        sizes.append(similarities.nbytes)
        return similarities

    monkeypatch.setattr(Vectors, "block_similarities", record)
    top_neighbors(Vectors(integer_vectors(4, 100)), 3, block_bytes=4000)
    assert sizes == [4000] * 10


@pytest.mark.parametrize("queries", [None, 7])
def test_all_pairs_of_a_small_file_are_compared(queries: int | None) -> None:
    left, right = (indices.tolist() for indices in sample_pairs(queries, 5))
    expected = [(q, t) for q in range(queries or 5) for t in range(5) if queries or q < t]
    assert list(zip(left, right, strict=True)) == expected


def test_normalize_applies_to_cosine_only_and_keeps_zero() -> None:
    vectors = np.array([[3, 4], [0, 0]], np.float32)
    assert normalize(vectors, "cosine").tolist() == pytest.approx(np.array([[0.6, 0.8], [0, 0]]))
    assert normalize(vectors, "dot") is vectors
