"""The tokens of an input: lists with one element per token, offsets in its texts, and truncation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

from model.encodings import Encoding, Offsets

Side = Literal["right", "left"]
Value = TypeVar("Value")

NO_SEGMENT = -1


@dataclass(frozen=True)
class TokenizerInput:
    """One input: a text, a pair of texts, or token ids without special tokens. `prompt` is prepended to `text`."""

    text: str = ""
    pair: str | None = None
    token_ids: tuple[int, ...] | None = None
    prompt: str = ""

    def __post_init__(self) -> None:
        if self.prompt and self.token_ids is not None:
            raise ValueError("prompt: not supported with token_ids. Send text.")


class TokenizedInput:
    """The T tokens of one input. Lists other than `input_ids` are built on first access.

    T includes the tokens of the prompt. They are marked as special tokens, and belong to no segment. Offsets refer to
    the text without the prompt. `truncated` is True if truncation dropped tokens.

    Attributes:
        unattended: The number of tokens at the end to which no token attends.
        skipped_ids: The ids of tokens that have no vector in the output of a multi-vector head.
        least_tokens: The number of tokens that remain if words are removed.
        side: Whether the text is a query or a document, for a model that distinguishes them.
    """

    unattended = 0
    skipped_ids: tuple[int, ...] = ()
    least_tokens = 0
    side: Literal["query", "document"] | None = None

    def __init__(self, source: TokenizerInput, encoding: Encoding, truncation: "_Truncation | None" = None) -> None:
        self.source = source
        self.truncated = truncation is not None
        self._encoding = encoding
        self._truncation = truncation
        self.input_ids = self._keep(encoding.ids)

    def __len__(self) -> int:
        return len(self.input_ids)

    @cached_property
    def token_type_ids(self) -> list[int]:
        """T type ids from the tokenizer; models with `type_vocab_size` 1 need zeros instead."""
        return self._keep(self._encoding.type_ids)

    @cached_property
    def prompt_range(self) -> tuple[int, int]:
        """The token indices `[first, last)` of the prompt; (0, 0) without a prompt.

        A token that covers the end of the prompt and the start of the text belongs to the text.
        """
        length = len(self.source.prompt)
        if not length:
            return 0, 0
        numbers = self._encoding.sequence_ids
        first = next((index for index, number in enumerate(numbers) if number == 0), 0)
        last = first
        for (_, end), number in zip(self._encoding.offsets[first:], numbers[first:], strict=True):
            if number != 0 or end > length:
                break
            last += 1
        return first, last

    @cached_property
    def special_tokens_mask(self) -> list[bool]:
        """T flags, true for tokens that the tokenizer added and for the prompt."""
        mask = [bool(flag) for flag in self._keep(self._encoding.special_tokens_mask)]
        if self.source.prompt:
            first, last = self.prompt_range
            mask[first:last] = [True] * (last - first)
        return mask

    @cached_property
    def segment(self) -> list[int]:
        """T segment numbers: 0 or 1 for the two texts of a pair, -1 for special tokens and the prompt."""
        numbers = [NO_SEGMENT if number is None else number for number in self._keep(self._encoding.sequence_ids)]
        if self.source.prompt:
            first, last = self.prompt_range
            numbers[first:last] = [NO_SEGMENT] * (last - first)
        return numbers

    @cached_property
    def offsets(self) -> list[Offsets]:
        """T character ranges `[start, end)` in the token's text; (0, 0) for special tokens and the prompt."""
        texts = (self.source.text, self.source.pair or "")
        return [
            (0, 0) if segment == NO_SEGMENT else _trim(texts[segment], start, end)
            for (start, end), segment in zip(self._text_offsets(), self.segment, strict=True)
        ]

    @cached_property
    def kept_characters(self) -> tuple[Offsets, Offsets]:
        """The character range `[start, end)` of each segment that remains; all of it if the segment lost no token."""
        texts = (self.source.text, self.source.pair or "")
        if self._truncation is None:
            return (0, len(texts[0])), (0, len(texts[1]))
        side, dropped = self._truncation.side, self._truncation.dropped
        offsets = self._encoding.offsets  # one list per access, as long as the untruncated text: read it once
        prompts = (len(self.source.prompt), 0)

        def kept(segment: int) -> Offsets:
            text = texts[segment]
            if not dropped[segment]:
                return 0, len(text)
            start, end = offsets[dropped[segment][0 if side == "right" else -1]]
            start, end = _trim(text, max(0, start - prompts[segment]), max(0, end - prompts[segment]))
            return (0, start) if side == "right" else (end, len(text))

        return kept(0), kept(1)

    @property
    def has_content(self) -> bool:
        """True if any token is neither a special token nor part of the prompt."""
        if self.source.prompt or self.truncated:
            return not all(self.special_tokens_mask)
        return not all(self._encoding.special_tokens_mask)

    def truncate(self, limit: int, side: Side) -> "TokenizedInput":
        """Return at most `limit` tokens, special tokens included, by dropping tokens at `side`.

        A pair loses tokens as in the strategy "longest_first" of the tokenizers library, where the prompt counts as a
        part of the first text. Special tokens and the prompt are never dropped.
        """
        if len(self) <= limit:
            return self
        content: tuple[list[int], list[int]] = ([], [])
        for index, number in enumerate(self._encoding.sequence_ids):
            if number is not None:
                content[number].append(index)
        room = max(0, limit - (len(self) - len(content[0]) - len(content[1])))
        prompt = self.prompt_range[1] - self.prompt_range[0]
        first, second = _fit_longest_first(len(content[0]), len(content[1]), room)
        if first < prompt:
            first, second = prompt, min(len(content[1]), max(0, room - prompt))
        del content[0][:prompt]
        first -= prompt
        if side == "right":
            dropped = (content[0][first:], content[1][second:])
        else:
            dropped = (content[0][: len(content[0]) - first], content[1][: len(content[1]) - second])
        return TokenizedInput(self.source, self._encoding, _Truncation(side, dropped, len(self)))

    def _text_offsets(self) -> list[Offsets]:
        """Return the offsets in the text without the prompt, before whitespace is trimmed."""
        offsets = self._keep(self._encoding.offsets)
        length = len(self.source.prompt)
        if not length:
            return offsets
        return [
            (max(0, start - length), max(0, end - length)) if segment == 0 else (start, end)
            for (start, end), segment in zip(offsets, self.segment, strict=True)
        ]

    def _keep(self, values: Sequence[Value]) -> list[Value]:
        return list(values) if self._truncation is None else [values[index] for index in self._truncation.kept]


class _Truncation:
    """The token indices of an encoding that truncation dropped, per segment, and those that it kept."""

    def __init__(self, side: Side, dropped: tuple[list[int], list[int]], size: int) -> None:
        self.side = side
        self.dropped = dropped
        excluded = {*dropped[0], *dropped[1]}
        self.kept = [index for index in range(size) if index not in excluded]


def _fit_longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many of the tokens of two texts fit into `room`: `LongestFirst` of the tokenizers library.

    The longer text is shortened to the shorter one. If both are too long, each gets half, and the longer one the odd
    token, the second one if they are equally long.
    """
    shorter, longer = sorted((first, second))
    longer = shorter if shorter > room else max(shorter, min(longer, room - shorter))
    if shorter + longer > room:
        shorter = room // 2
        longer = room - shorter
    return (longer, shorter) if first > second else (shorter, longer)


def _trim(text: str, start: int, end: int) -> Offsets:
    """Return the character range without whitespace at its ends; unchanged if it is all whitespace."""
    covered = text[start:end]
    trimmed = covered.strip()
    if len(trimmed) == len(covered) or not trimmed:
        return start, end
    start += len(covered) - len(covered.lstrip())
    return start, start + len(trimmed)
