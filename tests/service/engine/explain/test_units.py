"""Units of attention maps: tokens, words and spans, segment filters, and rejected spans."""

import numpy as np
import pytest
from attendant_client.types import AttendRequest, Input, Segments, SpecialTokens
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.tokenizer import Offsets, Tokenizer, TokenizerInput
from service.errors import InvalidArgument
from service.operations.units import find_units, word_units, words_of
from tests.service.engine.explain.unit_cases import CHEQUE, SPECIALS, TEXTS, make_units, random_probs


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
