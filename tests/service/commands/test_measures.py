"""Neighbors and measures equal those of SciPy, scikit-learn, and brute force."""

from collections.abc import Callable
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr
from sentence_transformers.util import cos_sim
from sklearn.metrics import ndcg_score, roc_auc_score

from model.artifact.manifest import Similarity
from service.commands import measures
from service.commands import measures as neighbors
from service.commands.measures import (
    MAX_PAIRS,
    Estimate,
    Vectors,
    best_threshold,
    bootstrap,
    estimate_auc,
    estimate_mean,
    estimate_pearson,
    estimate_spearman,
    normalize,
    pearson,
    rank_measures,
    row_cosines,
    sample_pairs,
    spearman,
    top_neighbors,
)

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30)
LABELED = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "RESAMPLES", 20)


def scores_as_vectors(scores: NDArray[np.float32]) -> Vectors:
    """Return vectors whose dot products are `scores`, (Q, N)."""
    return Vectors(np.ascontiguousarray(scores.T), np.eye(len(scores), dtype=np.float32))


@given(PAIRS)
def test_correlations_equal_scipy(pairs: list[tuple[int, int]]) -> None:
    """Ties get their mean rank."""
    left, right = np.array(pairs, np.float64).T
    results = [estimate_spearman(left, right).value, spearman(left, right), estimate_pearson(left, right).value]
    if np.ptp(left) == 0 or np.ptp(right) == 0:
        assert results == [None] * 3
    else:
        oracles = (spearmanr, spearmanr, pearsonr)
        assert results == [pytest.approx(oracle(left, right).statistic) for oracle in oracles]


def test_pearson_of_tiny_and_large_values_is_defined() -> None:
    assert pearson(np.array([0, 1e-300, 0]), np.array([0, 1e9, 0])) == pytest.approx(1)


@given(LABELED)
def test_auc_equals_scikit_learn(pairs: list[tuple[int, bool]]) -> None:
    similarities, same = np.array([pair[0] for pair in pairs], np.float64), np.array([pair[1] for pair in pairs])
    value = estimate_auc(similarities, same).value
    if same.all() or not same.any():
        assert value is None
    else:
        assert value == pytest.approx(roc_auc_score(same, similarities))


@given(LABELED)
def test_best_threshold_has_the_highest_accuracy(pairs: list[tuple[int, bool]]) -> None:
    similarities, same = np.array([pair[0] for pair in pairs], np.float64), np.array([pair[1] for pair in pairs])
    threshold = best_threshold(similarities, same)
    accuracies = [np.mean((similarities >= t) == same) for t in np.arange(-4, 5) + 0.5]
    assert np.mean((similarities >= threshold) == same) == max(accuracies)


def ranked(order: tuple[int, ...], relevant: set[int], k: int) -> tuple[float, float, float]:
    """Return a ranking's measures by definition."""
    ranks = [rank for rank, text in enumerate(order, start=1) if text in relevant]
    gain = sum(1 / np.log2(rank + 1) for rank in ranks if rank <= 10)
    ideal = sum(1 / np.log2(rank + 1) for rank in range(1, min(len(relevant), 10) + 1))
    return sum(rank <= k for rank in ranks) / len(relevant), gain / ideal, 1 / ranks[0]


@given(st.lists(st.integers(0, 2), min_size=2, max_size=5), st.data())
def test_rank_measures_equal_the_mean_over_all_orders(scores: list[int], data: st.DataObject) -> None:
    """Ties are in random order."""
    count = len(scores)
    relevant = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    k = data.draw(st.integers(1, count))
    orders = [
        order
        for order in permutations(range(count))
        if all(scores[first] >= scores[second] for first, second in pairwise(order))
    ]
    expected = np.mean([ranked(order, relevant, k) for order in orders], axis=0)
    vectors = scores_as_vectors(np.array([scores], np.float32))
    result = rank_measures(vectors, [np.array(sorted(relevant))], k)
    assert result[0].tolist() == pytest.approx(expected.tolist())


@given(st.integers(0, 10**6), st.integers(2, 40), st.integers(1, 8), st.integers(4, 400))
def test_ndcg_equals_scikit_learn_for_any_block_size(seed: int, texts: int, queries: int, block_bytes: int) -> None:
    random = np.random.default_rng(seed)
    own, asked = (random.integers(-2, 3, (count, 3)).astype(np.float32) for count in (texts, queries))
    vectors = Vectors(own, asked)
    relevant = [np.flatnonzero(row) for row in (random.random((queries, texts)) < 0.3) | (np.arange(texts) == 0)]
    truth = np.array([[index in row for index in range(texts)] for row in relevant], int)
    expected = [
        ndcg_score(truth[[query]], (vectors.asked @ vectors.texts.T)[[query]], k=10) for query in range(queries)
    ]
    assert rank_measures(vectors, relevant, 1, block_bytes)[:, 1].tolist() == pytest.approx(expected)


def test_cosine_ranking_equals_sentence_transformers() -> None:
    random = np.random.default_rng(3)
    texts, queries = (random.normal(size=(count, 8)).astype(np.float32) for count in (50, 20))
    order = np.argsort(-cos_sim(queries, texts).numpy(), axis=1)
    vectors = Vectors(normalize(texts, "cosine"), normalize(queries, "cosine"))
    result = rank_measures(vectors, [np.array([7])] * 20, 5)
    ranks = [row.index(7) + 1 for row in order.tolist()]
    assert result[:, 2].tolist() == pytest.approx([1 / rank for rank in ranks])
    assert result[:, 0].tolist() == [rank <= 5 for rank in ranks]


def test_interval_has_the_nominal_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of 200 samples with mean 0.5, about 95% must have an interval that contains 0.5."""
    monkeypatch.setattr(measures, "RESAMPLES", 200)
    random = np.random.default_rng(2)
    estimates = [estimate_mean(random.random(100)) for _ in range(200)]
    covered = [e.low <= 0.5 <= e.high for e in estimates if e.low is not None and e.high is not None]
    assert len(covered) == 200
    assert 0.9 <= np.mean(covered) <= 0.99


def test_undefined_resamples_are_left_out() -> None:
    estimate = estimate_pearson(np.array([0.0, 0, 1]), np.array([0.0, 0, 1]))
    assert [estimate.value, estimate.low, estimate.high] == pytest.approx([1, 1, 1])
    calls = iter([0.5, *[None] * measures.RESAMPLES])
    assert bootstrap(lambda _: next(calls), 3) == Estimate(0.5, None, None)


SIDES = st.lists(st.tuples(*[st.integers(0, 3)] * 3, st.booleans()), min_size=3, max_size=12)


def naive_difference(measure: Callable[[NDArray[np.int64]], float], count: int) -> list[float]:
    """Return the value and percentiles of a difference over resamples of the items."""
    random = np.random.default_rng(measures.SEED)
    values = [measure(random.integers(count, size=count)) for _ in range(measures.RESAMPLES)]
    defined = [value for value in values if not np.isnan(value)]
    interval = [float(np.percentile(defined, percent)) for percent in (2.5, 97.5)] if defined else []
    return [measure(np.arange(count)), *interval]


@given(SIDES)
def test_difference_is_paired(items: list[tuple[int, int, int, bool]]) -> None:
    """One interval is for a mean difference, the other for the difference between statistics of the same resamples."""
    own, base, labels = np.array([item[:3] for item in items], np.float64).T
    same = np.array([item[3] for item in items])

    def correlation(values: NDArray[Any], sample: NDArray[np.int64]) -> float:
        if min(np.ptp(values[sample]), np.ptp(labels[sample])) == 0:
            return np.nan
        return float(spearmanr(values[sample], labels[sample]).statistic)

    def area(values: NDArray[Any], sample: NDArray[np.int64]) -> float:
        return np.nan if len(set(same[sample])) < 2 else float(roc_auc_score(same[sample], values[sample]))

    cases: list[tuple[Estimate, Callable[[NDArray[np.int64]], float]]] = [
        (estimate_mean(own).minus(estimate_mean(base)), lambda sample: float((own - base)[sample].mean())),
        (
            estimate_spearman(own, labels).minus(estimate_spearman(base, labels)),
            lambda sample: correlation(own, sample) - correlation(base, sample),
        ),
        (
            estimate_auc(own, same).minus(estimate_auc(base, same)),
            lambda sample: area(own, sample) - area(base, sample),
        ),
    ]
    for difference, measure in cases:
        expected = naive_difference(measure, len(items))
        if np.isnan(expected[0]):
            assert difference == Estimate(None, None, None)
        else:
            result = [value for value in (difference.value, difference.low, difference.high) if value is not None]
            assert result == pytest.approx(expected)


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
