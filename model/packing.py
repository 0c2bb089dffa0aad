"""Packing: which waiting texts share the next row, and how a row is laid out. Pure functions over numbers.

Texts lie end to end in one row; positions restart at 0 in each, and `segments` keeps them apart. Row lengths come
from a short list, so that the runtime meets few shapes. Segment 0 is the padding at the end of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LONG_ROW_STEP = 128


@dataclass(frozen=True)
class RowLengths:
    """The lengths rows may have, ascending, and how many tokens texts may share (a longer text has its own row)."""

    lengths: tuple[int, ...]
    shared: int

    @classmethod
    def up_to(cls, max_tokens: int, shared: int, short: Sequence[int]) -> "RowLengths":
        """Lengths that hold any text of the model: those of `short` that it needs, and wider steps beyond them."""
        shared = min(shared, max_tokens)
        lengths = [length for length in short if length < max_tokens]
        lengths += range(short[-1] + LONG_ROW_STEP, max_tokens, LONG_ROW_STEP)
        return cls((*lengths, max_tokens), shared)

    def fit(self, tokens: int) -> int:
        """The shortest row that holds so many tokens."""
        return next(length for length in self.lengths if length >= tokens)


def choose(sizes: Sequence[int], free: int, *, shared: int, texts: int | None = None) -> list[int]:
    """Which of the waiting texts, oldest first, go into the next row: the oldest always, then whatever still fits.

    With several workers `free`, a row takes no more than its share of what waits, so that they work side by side.
    `texts` is the most that a row can have.
    """
    room = min(shared, -(-sum(sizes) // free)) - sizes[0]
    chosen = [0]
    for index in range(1, len(sizes)):
        if len(chosen) == texts:
            break
        if sizes[index] <= room:
            chosen.append(index)
            room -= sizes[index]
    return chosen


@dataclass(frozen=True)
class Row:
    """One run of the model: four arrays `(1, T)`, and where each of the N texts lies in it."""

    inputs: dict[str, Ints]
    starts: list[int]
    sizes: list[int]
    tokens: int

    @property
    def length(self) -> int:
        return len(self.inputs["ids"][0])


def lay_out(texts: Sequence[tuple[Sequence[int], Sequence[int] | None]], length: int) -> Row:
    """Lay N texts, each its ids and types (None means all 0), end to end in a row of `length` tokens."""
    row = np.zeros((4, 1, length), dtype=np.int64)
    ids, positions, types, segments = row[0, 0], row[1, 0], row[2, 0], row[3, 0]
    starts, sizes, at = [], [], 0
    for number, (text_ids, text_types) in enumerate(texts, start=1):
        size = len(text_ids)
        end = at + size
        ids[at:end] = text_ids
        positions[at:end] = _POSITIONS[:size] if size <= len(_POSITIONS) else np.arange(size)
        if text_types is not None:
            types[at:end] = text_types
        segments[at:end] = number
        starts.append(at)
        sizes.append(size)
        at = end
    return Row({"ids": row[0], "positions": row[1], "types": row[2], "segments": row[3]}, starts, sizes, at)


_POSITIONS = np.arange(512)
