"""From maps over tokens to maps over the units asked for: tokens, words or a caller's spans.

To a unit is the sum over its tokens, from a unit their mean (Clark et al. 2019, section 4.1): the one rule that keeps
rows of shares summing to 1. Scores are no shares: to a unit is the log of the sum of their exponentials there, so that
a softmax over words gives what the words take. Norms of a unit of several tokens are bounds from above (the
triangle inequality).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.tokenizer import Tokens
from service.engine.encode.alignment import describe_tokens, is_cut_off, owners, words_of
from service.engine.schema.encode import Input, Word
from service.engine.schema.explain import AttendRequest, Segments, SpecialTokens, Unit
from service.errors import InvalidArgument

Floats = NDArray[Any]

NO_MASS = 1e-6
"""A row that keeps less than this share of its mass keeps nothing: in float32 that much is rounding."""

SEGMENTS: dict[Segments, tuple[int, int]] = {"a_to_a": (0, 0), "a_to_b": (0, 1), "b_to_a": (1, 0), "b_to_b": (1, 1)}


@dataclass(frozen=True)
class UnitMaps:
    """N maps over units: `values` `(N, R, C)`, the rest `(N, R)`."""

    values: Floats
    excluded_mass: Floats
    no_mass: NDArray[np.bool_]


@dataclass(frozen=True)
class Units:
    """The U units of one input, which of T tokens belong to each, and which are rows and columns."""

    units: list[Unit]
    members: NDArray[np.bool_]
    """`(U, T)`; no token belongs to two units."""
    rows: list[int]
    columns: list[int]

    def fold(self, maps: Floats, special: SpecialTokens) -> UnitMaps:
        """Maps of shares over tokens `(N, T, T)`; `renormalize` makes the magnitudes of each row sum to 1."""
        from_units = self._from_units(maps)
        outside = ~self.members[self.columns].any(axis=0)
        values = self._to_columns(from_units)
        lost = from_units[..., outside]
        kept, dropped = np.abs(values).sum(axis=-1), np.abs(lost).sum(axis=-1)
        no_mass = kept <= NO_MASS * (kept + dropped)
        excluded = lost.sum(axis=-1)
        if special == "renormalize":
            values = values / np.where(no_mass, 1, kept)[..., None]
        values = np.where(no_mass[..., None], 0, values)
        return UnitMaps(values.astype(maps.dtype, copy=False), excluded, no_mass)

    def fold_scores(self, scores: Floats) -> Floats:
        """Scores over tokens `(N, T, T)` as `(N, R, C)`."""
        if self._tokens_alone:
            return scores[:, self._row_tokens][:, :, self._column_tokens]
        largest = scores.max(axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            to_units = np.log(self._to_columns(np.exp(scores - largest))) + largest
        # exp of what is 87 and more below its row's largest is 0 in float32; such a unit has that score.
        floor = np.log(np.finfo(scores.dtype).tiny) + largest
        return self._mean_rows(np.maximum(to_units, floor))

    def fold_rows(self, per_token: Floats) -> Floats:
        """A number for each token `(T,)` as one for each row `(R,)`: the mean over its tokens."""
        return self._mean_rows(per_token[None, :, None])[0, :, 0]

    def _from_units(self, maps: Floats) -> Floats:
        return maps[:, self._row_tokens] if self._tokens_alone else self._mean_rows(maps)

    def _to_columns(self, maps: Floats) -> Floats:
        if self._tokens_alone:
            return maps[..., self._column_tokens]
        return maps @ self.members[self.columns].T.astype(maps.dtype)

    def _mean_rows(self, maps: Floats) -> Floats:
        chosen = self.members[self.rows].astype(maps.dtype)
        return (chosen / chosen.sum(axis=1, keepdims=True)) @ maps

    @cached_property
    def _tokens_alone(self) -> bool:
        """Whether every unit is a single token, so that picking does what multiplying would."""
        return bool((self.members.sum(axis=1) == 1).all())

    @cached_property
    def _row_tokens(self) -> NDArray[np.intp]:
        return self.members.argmax(axis=1)[self.rows]

    @cached_property
    def _column_tokens(self) -> NDArray[np.intp]:
        return self.members.argmax(axis=1)[self.columns]


def find_units(item: Input, tokens: Tokens, surfaces: Sequence[str], request: AttendRequest, where: str) -> Units:
    """The units of an input; raises `InvalidArgument` for a span that no token is left of, or a pair that is none."""
    owner: Sequence[int | None]
    if request.unit == "spans":
        units, owner = _spans(item, tokens, where)
    elif request.unit == "word":
        units, owner = _words(tokens, surfaces)
    else:
        units = [
            Unit(token.text, token.start, token.end, token.segment, token.special)
            for token in describe_tokens(tokens, surfaces, ())
        ]
        owner = list(range(len(tokens)))
    kept = [index for index, unit in enumerate(units) if request.special == "keep" or not unit.special]
    members = np.array(kept, dtype=np.intp)[:, None] == np.array([-1 if one is None else one for one in owner])
    shown = [units[index] for index in kept]
    if request.segments == "all":
        everything = list(range(len(shown)))
        return Units(shown, members, everything, everything)
    if tokens.source.pair is None:
        raise InvalidArgument(f"segments {request.segments} needs a pair, and {where} has none. Use all.")
    rows, columns = (
        [index for index, unit in enumerate(shown) if unit.segment == segment] for segment in SEGMENTS[request.segments]
    )
    return Units(shown, members, rows, columns)


def word_units(tokens: Tokens, surfaces: Sequence[str]) -> Units:
    """Every word as a unit, and every token of no word as a special one."""
    units, owner = _words(tokens, surfaces)
    everything = list(range(len(units)))
    return Units(units, np.arange(len(units))[:, None] == np.array(owner), everything, everything)


def _words(tokens: Tokens, surfaces: Sequence[str]) -> tuple[list[Unit], list[int]]:
    """Words that have a token, and between them, as special units, the tokens that belong to no word."""
    words = words_of(tokens)
    units: list[Unit] = []
    owner: list[int] = []
    places: dict[int, int] = {}
    for token in describe_tokens(tokens, surfaces, words):
        if token.word is None:
            owner.append(len(units))
            units.append(Unit(token.text, token.start, token.end, token.segment, special=True))
            continue
        if token.word not in places:
            word = words[token.word]
            places[token.word] = len(units)
            units.append(Unit(word.text, word.start, word.end, word.segment, special=False))
        owner.append(places[token.word])
    return units, owner


def _spans(item: Input, tokens: Tokens, where: str) -> tuple[list[Unit], list[int | None]]:
    """The caller's spans in the caller's order."""
    text = item.source.text
    ordered = sorted(range(len(item.spans)), key=lambda index: item.spans[index])
    for before, after in pairwise(ordered):
        if item.spans[after][0] < item.spans[before][1]:
            raise InvalidArgument(
                f"{where}.spans[{before}] and spans[{after}] overlap; as units spans must be apart.",
                reason="spans_overlap",
            )
    found = owners(
        tokens, [Word(text[start:end], start, end, 0) for start, end in map(item.spans.__getitem__, ordered)]
    )
    owner = [None if index is None else ordered[index] for index in found]
    for number, span in enumerate(item.spans):
        if number not in owner:
            if is_cut_off(tokens, 0, span):
                raise InvalidArgument(
                    f"{where}.spans[{number}] was wholly cut off by truncation.", reason="span_cut_off"
                )
            raise InvalidArgument(
                f"{where}.spans[{number}] covers no token of its own: only blanks, or part of a token that another "
                "span has more of.",
                reason="span_empty",
            )
    return [Unit(text[start:end], start, end, 0, special=False) for start, end in item.spans], owner
