"""Text to tokens: the same object when training and when serving. Knows no torch.

Three rules that differ from a bare `tokenizers.Tokenizer`, and why:
- Truncation and padding written in tokenizer.json are stripped; the caller decides, and is told.
- A text is only text: one that spells `[CLS]` or `</s>` gives ordinary tokens, never special ones.
- Offsets never cover the blanks beside a token, whatever the family's tokenizer thinks of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeVar

import tokenizers
from tokenizers import pre_tokenizers

Side = Literal["right", "left"]
Offsets = tuple[int, int]
Value = TypeVar("Value")

NO_SEGMENT = -1


@dataclass(frozen=True)
class Source:
    """What one input said: a text, a pair of texts, or the ids themselves (without special tokens)."""

    text: str = ""
    pair: str | None = None
    token_ids: tuple[int, ...] | None = None


class Encoding(Protocol):
    """The part of `tokenizers.Encoding` that we read; each list has one element a token."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def type_ids(self) -> list[int]: ...
    @property
    def special_tokens_mask(self) -> list[int]: ...
    @property
    def sequence_ids(self) -> Sequence[int | None]: ...
    @property
    def offsets(self) -> list[Offsets]: ...


class Tokens:
    """The T tokens of one input; the lists are made from the encoding when they are first asked for."""

    def __init__(self, source: Source, encoding: Encoding, cut: "_Cut | None" = None) -> None:
        self.source = source
        self._encoding = encoding
        self._cut = cut
        self.ids = self._keep(encoding.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def types(self) -> list[int]:
        """T type ids, as the tokenizer gives them (a model with fewer types must lower them)."""
        return self._keep(self._encoding.type_ids)

    @cached_property
    def special(self) -> list[bool]:
        """T flags: true for what the tokenizer added around the text."""
        return [bool(flag) for flag in self._keep(self._encoding.special_tokens_mask)]

    @cached_property
    def segment(self) -> list[int]:
        """Which text of a pair each token is of, 0 or 1; -1 for a special token."""
        return [NO_SEGMENT if number is None else number for number in self._keep(self._encoding.sequence_ids)]

    @cached_property
    def offsets(self) -> list[Offsets]:
        """T ranges `[start, end)` in characters of the token's text as sent; (0, 0) for a special token."""
        texts = (self.source.text, self.source.pair or "")
        return [
            (0, 0) if segment == NO_SEGMENT else _without_blanks(texts[segment], start, end)
            for (start, end), segment in zip(self._keep(self._encoding.offsets), self.segment, strict=True)
        ]

    @cached_property
    def kept_characters(self) -> tuple[Offsets, Offsets]:
        """The character range `[start, end)` of each segment that truncation left; the whole text if it cut nothing."""
        texts = (self.source.text, self.source.pair or "")
        if self._cut is None:
            return (0, len(texts[0])), (0, len(texts[1]))
        offsets = self._encoding.offsets  # one list per access, as long as the untruncated text: read it once

        def kept(segment: int, dropped: Sequence[int]) -> Offsets:
            text = texts[segment]
            if not dropped:
                return 0, len(text)
            if self._cut is not None and self._cut.side == "right":
                return 0, _without_blanks(text, *offsets[dropped[0]])[0]
            return _without_blanks(text, *offsets[dropped[-1]])[1], len(text)

        return kept(0, self._cut.dropped[0]), kept(1, self._cut.dropped[1])

    @property
    def has_content(self) -> bool:
        """Whether anything but special tokens is left."""
        return not all(self._keep(self._encoding.special_tokens_mask))

    @property
    def truncated(self) -> bool:
        return self._cut is not None

    def truncate(self, limit: int, side: Side) -> "Tokens":
        """At most `limit` tokens, special ones included, cut at one side; a pair loses from its longer text first."""
        excess = len(self) - limit
        if excess <= 0:
            return self
        content: tuple[list[int], list[int]] = ([], [])
        for index, number in enumerate(self._encoding.sequence_ids):
            if number is not None:
                content[number].append(index)
        first, second = len(content[0]), len(content[1])
        while excess and first + second:
            # One token at a time would do the same; this takes a whole stretch from the longer text.
            stretch = max(1, min(excess, abs(first - second)))
            if first >= second:
                first -= min(stretch, first)
            else:
                second -= min(stretch, second)
            excess = len(self) - limit - (len(content[0]) - first) - (len(content[1]) - second)
        if side == "right":
            dropped = (content[0][first:], content[1][second:])
        else:
            dropped = (content[0][: len(content[0]) - first], content[1][: len(content[1]) - second])
        return Tokens(self.source, self._encoding, _Cut(side, dropped, len(self)))

    def _keep(self, values: Sequence[Value]) -> list[Value]:
        return list(values) if self._cut is None else [values[index] for index in self._cut.kept]


class Tokenizer:
    """A tokenizer.json, ready to use from any thread."""

    def __init__(self, definition: bytes) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_str(definition.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        frame = self._tokenizer.encode_batch(["a"])[0]
        content = [index for index, flag in enumerate(frame.special_tokens_mask) if not flag]
        if not content:
            raise ValueError("the tokenizer gives no token for the text 'a'")
        self._prefix = frame.ids[: content[0]]
        self._suffix = frame.ids[content[-1] + 1 :]
        self._content_type = frame.type_ids[content[0]]
        # From here on special tokens come from the frame alone, never from a text that spells them.
        self._tokenizer.encode_special_tokens = True
        self._split_spelled_special_tokens()

    @property
    def vocabulary(self) -> int:
        """One more than the largest id it can give."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def _split_spelled_special_tokens(self) -> None:
        """Where spelling `</s>` gives it all the same (a unigram model has it as a piece), cut the spelling."""
        special = {
            number: token for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        }
        spelled = [
            f"{re.escape(token.content[0])}(?={re.escape(token.content[1:])})"
            for number, token in special.items()
            if len(token.content) > 1
            and number in self._tokenizer.encode_batch([token.content], add_special_tokens=False)[0].ids
        ]
        if spelled:
            cut = pre_tokenizers.Split(tokenizers.Regex("|".join(spelled)), "merged_with_previous")
            known = self._tokenizer.pre_tokenizer
            self._tokenizer.pre_tokenizer = cut if known is None else pre_tokenizers.Sequence([known, cut])

    def encode(self, sources: Sequence[Source], *, offsets: bool = True) -> list[Tokens]:
        """Tokens of each source, whole. Without `offsets` it is a fifth faster and offsets are all (0, 0)."""
        texts = [
            source.text if source.pair is None else (source.text, source.pair)
            for source in sources
            if source.token_ids is None
        ]
        # encode_batch even for one text: encode holds the interpreter lock while it works.
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        encodings = iter(encode(texts) if texts else ())
        return [
            Tokens(source, next(encodings) if source.token_ids is None else self._frame(source.token_ids))
            for source in sources
        ]

    def surfaces(self, tokens: Tokens) -> list[str]:
        """What each token looks like: its slice of the text, or the name of a special or given token."""
        texts = (tokens.source.text, tokens.source.pair or "")
        by_name = tokens.source.token_ids is not None
        return [
            self._tokenizer.id_to_token(number) or "" if by_name or segment == NO_SEGMENT else texts[segment][start:end]
            for number, segment, (start, end) in zip(tokens.ids, tokens.segment, tokens.offsets, strict=True)
        ]

    def _frame(self, ids: Sequence[int]) -> Encoding:
        before, after = len(self._prefix), len(self._suffix)
        size = before + len(ids) + after
        return _Given(
            ids=[*self._prefix, *ids, *self._suffix],
            type_ids=[self._content_type] * size,
            special_tokens_mask=[1] * before + [0] * len(ids) + [1] * after,
            sequence_ids=[None] * before + [0] * len(ids) + [None] * after,
            offsets=[(0, 0)] * size,
        )


@dataclass(frozen=True)
class _Given:
    """An encoding made from the caller's own ids."""

    ids: list[int]
    type_ids: list[int]
    special_tokens_mask: list[int]
    sequence_ids: Sequence[int | None]
    offsets: list[Offsets]


class _Cut:
    """Which of an encoding's tokens truncation dropped, for each text, and which it kept."""

    def __init__(self, side: Side, dropped: tuple[list[int], list[int]], size: int) -> None:
        self.side = side
        self.dropped = dropped
        gone = {*dropped[0], *dropped[1]}
        self.kept = [index for index in range(size) if index not in gone]


def _without_blanks(text: str, start: int, end: int) -> Offsets:
    covered = text[start:end]
    trimmed = covered.strip()
    if len(trimmed) == len(covered) or not trimmed:
        return start, end
    start += len(covered) - len(covered.lstrip())
    return start, start + len(trimmed)
