"""Words: our own, the same for every model, and which tokens make them.

A word is a maximal run of letters, digits and marks, with inner apostrophes and hyphens; each CJK ideograph and
each other character that is not a space is a word alone.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import regex
from numpy.typing import NDArray

from model.tokenizer import NO_SEGMENT, Offsets, Tokens
from service.engine.schema.encode import Token, Word


@lru_cache(maxsize=1)
def _word_pattern() -> regex.Pattern[str]:
    run = r"[[\p{L}\p{N}\p{M}]--[\p{Ideographic}]]+"
    return regex.compile(rf"{run}(?:['’‐‑-]{run})*|\S", regex.VERSION1)


def find_words(text: str) -> list[Offsets]:
    """The words of a text as character ranges, in order."""
    return [match.span() for match in _word_pattern().finditer(text) if not match.group().isspace()]


def words_of(tokens: Tokens) -> list[Word]:
    """The words of an input, a pair's second text after its first; what truncation wholly cut off is left out."""
    if tokens.source.token_ids is not None:
        return []
    texts = [tokens.source.text] if tokens.source.pair is None else [tokens.source.text, tokens.source.pair]
    return [
        Word(text[start:end], start, end, segment)
        for segment, text in enumerate(texts)
        for start, end in find_words(text)
        if not is_cut_off(tokens, segment, (start, end))
    ]


def is_cut_off(tokens: Tokens, segment: int, span: Offsets) -> bool:
    """Whether truncation took the whole of a range of characters."""
    cut_start, cut_end = tokens.cut_characters(segment)
    return span[0] >= cut_start and span[1] <= cut_end and cut_start < cut_end


def describe_tokens(tokens: Tokens, surfaces: Sequence[str], words: Sequence[Word]) -> list[Token]:
    """Tokens as callers see them; a special token counts to the text before it."""
    described, last_segment = [], 0
    for number, surface, segment, special, (start, end), word in zip(
        tokens.ids, surfaces, tokens.segment, tokens.special, tokens.offsets, owners(tokens, words), strict=True
    ):
        last_segment = last_segment if segment == NO_SEGMENT else segment
        described.append(Token(number, surface, start, end, word, last_segment, special))
    return described


def owners(tokens: Tokens, words: Sequence[Word]) -> list[int | None]:
    """For each token the index of the word it overlaps most, the earlier one when two tie; None where none is.

    `words` are ranges that do not overlap, in order within each segment.
    """
    listed = {
        segment: [(index, word) for index, word in enumerate(words) if word.segment == segment] for segment in (0, 1)
    }
    ends = {segment: [word.end for _, word in entries] for segment, entries in listed.items()}
    found = []
    for segment, (start, end) in zip(tokens.segment, tokens.offsets, strict=True):
        best, most = None, 0
        if segment != NO_SEGMENT:
            for index, word in listed[segment][bisect_left(ends[segment], start + 1) :]:
                if word.start >= end:
                    break
                overlap = min(end, word.end) - max(start, word.start)
                if overlap > most:
                    best, most = index, overlap
        found.append(best)
    return found


def overlapping_tokens(tokens: Tokens, spans: Sequence[tuple[int, Offsets]]) -> NDArray[np.intp]:
    """For each (segment, range of characters) the tokens that overlap it, as rows `[first, last + 1)`; `(S, 2)`.

    Offsets never go back within a segment, so the tokens of a range are neighbours. Empty where none overlaps.
    """
    segments = np.asarray(tokens.segment)
    starts, ends = np.asarray(tokens.offsets).reshape(-1, 2).T
    found = np.zeros((len(spans), 2), dtype=np.intp)
    for row, (segment, (start, end)) in enumerate(spans):
        hits = np.flatnonzero((segments == segment) & (starts < end) & (ends > start) & (starts < ends))
        if hits.size:
            found[row] = hits[0], hits[-1] + 1
    return found
