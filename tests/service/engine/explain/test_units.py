"""Units of attention maps: tokens, words and spans, segments, rejected spans, and sums and means over units."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from attendant_client.types import AttendRequest, Input, Segments, SpecialTokens
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.artifact.tokenizer import Offsets, TokenizedInput, Tokenizer, TokenizerInput
from service.errors import InvalidArgument
from service.operations.inputs import tokenizer_inputs
from service.operations.units import Units, find_units, word_units, words_of

Floats = NDArray[Any]
CHEQUE = "He cashed a check at the bank."
WORDS = ("bank", "cashed", "embankment's", "re-enters", ".", "unfathomable", "a", "naïve", "42nd", "漢", "!?", "x")
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)
SPECIALS: tuple[SpecialTokens, ...] = ("keep", "drop", "renormalize")


@dataclass
class TokensAndUnits:
    """An input's tokens and units."""

    tokens: TokenizedInput
    units: Units

    @property
    def texts(self) -> list[str]:
        return [unit.text for unit in self.units.units]


def make_units(
    tokenizer: Tokenizer,
    text: str,
    pair: str | None = None,
    spans: tuple[Offsets, ...] = (),
    limit: int | None = None,
    **fields: Any,
) -> TokensAndUnits:
    """Return a text's tokens and units, truncating it to `limit` tokens on the right."""
    item = Input(text, pair, spans)
    tokens = tokenizer.encode(tokenizer_inputs([item]))[0]
    if limit is not None:
        tokens = tokens.truncate(limit, "right")
    request = AttendRequest((item,), **fields)
    return TokensAndUnits(tokens, find_units(item, tokens, tokenizer.token_texts(tokens), request, "inputs[0]"))


def random_probs(count: int, maps: int = 3) -> Floats:
    """Return uneven maps whose rows sum to 1."""
    exponentials = np.exp(2 * np.random.default_rng(count).standard_normal((maps, count, count)))
    probs: Floats = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probs


# Units of attention maps: tokens, words and spans, segment filters, and rejected spans.


@given(TEXTS, st.none() | TEXTS, st.sampled_from(["token", "word"]), st.sampled_from(SPECIALS))
def test_token_belongs_to_one_unit(
    tokenizer: Tokenizer, text: str, pair: str | None, unit: str, special: SpecialTokens
) -> None:
    """A special token has its own unit, or none if it is dropped. Units are in text order."""
    case = make_units(tokenizer, text, pair, unit=unit, special_tokens=special)
    units_per_token = case.units.membership.sum(axis=0)
    expected = [0 if flag and special != "keep" else 1 for flag in case.tokens.special_tokens_mask]
    assert units_per_token.tolist() == expected
    assert (case.units.membership.sum(axis=1) >= 1).all()
    first = case.units.membership.argmax(axis=1)
    assert first.tolist() == sorted(first.tolist())
    assert any(unit.special for unit in case.units.units) is (special == "keep")


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize(
    ("segments", "rows", "columns"),
    [("all", "ab", "ab"), ("a_to_a", "a", "a"), ("a_to_b", "a", "b"), ("b_to_a", "b", "a"), ("b_to_b", "b", "b")],
)
def test_segment_filter_selects_rows_and_columns(
    tokenizer: Tokenizer, unit: str, special: SpecialTokens, segments: Segments, rows: str, columns: str
) -> None:
    """The other segment's mass is excluded. A special token belongs to the segment before it."""
    texts = (CHEQUE, "Who embanked it?")
    case = make_units(tokenizer, *texts, unit=unit, special_tokens=special, segments=segments)
    unfiltered = make_units(tokenizer, *texts, unit=unit, special_tokens=special)
    units = case.units
    assert case.texts == unfiltered.texts
    assert {units.units[row].segment for row in units.rows} == {"ab".index(letter) for letter in rows}
    assert {units.units[column].segment for column in units.columns} == {"ab".index(letter) for letter in columns}
    probs = random_probs(len(case.tokens))
    aggregated = units.aggregate(probs, special)
    expected = unfiltered.units.aggregate(probs, "drop").values[:, units.rows][:, :, units.columns]
    kept = expected.sum(axis=-1)
    if special == "renormalize":
        expected = expected / kept[..., None]
    np.testing.assert_allclose(aggregated.values, expected, atol=1e-12)
    np.testing.assert_allclose(kept + aggregated.excluded_mass, 1, atol=1e-12)
    if special == "keep":
        segment_a = [unit.text for unit in units.units if unit.segment == 0]
        assert (segment_a[0], segment_a[-1], case.texts[-1]) == ("[CLS]", "[SEP]", "[SEP]")


def test_spans_are_units_in_the_requested_order(tokenizer: Tokenizer) -> None:
    """The mass of tokens outside the spans is excluded, including special tokens."""
    spans = ((25, 29), (3, 9), (12, 17), (9, 11))
    case = make_units(tokenizer, CHEQUE, spans=spans, unit="span")
    assert case.texts == ["bank", "cashed", "check", " a"]
    assert [(unit.start, unit.end, unit.special) for unit in case.units.units] == [
        (start, end, False) for start, end in spans
    ]
    members = [[8], [2, 3], [5], [4]]
    assert [np.flatnonzero(row).tolist() for row in case.units.membership] == members
    probs = random_probs(11)
    aggregated = case.units.aggregate(probs, "keep")
    expected = np.array(
        [[[head[row][:, column].sum() / len(row) for column in members] for row in members] for head in probs]
    )
    np.testing.assert_allclose(aggregated.values, expected, atol=1e-12)
    np.testing.assert_allclose(aggregated.values.sum(axis=-1) + aggregated.excluded_mass, 1, atol=1e-12)


@given(st.permutations([(0, 2), (3, 9), (12, 17), (18, 24), (25, 30)]), st.integers(1, 5))
def test_values_do_not_depend_on_the_order_of_spans(tokenizer: Tokenizer, spans: list[Offsets], count: int) -> None:
    selected = tuple(spans[:count])
    permuted = make_units(tokenizer, CHEQUE, spans=selected, unit="span")
    ordered = make_units(tokenizer, CHEQUE, spans=tuple(sorted(selected)), unit="span")
    probs = random_probs(11)
    order = np.argsort([start for start, _ in selected])
    np.testing.assert_allclose(
        permuted.units.aggregate(probs, "renormalize").values[:, order][:, :, order],
        ordered.units.aggregate(probs, "renormalize").values,
        atol=1e-12,
    )


@pytest.mark.parametrize(
    ("spans", "reason", "message"),
    [
        (
            ((3, 9), (25, 29), (8, 12)),
            "SPANS_OVERLAP",
            r"inputs[0].spans[0]: overlaps spans[2]. Units must not overlap.",
        ),
        (((3, 9), (3, 9)), "SPANS_OVERLAP", r"inputs[0].spans[0]: overlaps spans[1]."),
        (((0, 30), (12, 17)), "SPANS_OVERLAP", r"inputs[0].spans[0]: overlaps spans[1]."),
        (((0, 2), (2, 3)), "SPAN_EMPTY", r"inputs[0].spans[1]: no token is assigned to this span."),
        (((25, 28), (28, 29)), "SPAN_EMPTY", r"inputs[0].spans[1]: no token is assigned to this span."),
        (((27, 29), (25, 27)), "SPAN_EMPTY", r"inputs[0].spans[0]: no token is assigned to this span."),
    ],
    ids=["overlapping", "equal", "nested", "whitespace", "second part of a token", "first span in the text wins"],
)
def test_overlapping_and_empty_spans_are_rejected(
    tokenizer: Tokenizer, spans: tuple[Offsets, ...], reason: str, message: str
) -> None:
    """A token split evenly between two spans belongs to the one that comes first in the text."""
    with pytest.raises(InvalidArgument) as raised:
        make_units(tokenizer, CHEQUE, spans=spans, unit="span")
    assert raised.value.reason == reason
    assert raised.value.message.startswith(message)


def test_token_belongs_to_the_span_with_the_largest_overlap(tokenizer: Tokenizer) -> None:
    assert np.argwhere(make_units(tokenizer, CHEQUE, spans=((26, 28),), unit="span").units.membership).tolist() == [
        [0, 8]
    ]
    case = make_units(tokenizer, CHEQUE, spans=((21, 26), (26, 30)), unit="span")  # "the b" and "ank."
    assert [np.flatnonzero(row).tolist() for row in case.units.membership] == [[7], [8, 9]]


def test_span_is_rejected_when_truncation_removes_all_its_tokens(tokenizer: Tokenizer) -> None:
    """The five remaining tokens are [CLS] he cash ##ed [SEP]."""
    with pytest.raises(InvalidArgument) as raised:
        make_units(tokenizer, CHEQUE, spans=((0, 2), (25, 29)), limit=5, unit="span")
    assert raised.value.reason == "SPAN_TRUNCATED"
    assert raised.value.message == "inputs[0].spans[1]: removed by truncation. Shorten the text or remove the span."
    partial = make_units(tokenizer, CHEQUE, spans=((3, 29),), limit=5, unit="span")
    assert np.flatnonzero(partial.units.membership[0]).tolist() == [2, 3]


def test_word_without_tokens_is_not_a_unit(tokenizer: Tokenizer) -> None:
    """Truncation can remove the tokens, and the tokenizer drops control characters."""
    assert make_units(tokenizer, CHEQUE, limit=4, unit="word").texts == ["[CLS]", "He", "cashed", "[SEP]"]
    assert make_units(tokenizer, "bank \x01 grows", unit="word", special_tokens="drop").texts == ["bank", "grows"]


def test_units_of_token_ids_are_vocabulary_entries(tokenizer: Tokenizer) -> None:
    ids = tuple(make_units(tokenizer, "bank cashed").tokens.input_ids[1:-1])
    (tokens,) = tokenizer.encode([TokenizerInput(token_ids=ids)])
    request = AttendRequest((Input(token_ids=ids),), special_tokens="drop")
    units = find_units(request.inputs[0], tokens, tokenizer.token_texts(tokens), request, "inputs[0]")
    assert [(unit.text, unit.start, unit.end) for unit in units.units] == [
        ("bank", 0, 0),
        ("cash", 0, 0),
        ("##ed", 0, 0),
    ]


@given(TEXTS)
def test_word_units_match_the_word_units_of_maps(tokenizer: Tokenizer, text: str) -> None:
    case = make_units(tokenizer, text, unit="word")
    words = word_units(case.tokens, tokenizer.token_texts(case.tokens))
    assert words.units == case.units.units
    np.testing.assert_array_equal(words.membership, case.units.membership)
    assert words.rows == words.columns == case.units.rows == case.units.columns


def test_word_index_counts_words_without_tokens(tokenizer: Tokenizer) -> None:
    text = "a \u200b b"
    case = make_units(tokenizer, text, None, unit="word", special_tokens="keep")
    assert [(unit.text, unit.word_index) for unit in case.units.units] == [
        ("[CLS]", None), ("a", 0), ("b", 2), ("[SEP]", None)
    ]  # fmt: skip


@given(TEXTS, st.none() | TEXTS)
def test_word_index_refers_to_the_words_of_the_input(tokenizer: Tokenizer, text: str, pair: str | None) -> None:
    case = make_units(tokenizer, text, pair, unit="word", special_tokens="drop")
    words = words_of(case.tokens)
    for unit in case.units.units:
        assert unit.word_index is not None
        word = words[unit.word_index]
        assert (word.text, word.start, word.end, word.segment) == (unit.text, unit.start, unit.end, unit.segment)


# Aggregating token maps to words and spans: sums and means, excluded mass, empty rows and scores.

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
