"""From tokens to words and spans: the rule as matrices, what is dropped, and which units there are."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.tokenizer import Offsets, Source, Tokenizer, Tokens
from service.engine.explain.units import Units, find_units, word_units
from service.engine.schema.encode import Input
from service.engine.schema.explain import AttendRequest, Segments, SpecialTokens
from service.errors import InvalidArgument

Floats = NDArray[Any]

CHEQUE = "He cashed a check at the bank."
ONE_PIECE_EACH = "money bank grows on the river"
WORDS = ("bank", "cashed", "embankment's", "re-enters", ".", "unfathomable", "a", "naïve", "42nd", "漢", "!?", "x")
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)
SPECIALS: tuple[SpecialTokens, ...] = ("keep", "drop", "renormalize")


@dataclass
class Found:
    """An input's tokens and units."""

    tokens: Tokens
    units: Units

    @property
    def texts(self) -> list[str]:
        return [unit.text for unit in self.units.units]


def find(
    tokenizer: Tokenizer,
    text: str,
    pair: str | None = None,
    spans: tuple[Offsets, ...] = (),
    limit: int | None = None,
    **fields: Any,
) -> Found:
    """Units of a text, cut to `limit` tokens at the right."""
    item = Input(Source(text, pair), spans)
    tokens = tokenizer.encode([item.source])[0]
    if limit is not None:
        tokens = tokens.truncate(limit, "right")
    request = AttendRequest((item,), **fields)
    return Found(tokens, find_units(item, tokens, tokenizer.surfaces(tokens), request, "inputs[0]"))


def random_probs(count: int, maps: int = 3) -> Floats:
    """Maps whose rows sum to 1, uneven as real ones are."""
    powers = np.exp(2 * np.random.default_rng(count).standard_normal((maps, count, count)))
    probs: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return probs


def pieces_of_words(found: Found) -> Floats:
    """Who belongs to whom `(U, T)`, told from characters alone; a special token is told by its place."""
    tokens = found.tokens
    return np.array(
        [
            [
                (unit.special and tokens.special[token] and unit.text == ("[CLS]" if token == 0 else "[SEP]"))
                or (
                    not tokens.special[token]
                    and not unit.special
                    and unit.segment == tokens.segment[token]
                    and unit.start < tokens.offsets[token][1]
                    and tokens.offsets[token][0] < unit.end
                )
                for token in range(len(tokens))
            ]
            for unit in found.units.units
        ],
        dtype=np.float64,
    )


@given(TEXTS)
def test_to_a_word_is_the_sum_and_from_a_word_the_mean(tokenizer: Tokenizer, text: str) -> None:
    """`(P / P.sum(1)) A P^T` with P from the characters; rows still sum to 1, and nothing is excluded."""
    found = find(tokenizer, text, unit="word")
    pieces = pieces_of_words(found)
    probs = random_probs(len(found.tokens))
    folded = found.units.fold(probs, "keep")
    np.testing.assert_allclose(
        folded.values, (pieces / pieces.sum(axis=1, keepdims=True)) @ probs @ pieces.T, atol=1e-12
    )
    np.testing.assert_allclose(folded.values.sum(axis=-1), 1, atol=1e-12)
    assert (folded.excluded_mass == 0).all()
    assert not folded.no_mass.any()


@given(TEXTS, st.none() | TEXTS, st.sampled_from(["token", "word"]), st.sampled_from(SPECIALS))
def test_each_token_belongs_to_one_unit(
    tokenizer: Tokenizer, text: str, pair: str | None, unit: str, special: SpecialTokens
) -> None:
    """Special ones to a unit of their own, or to none where they are dropped; units stand in the text's order."""
    found = find(tokenizer, text, pair, unit=unit, special=special)
    owners = found.units.members.sum(axis=0)
    expected = [0 if flag and special != "keep" else 1 for flag in found.tokens.special]
    assert owners.tolist() == expected
    assert (found.units.members.sum(axis=1) >= 1).all()
    first = found.units.members.argmax(axis=1)
    assert first.tolist() == sorted(first.tolist())
    assert any(unit.special for unit in found.units.units) is (special == "keep")


def test_a_word_of_one_piece_is_its_token(tokenizer: Tokenizer) -> None:
    """Where every word is one token, words change nothing, to the last bit; beside longer words, nothing of theirs."""
    words, tokens = (find(tokenizer, ONE_PIECE_EACH, unit=unit) for unit in ("word", "token"))
    probs = random_probs(len(words.tokens))
    np.testing.assert_array_equal(words.units.fold(probs, "keep").values, probs)
    np.testing.assert_array_equal(tokens.units.fold(probs, "keep").values, probs)
    mixed = find(tokenizer, CHEQUE, unit="word")
    assert mixed.texts == ["[CLS]", "He", "cashed", "a", "check", "at", "the", "bank", ".", "[SEP]"]
    probs = random_probs(len(mixed.tokens))
    single = [index for index in range(len(mixed.tokens)) if index not in (2, 3)]
    units = [index for index in range(10) if index != 2]
    folded = mixed.units.fold(probs, "keep").values
    np.testing.assert_allclose(folded[:, units][:, :, units], probs[:, single][:, :, single], rtol=1e-12)


@given(TEXTS, st.sampled_from(["token", "word"]))
def test_what_is_dropped_is_said(tokenizer: Tokenizer, text: str, unit: str) -> None:
    """Kept and excluded mass sum to 1; renormalised, the same rows sum to 1, and the mass is said all the same."""
    drop, renormalize = (find(tokenizer, text, unit=unit, special=special) for special in SPECIALS[1:])
    probs = random_probs(len(drop.tokens))
    dropped = drop.units.fold(probs, "drop")
    renormalized = renormalize.units.fold(probs, "renormalize")
    kept = dropped.values.sum(axis=-1)
    np.testing.assert_allclose(kept + dropped.excluded_mass, 1, atol=1e-12)
    np.testing.assert_allclose(renormalized.values.sum(axis=-1), 1, atol=1e-12)
    np.testing.assert_allclose(renormalized.values * kept[..., None], dropped.values, atol=1e-12)
    np.testing.assert_array_equal(renormalized.excluded_mass, dropped.excluded_mass)
    assert not dropped.no_mass.any()


@pytest.mark.parametrize("special", SPECIALS[1:])
@pytest.mark.parametrize("left", [0.0, 1e-9], ids=["nothing", "rounding"])
@pytest.mark.parametrize("unit", ["token", "word"])
def test_a_row_that_lost_all_its_mass_is_zeros_and_named(
    tokenizer: Tokenizer, special: SpecialTokens, left: float, unit: str
) -> None:
    """Never NaN, and never rounding blown up to a whole; the other rows are as they were."""
    found = find(tokenizer, ONE_PIECE_EACH, unit=unit, special=special)
    probs = random_probs(len(found.tokens)).astype(np.float32)
    before = found.units.fold(probs, special)
    probs[1, 3] = left
    probs[1, 3, -1] = 1 - left * (len(found.tokens) - 1)
    after = found.units.fold(probs, special)
    assert np.argwhere(after.no_mass).tolist() == [[1, 2]]  # without [CLS] the third token is row 2
    assert (after.values[1, 2] == 0).all()
    assert after.excluded_mass[1, 2] == 1
    assert np.isfinite(after.values).all()
    others = ~after.no_mass
    np.testing.assert_array_equal(after.values[others], before.values[others])


def test_a_row_that_keeps_a_little_is_no_empty_row(tokenizer: Tokenizer) -> None:
    """A hundred-thousandth is above what float32 rounds away."""
    found = find(tokenizer, "river bank", special="renormalize")
    probs = np.array([[[1, 0, 0, 0], [1 - 1e-5, 5e-6, 5e-6, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]]], np.float32)
    folded = found.units.fold(probs, "renormalize")
    assert not folded.no_mass.any()
    np.testing.assert_allclose(folded.values, [[[0.5, 0.5], [0.5, 0.5]]])


def test_signed_values_keep_their_signs(tokenizer: Tokenizer) -> None:
    """Sums are signed, what is excluded too, and renormalised rows have magnitudes that sum to 1."""
    found = {special: find(tokenizer, CHEQUE, unit="word", special=special) for special in SPECIALS}
    count = len(found["keep"].tokens)
    shares = np.random.default_rng(6).standard_normal((1, count, count))
    shares /= shares.sum(axis=-1, keepdims=True) * 1.25  # a fifth is the biases'
    biases = 1 - shares[0].sum(axis=-1)
    whole = found["keep"].units.fold(shares, "keep")
    np.testing.assert_allclose(whole.values[0].sum(axis=-1) + found["keep"].units.fold_rows(biases), 1, atol=1e-12)
    dropped = found["drop"].units.fold(shares, "drop")
    np.testing.assert_allclose(dropped.values, whole.values[:, 1:-1, 1:-1], atol=1e-12)
    np.testing.assert_allclose(dropped.excluded_mass, whole.values[:, 1:-1, [0, -1]].sum(axis=-1), atol=1e-12)
    assert dropped.excluded_mass.min() < 0 < dropped.excluded_mass.max()
    renormalized = found["renormalize"].units.fold(shares, "renormalize")
    np.testing.assert_allclose(np.abs(renormalized.values).sum(axis=-1), 1, atol=1e-12)
    np.testing.assert_array_equal(np.sign(renormalized.values), np.sign(dropped.values))


def test_a_number_for_each_token_becomes_a_words_mean(tokenizer: Tokenizer) -> None:
    """As rows do."""
    units = find(tokenizer, CHEQUE, unit="word", special="drop").units
    rows = units.fold_rows(np.arange(11.0) ** 2)
    assert rows.tolist() == [1, (4 + 9) / 2, 16, 25, 36, 49, 64, 81]


@given(TEXTS, st.sampled_from(["keep", "drop"]))
def test_a_softmax_of_scores_over_words_is_what_the_words_take(
    tokenizer: Tokenizer, text: str, special: SpecialTokens
) -> None:
    """The log of the sum of exponentials: for a query of one piece, softmax over words = summed probabilities."""
    found = find(tokenizer, text, unit="word", special=special)
    scores = 3 * np.random.default_rng(8).standard_normal((2, len(found.tokens), len(found.tokens)))
    powers = np.exp(found.units.fold_scores(scores))
    probs = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    expected = found.units.fold(probs, "renormalize").values
    single = found.units.members.sum(axis=1) == 1
    np.testing.assert_allclose((powers / powers.sum(axis=-1, keepdims=True))[:, single], expected[:, single], rtol=1e-9)


def test_the_scores_of_a_word_of_pieces(tokenizer: Tokenizer) -> None:
    """From it: the mean of its tokens' scores. To it: never below its tokens', whatever lies beside it."""
    found = find(tokenizer, CHEQUE, unit="word", special="drop")
    scores = np.random.default_rng(9).standard_normal((1, 11, 11))
    folded = found.units.fold_scores(scores)
    np.testing.assert_allclose(folded[0, 1, 0], scores[0, 2:4, 1].mean(), rtol=1e-12)
    np.testing.assert_allclose(folded[0, 0, 1], np.logaddexp(scores[0, 1, 2], scores[0, 1, 3]), rtol=1e-12)
    tokens = find(tokenizer, CHEQUE, special="drop")
    np.testing.assert_array_equal(tokens.units.fold_scores(scores), scores[:, 1:-1, 1:-1])


def test_scores_far_below_their_rows_largest_stay_finite(tokenizer: Tokenizer) -> None:
    """In float32, where exp of the difference is 0, a word has a score that still comes out as nothing."""
    found = find(tokenizer, CHEQUE, unit="word")
    scores = np.zeros((1, 11, 11), np.float32)
    scores[0, :, 8] = 500
    folded = found.units.fold_scores(scores)
    assert folded.dtype == np.float32
    assert np.isfinite(folded).all()
    np.testing.assert_allclose(folded[0, :, 7], 500)
    powers = np.exp(folded[0] - 500)
    assert np.delete(powers, 7, axis=1).max() < 1e-37


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize(
    ("segments", "rows", "columns"),
    [("all", "ab", "ab"), ("a_to_a", "a", "a"), ("a_to_b", "a", "b"), ("b_to_a", "b", "a"), ("b_to_b", "b", "b")],
)
def test_a_segment_filter_picks_rows_and_columns(
    tokenizer: Tokenizer, unit: str, special: SpecialTokens, segments: Segments, rows: str, columns: str
) -> None:
    """What falls to the other text is excluded mass; a special token counts to the text before it."""
    texts = (CHEQUE, "Who embanked it?")
    found = find(tokenizer, *texts, unit=unit, special=special, segments=segments)
    every = find(tokenizer, *texts, unit=unit, special=special)
    units = found.units
    assert found.texts == every.texts
    assert {units.units[row].segment for row in units.rows} == {"ab".index(letter) for letter in rows}
    assert {units.units[column].segment for column in units.columns} == {"ab".index(letter) for letter in columns}
    probs = random_probs(len(found.tokens))
    folded = units.fold(probs, special)
    whole = every.units.fold(probs, "drop")
    picked = whole.values[:, units.rows][:, :, units.columns]
    if special == "renormalize":
        picked = picked / picked.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(folded.values, picked, atol=1e-12)
    kept = whole.values[:, units.rows][:, :, units.columns].sum(axis=-1)
    np.testing.assert_allclose(kept + folded.excluded_mass, 1, atol=1e-12)
    if special == "keep":
        of_a = [text for text, one in zip(found.texts, units.units, strict=True) if one.segment == 0]
        assert (of_a[0], of_a[-1], found.texts[-1]) == ("[CLS]", "[SEP]", "[SEP]")


def test_a_segment_filter_needs_a_pair(tokenizer: Tokenizer) -> None:
    """Said by the input's name."""
    with pytest.raises(InvalidArgument, match=r"^segments a_to_b needs a pair, and inputs\[0\] has none\. Use all\.$"):
        find(tokenizer, CHEQUE, segments="a_to_b")


def test_spans_are_units_in_the_callers_order(tokenizer: Tokenizer) -> None:
    """Disjoint, touching or of several words; what none covers is excluded, special tokens always."""
    spans = ((25, 29), (3, 9), (12, 17), (9, 11))
    found = find(tokenizer, CHEQUE, spans=spans, unit="spans")
    assert found.texts == ["bank", "cashed", "check", " a"]
    assert [(unit.start, unit.end, unit.special) for unit in found.units.units] == [
        (start, end, False) for start, end in spans
    ]
    members = [[8], [2, 3], [5], [4]]
    assert [np.flatnonzero(row).tolist() for row in found.units.members] == members
    probs = random_probs(11)
    folded = found.units.fold(probs, "keep")
    expected = np.array(
        [[[one[row][:, column].sum() / len(row) for column in members] for row in members] for one in probs]
    )
    np.testing.assert_allclose(folded.values, expected, atol=1e-12)
    np.testing.assert_allclose(folded.values.sum(axis=-1) + folded.excluded_mass, 1, atol=1e-12)


@given(st.permutations([(0, 2), (3, 9), (12, 17), (18, 24), (25, 30)]), st.integers(1, 5))
def test_the_order_of_spans_is_only_an_order(tokenizer: Tokenizer, spans: list[Offsets], count: int) -> None:
    """Rows and columns follow it, and no number depends on it."""
    chosen = tuple(spans[:count])
    found = find(tokenizer, CHEQUE, spans=chosen, unit="spans")
    straight = find(tokenizer, CHEQUE, spans=tuple(sorted(chosen)), unit="spans")
    probs = random_probs(11)
    order = np.argsort([start for start, _ in chosen])
    np.testing.assert_allclose(
        found.units.fold(probs, "renormalize").values[:, order][:, :, order],
        straight.units.fold(probs, "renormalize").values,
        atol=1e-12,
    )


@pytest.mark.parametrize(
    ("spans", "reason", "message"),
    [
        (((3, 9), (25, 29), (8, 12)), "spans_overlap", r"inputs[0].spans[0] and spans[2] overlap; as units"),
        (((3, 9), (3, 9)), "spans_overlap", r"inputs[0].spans[0] and spans[1] overlap"),
        (((0, 30), (12, 17)), "spans_overlap", r"inputs[0].spans[0] and spans[1] overlap"),
        (((0, 2), (2, 3)), "span_empty", r"inputs[0].spans[1] covers no token of its own"),
        (((25, 28), (28, 29)), "span_empty", r"inputs[0].spans[1] covers no token of its own"),
        (((27, 29), (25, 27)), "span_empty", r"inputs[0].spans[0] covers no token of its own"),
    ],
    ids=["overlapping", "the same twice", "one in another", "a blank", "a rest of a token", "half of a token"],
)
def test_spans_that_cannot_be_units_are_refused(
    tokenizer: Tokenizer, spans: tuple[Offsets, ...], reason: str, message: str
) -> None:
    """By the numbers that the caller gave them. Of two halves of a token the first in the text has it."""
    with pytest.raises(InvalidArgument) as refused:
        find(tokenizer, CHEQUE, spans=spans, unit="spans")
    assert refused.value.reason == reason
    assert refused.value.message.startswith(message)


def test_a_span_of_part_of_a_token_takes_the_token(tokenizer: Tokenizer) -> None:
    """And of two parts the larger one."""
    assert np.argwhere(find(tokenizer, CHEQUE, spans=((26, 28),), unit="spans").units.members).tolist() == [[0, 8]]
    found = find(tokenizer, CHEQUE, spans=((21, 26), (26, 30)), unit="spans")  # "the b" and "ank."
    assert [np.flatnonzero(row).tolist() for row in found.units.members] == [[7], [8, 9]]


def test_a_span_that_was_cut_off_is_refused_and_one_that_was_cut_in_two_is_not(tokenizer: Tokenizer) -> None:
    """With five tokens [CLS] he cash ##ed [SEP] are left."""
    with pytest.raises(InvalidArgument) as refused:
        find(tokenizer, CHEQUE, spans=((0, 2), (25, 29)), limit=5, unit="spans")
    assert refused.value.reason == "span_cut_off"
    assert refused.value.message == "inputs[0].spans[1] was wholly cut off by truncation."
    found = find(tokenizer, CHEQUE, spans=((3, 29),), limit=5, unit="spans")
    assert np.flatnonzero(found.units.members[0]).tolist() == [2, 3]


def test_a_word_of_which_nothing_is_left_is_no_unit(tokenizer: Tokenizer) -> None:
    """Cut off, or dropped by the tokenizer (a control character)."""
    assert find(tokenizer, CHEQUE, limit=4, unit="word").texts == ["[CLS]", "He", "cashed", "[SEP]"]
    assert find(tokenizer, "bank \x01 grows", unit="word", special="drop").texts == ["bank", "grows"]


def test_ids_are_units_by_their_names(tokenizer: Tokenizer) -> None:
    """They have no characters."""
    source = Source(token_ids=tuple(find(tokenizer, "bank cashed").tokens.ids[1:-1]))
    (tokens,) = tokenizer.encode([source])
    request = AttendRequest((Input(source),), special="drop")
    units = find_units(request.inputs[0], tokens, tokenizer.surfaces(tokens), request, "inputs[0]")
    assert [(unit.text, unit.start, unit.end) for unit in units.units] == [
        ("bank", 0, 0),
        ("cash", 0, 0),
        ("##ed", 0, 0),
    ]


@given(TEXTS)
def test_the_words_that_comparisons_use_are_those_of_maps(tokenizer: Tokenizer, text: str) -> None:
    """With special tokens kept."""
    found = find(tokenizer, text, unit="word")
    words = word_units(found.tokens, tokenizer.surfaces(found.tokens))
    assert words.units == found.units.units
    np.testing.assert_array_equal(words.members, found.units.members)
    assert words.rows == words.columns == found.units.rows == found.units.columns


@given(st.integers(1, 9).flatmap(lambda size: st.lists(st.integers(0, size), min_size=1, max_size=12)))
def test_any_units_at_all_keep_rows_whole(owners: list[int]) -> None:
    """A random partition, in which some tokens belong to none: kept and excluded sum to 1, renormalised rows to 1."""
    members = np.array([[owner == unit for owner in owners] for unit in sorted(set(owners))])[1:]
    if not len(members):
        members = np.ones((1, len(owners)), dtype=bool)
    everything = list(range(len(members)))
    units = Units([], members, everything, everything)
    probs = random_probs(len(owners))
    kept = units.fold(probs, "drop")
    np.testing.assert_allclose(kept.values.sum(axis=-1) + kept.excluded_mass, 1, atol=1e-12)
    np.testing.assert_allclose(units.fold(probs, "renormalize").values.sum(axis=-1), 1, atol=1e-12)
