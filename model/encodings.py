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


class PairEncoding:
    """The encoding of a pair whose texts were encoded alone, before special tokens were added.

    The library loses the sequence id of the first text, and trims offsets a second time.
    """

    def __init__(self, pair: Encoding, first: Encoding, second: Encoding) -> None:
        self.ids = pair.ids
        self._pair = pair
        self._texts = (first, second)

    @property
    def type_ids(self) -> list[int]:
        return self._pair.type_ids

    @property
    def special_tokens_mask(self) -> list[int]:
        return self._pair.special_tokens_mask

    @property
    def sequence_ids(self) -> list[int | None]:
        numbers = iter([0] * len(self._texts[0].ids) + [1] * len(self._texts[1].ids))
        return [None if special else next(numbers) for special in self.special_tokens_mask]

    @property
    def offsets(self) -> list[Offsets]:
        offsets = iter([*self._texts[0].offsets, *self._texts[1].offsets])
        return [(0, 0) if special else next(offsets) for special in self.special_tokens_mask]


@dataclass(frozen=True)
class TokenIdsEncoding:
    """The encoding of an input that was sent as token ids."""

    ids: list[int]
    type_ids: list[int]
    special_tokens_mask: list[int]
    sequence_ids: Sequence[int | None]
    offsets: list[Offsets]
