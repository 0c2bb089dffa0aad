"""Aggregating token maps to words and spans: sums and means, excluded mass, empty rows and scores."""

import numpy as np
import pytest
from attendant_client.types import SpecialTokens
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.tokenizer import Tokenizer
from tests.service.engine.explain.unit_cases import (
    CHEQUE,
    SPECIALS,
    TEXTS,
    Floats,
    TokensAndUnits,
    make_units,
    random_probs,
)

ONE_TOKEN_WORDS = "money bank grows on the river"


def expected_membership(case: TokensAndUnits) -> Floats:
    """Return the membership matrix, (U, T), from character offsets; special tokens are identified by position."""
    tokens = case.tokens
    return np.array(
        [
            [
                (
                    unit.special
                    and tokens.special_tokens_mask[token]
                    and unit.text == ("[CLS]" if token == 0 else "[SEP]")
                )
                or (
                    not tokens.special_tokens_mask[token]
                    and not unit.special
                    and unit.segment == tokens.segment[token]
                    and unit.start < tokens.offsets[token][1]
                    and tokens.offsets[token][0] < unit.end
                )
                for token in range(len(tokens))
            ]
            for unit in case.units.units
        ],
        dtype=np.float64,
    )


@given(TEXTS)
def test_aggregate_sums_columns_and_averages_rows(tokenizer: Tokenizer, text: str) -> None:
    """With the membership matrix P, the result is `(P / P.sum(1)) A P^T`. Rows still sum to 1."""
    case = make_units(tokenizer, text, unit="word")
    membership = expected_membership(case)
    probs = random_probs(len(case.tokens))
    aggregated = case.units.aggregate(probs, "keep")
    expected = (membership / membership.sum(axis=1, keepdims=True)) @ probs @ membership.T
    np.testing.assert_allclose(aggregated.values, expected, atol=1e-12)
    np.testing.assert_allclose(aggregated.values.sum(axis=-1), 1, atol=1e-12)
    assert (aggregated.excluded_mass == 0).all()
    assert not aggregated.empty.any()


@given(TEXTS, st.sampled_from(["token", "word"]))
def test_kept_and_excluded_mass_sum_to_1(tokenizer: Tokenizer, text: str, unit: str) -> None:
    """Renormalized rows sum to 1 and have the same excluded mass."""
    drop, renormalize = (make_units(tokenizer, text, unit=unit, special_tokens=special) for special in SPECIALS[1:])
    probs = random_probs(len(drop.tokens))
    dropped = drop.units.aggregate(probs, "drop")
    renormalized = renormalize.units.aggregate(probs, "renormalize")
    kept = dropped.values.sum(axis=-1)
    np.testing.assert_allclose(kept + dropped.excluded_mass, 1, atol=1e-12)
    np.testing.assert_allclose(renormalized.values.sum(axis=-1), 1, atol=1e-12)
    np.testing.assert_allclose(renormalized.values * kept[..., None], dropped.values, atol=1e-12)
    np.testing.assert_array_equal(renormalized.excluded_mass, dropped.excluded_mass)
    assert not dropped.empty.any()


@pytest.mark.parametrize("special", SPECIALS[1:])
@pytest.mark.parametrize("remaining", [0.0, 1e-9], ids=["zero", "rounding"])
@pytest.mark.parametrize("unit", ["token", "word"])
def test_row_without_remaining_mass_is_zero_and_empty(
    tokenizer: Tokenizer, special: SpecialTokens, remaining: float, unit: str
) -> None:
    """Renormalization must neither amplify rounding errors nor change the other rows."""
    case = make_units(tokenizer, ONE_TOKEN_WORDS, unit=unit, special_tokens=special)
    probs = random_probs(len(case.tokens)).astype(np.float32)
    before = case.units.aggregate(probs, special)
    probs[1, 3] = remaining
    probs[1, 3, -1] = 1 - remaining * (len(case.tokens) - 1)
    after = case.units.aggregate(probs, special)
    assert np.argwhere(after.empty).tolist() == [[1, 2]]  # without [CLS], the third token is row 2
    assert (after.values[1, 2] == 0).all()
    assert after.excluded_mass[1, 2] == 1
    assert np.isfinite(after.values).all()
    others = ~after.empty
    np.testing.assert_array_equal(after.values[others], before.values[others])


def test_row_with_a_small_remaining_mass_is_renormalized(tokenizer: Tokenizer) -> None:
    """1e-5 is above float32 rounding error."""
    case = make_units(tokenizer, "river bank", special_tokens="renormalize")
    probs = np.array([[[1, 0, 0, 0], [1 - 1e-5, 5e-6, 5e-6, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]]], np.float32)
    aggregated = case.units.aggregate(probs, "renormalize")
    assert not aggregated.empty.any()
    np.testing.assert_allclose(aggregated.values, [[[0.5, 0.5], [0.5, 0.5]]])


def test_signed_values_keep_their_signs(tokenizer: Tokenizer) -> None:
    """Excluded mass is signed, too. The magnitudes in a renormalized row sum to 1."""
    cases = {special: make_units(tokenizer, CHEQUE, unit="word", special_tokens=special) for special in SPECIALS}
    keep, drop, renormalize = (cases[special].units for special in SPECIALS)
    count = len(cases["keep"].tokens)
    shares = np.random.default_rng(6).standard_normal((1, count, count))
    shares /= shares.sum(axis=-1, keepdims=True) * 1.25  # the biases' share is 0.2
    biases = 1 - shares[0].sum(axis=-1)
    kept = keep.aggregate(shares, "keep")
    np.testing.assert_allclose(kept.values[0].sum(axis=-1) + keep.aggregate_rows(biases), 1, atol=1e-12)
    dropped = drop.aggregate(shares, "drop")
    np.testing.assert_allclose(dropped.values, kept.values[:, 1:-1, 1:-1], atol=1e-12)
    np.testing.assert_allclose(dropped.excluded_mass, kept.values[:, 1:-1, [0, -1]].sum(axis=-1), atol=1e-12)
    assert dropped.excluded_mass.min() < 0 < dropped.excluded_mass.max()
    renormalized = renormalize.aggregate(shares, "renormalize")
    np.testing.assert_allclose(np.abs(renormalized.values).sum(axis=-1), 1, atol=1e-12)
    np.testing.assert_array_equal(np.sign(renormalized.values), np.sign(dropped.values))


def test_aggregate_rows_averages_the_tokens_of_a_word(tokenizer: Tokenizer) -> None:
    units = make_units(tokenizer, CHEQUE, unit="word", special_tokens="drop").units
    rows = units.aggregate_rows(np.arange(11.0) ** 2)
    assert rows.tolist() == [1, (4 + 9) / 2, 16, 25, 36, 49, 64, 81]


@given(TEXTS, st.sampled_from(["keep", "drop"]))
def test_softmax_of_word_scores_equals_summed_probs(tokenizer: Tokenizer, text: str, special: SpecialTokens) -> None:
    """Word scores are log-sum-exp, so this holds for every single-token query word."""
    case = make_units(tokenizer, text, unit="word", special_tokens=special)
    scores = 3 * np.random.default_rng(8).standard_normal((2, len(case.tokens), len(case.tokens)))
    exponentials = np.exp(case.units.aggregate_scores(scores))
    probs = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    expected = case.units.aggregate(probs, "renormalize").values
    single = case.units.membership.sum(axis=1) == 1
    softmax = exponentials / exponentials.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(softmax[:, single], expected[:, single], rtol=1e-9)


def test_word_scores_are_row_means_and_column_log_sums(tokenizer: Tokenizer) -> None:
    case = make_units(tokenizer, CHEQUE, unit="word", special_tokens="drop")
    scores = np.random.default_rng(9).standard_normal((1, 11, 11))
    aggregated = case.units.aggregate_scores(scores)
    np.testing.assert_allclose(aggregated[0, 1, 0], scores[0, 2:4, 1].mean(), rtol=1e-12)
    np.testing.assert_allclose(aggregated[0, 0, 1], np.logaddexp(scores[0, 1, 2], scores[0, 1, 3]), rtol=1e-12)
    tokens = make_units(tokenizer, CHEQUE, special_tokens="drop")
    np.testing.assert_array_equal(tokens.units.aggregate_scores(scores), scores[:, 1:-1, 1:-1])


def test_word_scores_far_below_the_row_maximum_stay_finite(tokenizer: Tokenizer) -> None:
    """In float32, the exponential of the difference underflows to 0."""
    case = make_units(tokenizer, CHEQUE, unit="word")
    scores = np.zeros((1, 11, 11), np.float32)
    scores[0, :, 8] = 500
    aggregated = case.units.aggregate_scores(scores)
    assert aggregated.dtype == np.float32
    assert np.isfinite(aggregated).all()
    np.testing.assert_allclose(aggregated[0, :, 7], 500)
    exponentials = np.exp(aggregated[0] - 500)
    assert np.delete(exponentials, 7, axis=1).max() < 1e-37
