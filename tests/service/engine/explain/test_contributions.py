"""Contributions of random terms: their sum, their groups, and removed units."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.manifest import POOLINGS
from service.engine.vectors import pool_batch
from service.operations.scoring import PROMPT, SPECIAL, pool_without_units
from service.operations.similarity import Contributions, unit_terms

SIZE = 5


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@given(st.integers(0, 6), st.integers(0, 6))
def test_contributions_and_rest_sum_to_the_product_of_the_sums(query_units: int, document_units: int) -> None:
    query, document = random(query_units + 3, SIZE), random(document_units + 3, SIZE)
    contributions = Contributions.of(query, document)
    rest = contributions.rest
    assert contributions.units.shape == (query_units, document_units)
    total = contributions.units.sum() + rest.special_tokens + rest.prompt + rest.bias
    assert abs(total - query.sum(axis=0) @ document.sum(axis=0)) < 1e-4


@pytest.mark.parametrize(
    ("row", "column", "name"),
    [
        (0, 3, "special_tokens"),
        (2, 0, "special_tokens"),
        (2, 3, "special_tokens"),
        (0, 4, "prompt"),
        (3, 1, "prompt"),
        (3, 4, "prompt"),
        (3, 3, "special_tokens"),
        (2, 4, "special_tokens"),
        (0, 5, "bias"),
        (4, 0, "bias"),
        (4, 3, "bias"),
        (3, 5, "bias"),
        (4, 5, "bias"),
    ],
)
def test_each_product_counts_once(row: int, column: int, name: str) -> None:
    """The terms are two query units and three document units, followed by special tokens, prompt and bias."""
    query, document = np.zeros((5, SIZE), np.float32), np.zeros((6, SIZE), np.float32)
    query[row, 0] = document[column, 0] = 1
    rest = Contributions.of(query, document).rest
    expected = dict.fromkeys(("special_tokens", "prompt", "bias", "dropped"), 0.0) | {name: 1.0}
    assert {key: getattr(rest, key) for key in expected} == expected


@given(st.data())
def test_units_terms_sum_to_the_pooled_vector(data: st.DataObject) -> None:
    owners = np.array(data.draw(st.lists(st.integers(-2, 3), min_size=1, max_size=9)), dtype=np.intp)
    pool_from = data.draw(st.integers(0, len(owners) - 1))
    hidden = random(len(owners), SIZE)
    pooling = data.draw(st.sampled_from([*(name for name in POOLINGS if name != "max"), "cls+mean"]))
    terms = unit_terms(hidden, owners, 4, pooling, pool_from)
    expected = pool_batch(hidden, [0], [len(hidden)], pooling, [pool_from])[0]
    np.testing.assert_allclose(terms.sum(axis=0), expected, atol=1e-5)
    for row, owner in enumerate((0, 1, 2, 3, SPECIAL, PROMPT)):
        (alone,) = pool_batch(hidden * (owners == owner)[:, None], [0], [len(hidden)], pooling, [pool_from])
        np.testing.assert_allclose(terms[row], alone, atol=1e-5)


MANY_TOKENS = ("mean", "max", "mean_sqrt_len", "weighted_mean")


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 2), st.sampled_from(MANY_TOKENS))
def test_pooling_without_a_unit_skips_its_tokens(lengths: list[int], special: int, pooling: str) -> None:
    owners = np.concatenate([np.repeat(np.arange(len(lengths)), lengths), np.full(special, SPECIAL)])
    hidden = random(len(owners), SIZE)
    pooled = pool_without_units(hidden, owners, len(lengths), pooling, 0)
    for unit, vector in enumerate(pooled):
        rest, positions = hidden[owners != unit], 1 + np.flatnonzero(owners != unit)
        expected = np.zeros(SIZE)
        if len(rest):
            expected = {
                "max": rest.max(axis=0),
                "mean": rest.mean(axis=0),
                "mean_sqrt_len": rest.sum(axis=0) / len(rest) ** 0.5,
                "weighted_mean": positions @ rest / positions.sum(),
            }[pooling]
        np.testing.assert_allclose(vector, expected, atol=1e-6)
