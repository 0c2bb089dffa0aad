"""Tokens, words and spans of an input, and aggregation of token maps to these units.

Words are defined here, the same way for every model. A word is a maximal run of letters, digits and marks, with inner
apostrophes, hyphens, middle dots (Catalan), geresh and gershayim (Hebrew, the latter also typed as quotation mark), and
format characters other than zero width spaces, such as the joiners of Persian and Sinhala. Each CJK ideograph, each
emoji sequence and each other non-space character is a separate word. In this, it follows Unicode's UAX #29; unlike
there, inner hyphens do not end a word, and punctuation in numbers does.

Aggregation sums columns and averages rows over a unit's tokens (Clark et al. 2019, section 4.1), so that rows still sum
to 1. Scores do not sum to 1: their columns are combined with log-sum-exp, so that a softmax over words equals the
aggregated attention weights. Norms for units with several tokens are upper bounds (triangle inequality).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import regex
from attendant_client.types import (
    AttendRequest,
    Input,
    Offsets,
    Segments,
    SimilarityUnit,
    SpecialTokens,
    Token,
    Unit,
    Word,
)
from numpy.typing import NDArray

from model.artifact.tokenizer import NO_SEGMENT, TokenizedInput
from service.engine.tasks import make_objects
from service.errors import InvalidArgument

Floats = NDArray[Any]

EMPTY_ROW_RATIO = 1e-6
"""A row is empty if its columns contain less than this fraction of its mass, which is float32 rounding error."""
SEGMENTS: dict[Segments, tuple[int, int]] = {"a_to_a": (0, 0), "a_to_b": (0, 1), "b_to_a": (1, 0), "b_to_b": (1, 1)}


@lru_cache(maxsize=1)
def _word_pattern() -> regex.Pattern[str]:
    run = r"[[\p{L}\p{N}\p{M}]--[\p{Ideographic}]]+"
    quote = r'(?<=\p{Hebrew})"(?=\p{Hebrew})'
    words = rf"{run}(?:(?:['’‐‑·‧׳״-]|{quote}|[\p{{Cf}}--\u200b]+){run})*"
    emoji = r"\p{Extended_Pictographic}[\p{M}\p{Emoji_Modifier}\U000e0020-\U000e007f]*"
    flag = r"\p{Regional_Indicator}{2}"
    space = r"[\s\x1c-\x1f]"  # as str.isspace
    return regex.compile(rf"{words}|{emoji}(?:\u200d{emoji})*|{flag}|[^{space}]", regex.VERSION1)


def find_words(text: str, start: int = 0, end: int | None = None) -> Iterator[Offsets]:
    """Yield the character range of each word that overlaps `text[start:end]`, in order.

    The cost is linear in the length of the range plus the distance to the nearest preceding space.
    """
    end = len(text) if end is None else end
    # No word contains a space, so a scan that starts after a space finds the same words as a scan of the whole text.
    begin = next((index + 1 for index in range(start - 1, -1, -1) if text[index].isspace()), 0)
    for match in _word_pattern().finditer(text, begin):
        first, last = match.span()
        if first >= end:
            return
        if last > start:
            yield first, last


def words_of(tokens: TokenizedInput) -> list[Word]:
    """Return the words of an input, segment A before segment B, except words that truncation removed entirely."""
    if tokens.source.token_ids is not None:
        return []
    texts = [tokens.source.text] if tokens.source.pair is None else [tokens.source.text, tokens.source.pair]
    words = []
    for segment, text in enumerate(texts):
        if tokens.truncated:
            spans = [*find_words(text, *tokens.kept_characters[segment])]
        else:
            spans = [*map(_span_of, _word_pattern().finditer(text))]
        starts, ends = zip(*spans, strict=True) if spans else ((), ())
        covered = [*map(text.__getitem__, map(slice, starts, ends))]
        words += make_objects(Word, covered, starts, ends, [segment] * len(spans))
    return words


_span_of = methodcaller("span")


def is_removed_by_truncation(tokens: TokenizedInput, segment: int, span: Offsets) -> bool:
    """Return whether truncation removed all of a character range."""
    start, end = tokens.kept_characters[segment]
    return tokens.truncated and (span[1] <= start or span[0] >= end)


def empty_span(tokens: TokenizedInput, segment: int, span: Offsets, field: str) -> InvalidArgument:
    """Return the error for a span without tokens."""
    if is_removed_by_truncation(tokens, segment, span):
        return InvalidArgument(
            "removed by truncation", "Shorten the text or remove the span.", field=field, reason="SPAN_TRUNCATED"
        )
    return InvalidArgument(
        "no token is assigned to this span", "Move or remove the span.", field=field, reason="SPAN_EMPTY"
    )


def describe_tokens(tokens: TokenizedInput, token_texts: Sequence[str], words: Sequence[Word]) -> list[Token]:
    """Describe the tokens for a response. A special token gets the preceding token's segment."""
    segments = [0] * len(tokens)
    if tokens.source.pair is not None:
        segments = [*accumulate(tokens.segment, lambda last, own: last if own == NO_SEGMENT else own, initial=0)][1:]
    starts, ends = zip(*tokens.offsets, strict=True) if tokens.offsets else ((), ())
    owners, special = token_words(tokens, words), tokens.special_tokens_mask
    return make_objects(Token, tokens.input_ids, token_texts, starts, ends, owners, segments, special)


def token_words(tokens: TokenizedInput, words: Sequence[Word]) -> list[int | None]:
    """Return, per token, the index of the word it overlaps most, the earlier word in a tie; None without overlap.

    `words` do not overlap and are in order within each segment.
    """
    second = bisect_left(words, 1, key=_segment_of)  # the index of the first word of segment B
    starts, ends = [*map(_start_of, words)], [*map(_end_of, words)]
    bounds = ((0, second), (second, len(words)))
    result: list[int | None] = []
    for segment, (start, end) in zip(tokens.segment, tokens.offsets, strict=True):
        best = None
        if start < end:  # else a special token, or a token without characters
            first, last = bounds[segment]
            place = bisect_right(ends, start, first, last)
            if place < last and starts[place] < end:
                best = place
                if end > ends[place]:  # the token may overlap several words
                    others = range(place, bisect_left(starts, end, place, last))
                    best = max(others, key=lambda one: min(end, ends[one]) - max(start, starts[one]))
        result.append(best)
    return result


_segment_of, _start_of, _end_of = attrgetter("segment"), attrgetter("start"), attrgetter("end")


def overlapping_tokens(tokens: TokenizedInput, spans: Sequence[tuple[int, Offsets]]) -> NDArray[np.intp]:
    """Return, per (segment, character range), the overlapping tokens as rows `[first, last + 1)`; intp, (S, 2).

    Offsets never decrease within a segment, so the tokens of a range are contiguous. Rows without overlap are (0, 0).
    """
    result = np.zeros((len(spans), 2), dtype=np.intp)
    if not spans:
        return result
    segments = np.asarray(tokens.segment)
    starts, ends = np.asarray(tokens.offsets).reshape(-1, 2).T
    wanted_segments = np.fromiter((segment for segment, _ in spans), np.intp, len(spans))
    wanted = np.array([span for _, span in spans])
    for segment in (0, 1):
        content = np.flatnonzero((segments == segment) & (starts < ends))
        rows = np.flatnonzero(wanted_segments == segment)
        if not content.size or not rows.size:
            continue
        first = np.searchsorted(ends[content], wanted[rows, 0], side="right")
        last = np.searchsorted(starts[content], wanted[rows, 1], side="left")
        overlap = first < last
        result[rows[overlap]] = np.stack([content[first[overlap]], content[last[overlap] - 1] + 1], axis=1)
    return result


@dataclass(frozen=True)
class UnitMaps:
    """N maps over units: `values` (N, R, C), `excluded_mass` and `empty` (N, R)."""

    values: Floats
    excluded_mass: Floats
    empty: NDArray[np.bool_]


@dataclass(frozen=True)
class Units:
    """The U units of one input, the membership of its T tokens, and the units that are rows and columns."""

    units: list[Unit]
    membership: NDArray[np.bool_]
    """Units by tokens, (U, T). A token belongs to at most one unit."""
    rows: list[int]
    columns: list[int]

    def aggregate(self, maps: Floats, special_tokens: SpecialTokens) -> UnitMaps:
        """Aggregate token maps (N, T, T) to unit maps; "renormalize" scales rows so that magnitudes sum to 1."""
        from_units = maps[:, self._row_tokens] if self._single_tokens else self._mean_rows(maps)
        outside = ~self.membership[self.columns].any(axis=0)
        values = self._to_columns(from_units)
        lost = from_units[..., outside]
        kept, dropped = np.abs(values).sum(axis=-1), np.abs(lost).sum(axis=-1)
        empty = kept <= EMPTY_ROW_RATIO * (kept + dropped)
        excluded = lost.sum(axis=-1)
        if special_tokens == "renormalize":
            values = values / np.where(empty, 1, kept)[..., None]
        values = np.where(empty[..., None], 0, values)
        return UnitMaps(values.astype(maps.dtype, copy=False), excluded, empty)

    def aggregate_scores(self, scores: Floats) -> Floats:
        """Aggregate token scores (N, T, T) to unit scores (N, R, C)."""
        if self._single_tokens:
            return scores[:, self._row_tokens][:, :, self._column_tokens]
        largest = scores.max(axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            to_units = np.log(self._to_columns(np.exp(scores - largest))) + largest
        # In float32, exp underflows to 0 for scores 87 or more below the row's maximum. Such units get this lower
        # bound.
        floor = np.log(np.finfo(scores.dtype).tiny) + largest
        return self._mean_rows(np.maximum(to_units, floor))

    def aggregate_rows(self, per_token: Floats) -> Floats:
        """Aggregate values per token (T,) to values per row (R,): the mean over the row's tokens."""
        return self._mean_rows(per_token[None, :, None])[0, :, 0]

    def _to_columns(self, maps: Floats) -> Floats:
        if self._single_tokens:
            return maps[..., self._column_tokens]
        return maps @ self.membership[self.columns].T.astype(maps.dtype)

    def _mean_rows(self, maps: Floats) -> Floats:
        chosen = self.membership[self.rows].astype(maps.dtype)
        return (chosen / chosen.sum(axis=1, keepdims=True)) @ maps

    @cached_property
    def _single_tokens(self) -> bool:
        """True if every unit is a single token, so that indexing replaces the matrix product."""
        return bool((self.membership.sum(axis=1) == 1).all())

    @cached_property
    def _row_tokens(self) -> NDArray[np.intp]:
        return self.membership.argmax(axis=1)[self.rows]

    @cached_property
    def _column_tokens(self) -> NDArray[np.intp]:
        return self.membership.argmax(axis=1)[self.columns]


def find_units(
    item: Input, tokens: TokenizedInput, token_texts: Sequence[str], request: AttendRequest, path: str
) -> Units:
    """Return the units of an input; raises `InvalidArgument` for a span without tokens."""
    owner: Sequence[int | None]
    if request.unit == "span":
        units, owner = _spans(item, tokens, path)
    else:
        units, owner = list_units(tokens, token_texts, request.unit)
    kept = [index for index, unit in enumerate(units) if request.special_tokens == "keep" or not unit.special]
    membership = np.array(kept, dtype=np.intp)[:, None] == np.array([-1 if one is None else one for one in owner])
    shown = [units[index] for index in kept]
    if request.segments == "all":
        everything = list(range(len(shown)))
        return Units(shown, membership, everything, everything)
    rows, columns = (
        [index for index, unit in enumerate(shown) if unit.segment == segment] for segment in SEGMENTS[request.segments]
    )
    return Units(shown, membership, rows, columns)


def list_units(
    tokens: TokenizedInput, token_texts: Sequence[str], unit: SimilarityUnit
) -> tuple[list[Unit], Sequence[int]]:
    """Return all tokens or words as units, and the index of each token's unit.

    Tokens outside of words are special units.
    """
    if unit == "token":
        return _tokens(tokens, token_texts), range(len(tokens))
    return _words(tokens, token_texts)


def word_units(tokens: TokenizedInput, token_texts: Sequence[str]) -> Units:
    """Return words as units, and tokens outside of words as special units."""
    units, owner = _words(tokens, token_texts)
    everything = list(range(len(units)))
    return Units(units, np.arange(len(units))[:, None] == np.array(owner), everything, everything)


def _tokens(tokens: TokenizedInput, token_texts: Sequence[str]) -> list[Unit]:
    return [
        Unit(token.text, token.start, token.end, token.segment, token.special)
        for token in describe_tokens(tokens, token_texts, ())
    ]


def _words(tokens: TokenizedInput, token_texts: Sequence[str]) -> tuple[list[Unit], list[int]]:
    """Return words with tokens, tokens outside of words as special units, and each token's unit."""
    words = words_of(tokens)
    units: list[Unit] = []
    owner: list[int] = []
    places: dict[int, int] = {}
    for token in describe_tokens(tokens, token_texts, words):
        if token.word_index is None:
            owner.append(len(units))
            units.append(Unit(token.text, token.start, token.end, token.segment, special=True))
            continue
        if token.word_index not in places:
            word = words[token.word_index]
            places[token.word_index] = len(units)
            units.append(
                Unit(word.text, word.start, word.end, word.segment, special=False, word_index=token.word_index)
            )
        owner.append(places[token.word_index])
    return units, owner


def _spans(item: Input, tokens: TokenizedInput, path: str) -> tuple[list[Unit], list[int | None]]:
    """Return the spans in request order, and each token's span."""
    text = item.text or ""
    ordered = sorted(range(len(item.spans)), key=lambda index: item.spans[index])
    for before, after in pairwise(ordered):
        if item.spans[after][0] < item.spans[before][1]:
            raise InvalidArgument(
                f"overlaps spans[{after}]", "Units must not overlap.",
                field=f"{path}.spans[{before}]", reason="SPANS_OVERLAP",
            )  # fmt: skip
    span_of_token = token_words(
        tokens, [Word(text[start:end], start, end, 0) for start, end in map(item.spans.__getitem__, ordered)]
    )
    owner = [None if index is None else ordered[index] for index in span_of_token]
    for number, span in enumerate(item.spans):
        if number not in owner:
            raise empty_span(tokens, 0, span, f"{path}.spans[{number}]")
    return [Unit(text[start:end], start, end, 0, special=False) for start, end in item.spans], owner
