"""Aggregation of maps over tokens to maps over units: tokens, words or spans.

A column is the sum over the tokens of its unit, a row the mean (Clark et al. 2019, section 4.1): this keeps the sum of
a row at 1. Scores do not sum to 1. Their columns are the log-sum-exp over tokens, so that a softmax over words equals
the aggregated attention weights. Norms of units of several tokens are upper bounds (triangle inequality).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.tokenizer import TokenizedInput
from service.engine.encode.alignment import describe_tokens, empty_span, token_words, words_of
from service.engine.schema.encode import Input, Word
from service.engine.schema.explain import AttendRequest, Segments, SpecialTokens, Unit
from service.errors import InvalidArgument

Floats = NDArray[Any]

EMPTY_ROW_RATIO = 1e-6
"""Rows whose columns hold less than this ratio of their mass are empty: in float32 it is rounding error."""

SEGMENTS: dict[Segments, tuple[int, int]] = {"a_to_a": (0, 0), "a_to_b": (0, 1), "b_to_a": (1, 0), "b_to_b": (1, 1)}


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
    """(U, T). A token belongs to at most one unit."""
    rows: list[int]
    columns: list[int]

    def aggregate(self, maps: Floats, special_tokens: SpecialTokens) -> UnitMaps:
        """Return maps over tokens (N, T, T) as maps over units; "renormalize" scales rows to magnitudes of sum 1."""
        from_units = self._from_units(maps)
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
        """Return scores over tokens (N, T, T) as scores over units (N, R, C)."""
        if self._single_tokens:
            return scores[:, self._row_tokens][:, :, self._column_tokens]
        largest = scores.max(axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            to_units = np.log(self._to_columns(np.exp(scores - largest))) + largest
        # In float32, exp of a score 87 or more below the largest of its row is 0. Such a unit gets that score.
        floor = np.log(np.finfo(scores.dtype).tiny) + largest
        return self._mean_rows(np.maximum(to_units, floor))

    def aggregate_rows(self, per_token: Floats) -> Floats:
        """Return values per token (T,) as values per row (R,): the mean over its tokens."""
        return self._mean_rows(per_token[None, :, None])[0, :, 0]

    def _from_units(self, maps: Floats) -> Floats:
        return maps[:, self._row_tokens] if self._single_tokens else self._mean_rows(maps)

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
    elif request.unit == "word":
        units, owner = _words(tokens, token_texts)
    else:
        units = _tokens(tokens, token_texts)
        owner = list(range(len(tokens)))
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


def token_units(tokens: TokenizedInput, token_texts: Sequence[str]) -> Units:
    """Return all tokens as units."""
    return _all_units(_tokens(tokens, token_texts), list(range(len(tokens))))


def word_units(tokens: TokenizedInput, token_texts: Sequence[str]) -> Units:
    """Return the words as units, and the tokens outside of words as special units."""
    return _all_units(*_words(tokens, token_texts))


def _all_units(units: list[Unit], owner: Sequence[int]) -> Units:
    everything = list(range(len(units)))
    return Units(units, np.arange(len(units))[:, None] == np.array(owner), everything, everything)


def _tokens(tokens: TokenizedInput, token_texts: Sequence[str]) -> list[Unit]:
    return [
        Unit(token.text, token.start, token.end, token.segment, token.special)
        for token in describe_tokens(tokens, token_texts, ())
    ]


def _words(tokens: TokenizedInput, token_texts: Sequence[str]) -> tuple[list[Unit], list[int]]:
    """Return words that have tokens, tokens outside of words as special units, and the unit of each token."""
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
    """Return the spans in the order of the request, and the span of each token."""
    text = item.source.text
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
