"""Encodings of texts: lists with one element per token, as the tokenizers library returns them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Offsets = tuple[int, int]


class Encoding(Protocol):
    """The subset of `tokenizers.Encoding` that the tokenizer reads; each list has one element per token."""

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


class ProcessedEncoding:
    """The encoding of a text or pair whose texts were encoded alone, before special tokens were added.

    The library loses the sequence id of the first text of a pair, and trims offsets a second time.
    """

    def __init__(self, processed: Encoding, *texts: Encoding) -> None:
        self.ids = processed.ids
        self._processed = processed
        self._texts = texts

    @property
    def type_ids(self) -> list[int]:
        return self._processed.type_ids

    @property
    def special_tokens_mask(self) -> list[int]:
        return self._processed.special_tokens_mask

    @property
    def sequence_ids(self) -> list[int | None]:
        numbers = iter([number for number, text in enumerate(self._texts) for _ in text.ids])
        return [None if special else next(numbers) for special in self.special_tokens_mask]

    @property
    def offsets(self) -> list[Offsets]:
        offsets = iter([offsets for text in self._texts for offsets in text.offsets])
        return [(0, 0) if special else next(offsets) for special in self.special_tokens_mask]


@dataclass(frozen=True)
class TokenIdsEncoding:
    """The encoding of an input that was sent as token ids."""

    ids: list[int]
    type_ids: list[int]
    special_tokens_mask: list[int]
    sequence_ids: Sequence[int | None]
    offsets: list[Offsets]


@dataclass(frozen=True)
class PairTemplate:
    """A pair as a conversation: `prefix_ids`, the tokens of `head + query + middle + document + tail`, `suffix_ids`."""

    prefix_ids: tuple[int, ...]
    head: str
    middle: str
    tail: str
    suffix_ids: tuple[int, ...]

    def fill(self, query: str, document: str) -> str:
        """Return the text between the prefix and the suffix."""
        return f"{self.head}{query}{self.middle}{document}{self.tail}"


class TemplateEncoding:
    """The encoding of a pair in a template, whose other tokens count as special.

    A token that covers the start of the query or document and text before it belongs to the query or document.
    """

    def __init__(self, text: Encoding, template: PairTemplate, query: str, document: str) -> None:
        self._text = text
        self._before, self._after = len(template.prefix_ids), len(template.suffix_ids)
        start = len(template.head)
        second = start + len(query) + len(template.middle)
        self._ranges = ((start, start + len(query)), (second, second + len(document)))
        self.ids = [*template.prefix_ids, *text.ids, *template.suffix_ids]

    @property
    def type_ids(self) -> list[int]:
        return [0] * len(self.ids)

    @property
    def special_tokens_mask(self) -> list[int]:
        return [int(number is None) for number in self.sequence_ids]

    @property
    def sequence_ids(self) -> list[int | None]:
        return [None] * self._before + [self._segment(*span) for span in self._text.offsets] + [None] * self._after

    @property
    def offsets(self) -> list[Offsets]:
        own = [self._relative(*span) for span in self._text.offsets]
        return [(0, 0)] * self._before + own + [(0, 0)] * self._after

    def _segment(self, start: int, end: int) -> int | None:
        return next((number for number, (first, last) in enumerate(self._ranges) if start < last and end > first), None)

    def _relative(self, start: int, end: int) -> Offsets:
        segment = self._segment(start, end)
        if segment is None:
            return 0, 0
        first, last = self._ranges[segment]
        return max(start, first) - first, min(end, last) - first
