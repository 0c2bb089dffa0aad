"""Alignment of words and character ranges with tokens. Words are defined here, the same way for every model.

A word is a maximal run of letters, digits and marks, with inner apostrophes and hyphens. Each CJK ideograph and each
other non-space character is a word of its own.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import regex
from numpy.typing import NDArray

from model.artifact.tokenizer import NO_SEGMENT, Offsets, TokenizedInput
from service.engine.schema.encode import Token, Word
from service.errors import InvalidArgument


@lru_cache(maxsize=1)
def _word_pattern() -> regex.Pattern[str]:
    run = r"[[\p{L}\p{N}\p{M}]--[\p{Ideographic}]]+"
    return regex.compile(rf"{run}(?:['’‐‑-]{run})*|\S", regex.VERSION1)


def find_words(text: str, start: int = 0, end: int | None = None) -> Iterator[Offsets]:
    """Yield the character range of each word that overlaps `text[start:end]`, in order.

    The cost is linear in the length of that range, plus the distance to the nearest space before it.
    """
    end = len(text) if end is None else end
    # No word contains a space, so a scan that begins after one finds the same words as a scan of the whole text.
    begin = next((index + 1 for index in range(start - 1, -1, -1) if text[index].isspace()), 0)
    for match in _word_pattern().finditer(text, begin):
        first, last = match.span()
        if first >= end:
            return
        if last > start and not match.group().isspace():
            yield first, last


def words_of(tokens: TokenizedInput) -> list[Word]:
    """Return the words of an input, segment A before segment B, without those that truncation removed entirely."""
    if tokens.source.token_ids is not None:
        return []
    texts = [tokens.source.text] if tokens.source.pair is None else [tokens.source.text, tokens.source.pair]
    return [
        Word(text[start:end], start, end, segment)
        for segment, text in enumerate(texts)
        for start, end in find_words(text, *tokens.kept_characters[segment])
    ]


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
    """Return the tokens of a response; a special token gets the segment of the preceding token."""
    described, last_segment = [], 0
    for token_id, text, segment, special, (start, end), word in zip(
        tokens.input_ids,
        token_texts,
        tokens.segment,
        tokens.special_tokens_mask,
        tokens.offsets,
        token_words(tokens, words),
        strict=True,
    ):
        last_segment = last_segment if segment == NO_SEGMENT else segment
        described.append(Token(token_id, text, start, end, word, last_segment, special))
    return described


def token_words(tokens: TokenizedInput, words: Sequence[Word]) -> list[int | None]:
    """Return, per token, the index of the word it overlaps most, the earlier one in a tie; None without overlap.

    `words` do not overlap and are in order within each segment.
    """
    listed = {
        segment: [(index, word) for index, word in enumerate(words) if word.segment == segment] for segment in (0, 1)
    }
    ends = {segment: [word.end for _, word in entries] for segment, entries in listed.items()}
    result = []
    for segment, (start, end) in zip(tokens.segment, tokens.offsets, strict=True):
        best, most = None, 0
        if segment != NO_SEGMENT:
            entries = listed[segment]
            for position in range(bisect_left(ends[segment], start + 1), len(entries)):
                index, word = entries[position]
                if word.start >= end:
                    break
                overlap = min(end, word.end) - max(start, word.start)
                if overlap > most:
                    best, most = index, overlap
        result.append(best)
    return result


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
