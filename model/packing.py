"""Packed batches: sequences end to end in the rows of a tensor, separated by `sequence_ids`. Pure functions.

Positions restart at 0 in each sequence. Padding has sequence id 0. Shapes come from a short list, because some
backends compile once per shape. The cost of attention is quadratic in the row length, so four rows of 128 tokens run
1.4 times as fast as two batches of 256 (bfloat16 with AMX).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LONG_STEP = 128
"""Length step, in tokens, of the single-row shapes beyond the listed ones."""
FIXED_COST, SQUARE_COST = 60, 1 / 640
"""Coefficients of the run time in token units, FIXED_COST + R T (1 + SQUARE_COST T), fitted to ten shapes with AMX."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A shape of R rows of T tokens."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        """R * T, padding included."""
        return self.rows * self.length

    @property
    def cost(self) -> float:
        """Estimated run time in token units."""
        return FIXED_COST + self.tokens * (1 + SQUARE_COST * self.length)


class BatchFill(Protocol):
    """A batch while its sequences are selected."""

    @property
    def free(self) -> int:
        """The number of tokens that remain, at least 0."""

    def add(self, size: int) -> bool:
        """Reserve `size` tokens; False if they do not fit. The first sequence always fits."""


class TokenLimit:
    """A batch of at most `free` tokens."""

    def __init__(self, free: int) -> None:
        self.free = free
        self._empty = True

    def add(self, size: int) -> bool:
        if size > self.free and not self._empty:
            return False
        self._empty = False
        self.free = max(0, self.free - size)
        return True


class RowFill:
    """A full batch: the first sequence selects the shape, and each one gets a place in its rows by best fit."""

    def __init__(self, shapes: "BatchShapes") -> None:
        self.free = shapes.max_batch_tokens
        self._shapes = shapes
        self._rows: list[int] = []

    def add(self, size: int) -> bool:
        if not self._rows:
            shape = self._shapes.full_shape(size)
            self._rows = [shape.length] * shape.rows
            self.free = max(size, min(shape.tokens, self.free))
        row = best_row(self._rows, size) if size <= self.free else None
        if row is None:
            return False
        self._rows[row] -= size
        self.free -= size
        return True


class BatchShapes:
    """The allowed shapes of packed batches, cheapest first.

    Any sequences with a total of at most `max_batch_tokens` fit one shape. A longer sequence gets a batch of its own.
    """

    def __init__(self, max_input_tokens: int, max_batch_tokens: int, shapes: Iterable[tuple[int, int]]) -> None:
        """Keep the pairs (R, T) of `shapes` that the limits allow, and add longer single-row shapes."""
        longest = max(max_input_tokens, max_batch_tokens)
        allowed = {
            BatchShape(rows, length)
            for rows, length in shapes
            if rows * length <= (longest if rows == 1 else max_batch_tokens)
        }
        last = max((shape.length for shape in allowed), default=0)
        allowed |= {BatchShape(1, length) for length in (*range(last + LONG_STEP, longest, LONG_STEP), longest)}
        self.max_batch_tokens = max_batch_tokens
        self.shapes = tuple(sorted(allowed, key=lambda shape: shape.cost))
        self._full = sorted(allowed, key=lambda shape: (shape.tokens > max_batch_tokens, shape.cost / shape.tokens))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The distinct token counts (R * T) of the shapes, ascending."""
        return tuple(sorted({shape.tokens for shape in self.shapes}))

    def full_shape(self, size: int) -> BatchShape:
        """Return the shape of a batch under load that starts with a sequence of this size: the cheapest per token."""
        return next(shape for shape in self._full if shape.length >= size)

    def fit(self, sizes: Sequence[int]) -> tuple[BatchShape, list[int]]:
        """Return the cheapest shape that holds sequences of these sizes, and the start of each in its R * T tokens."""
        total, longest = sum(sizes), max(sizes)
        for shape in self.shapes:
            if shape.tokens >= total and shape.length >= longest:
                starts = _place(sizes, shape)
                if starts is not None:
                    return shape, starts
        raise ValueError(f"batch: exceeds every allowed shape ({total} tokens, longest sequence {longest})")


def best_row(rows: Sequence[int], size: int) -> int | None:
    """Return the row with the fewest free tokens that has room for `size`, or None; `rows` are the free tokens."""
    best, least = None, 0
    for row, free in enumerate(rows):
        if free >= size and (best is None or free < least):
            best, least = row, free
    return best


def _place(sizes: Sequence[int], shape: BatchShape) -> list[int] | None:
    """Return the start of each sequence; None if they need more rows.

    Best fit in decreasing order, and then in the order of the batch, in which a `RowFill` has placed it.
    """
    if shape.rows == 1:
        ends = np.cumsum(sizes)
        return [int(end) - size for end, size in zip(ends, sizes, strict=True)]
    numbers = range(len(sizes))
    decreasing = sorted(numbers, key=sizes.__getitem__, reverse=True)
    return _place_in_order(sizes, decreasing, shape) or _place_in_order(sizes, numbers, shape)


def _place_in_order(sizes: Sequence[int], order: Iterable[int], shape: BatchShape) -> list[int] | None:
    rows, starts = [shape.length] * shape.rows, [0] * len(sizes)
    for index in order:
        row = best_row(rows, sizes[index])
        if row is None:
            return None
        starts[index] = (row + 1) * shape.length - rows[row]
        rows[row] -= sizes[index]
    return starts


@dataclass(frozen=True)
class PackedBatch:
    """The inputs of one inference call.

    `inputs`: four int64 tensors (R, T). `starts`, `sizes`: start and length of each sequence in the R * T tokens.
    """

    inputs: dict[str, Ints]
    starts: list[int]
    sizes: list[int]


def pack_batch(
    sequences: Sequence[tuple[Sequence[int], Sequence[int] | None]],
    shape: BatchShape,
    starts: Sequence[int] | None = None,
) -> PackedBatch:
    """Pack N sequences, each a pair of `input_ids` and `token_type_ids` (None means all 0).

    `starts` comes from `BatchShapes.fit`. Without it, sequences are placed end to end in their order.
    """
    sizes = [len(ids) for ids, _ in sequences]
    offsets = list(starts) if starts is not None else [sum(sizes[:index]) for index in range(len(sizes))]
    batch = np.zeros((4, shape.tokens), dtype=np.int64)
    input_ids, position_ids, token_type_ids, sequence_ids = batch
    for number, ((ids, type_ids), start, size) in enumerate(zip(sequences, offsets, sizes, strict=True), start=1):
        end = start + size
        input_ids[start:end] = ids
        position_ids[start:end] = _POSITIONS[:size] if size <= len(_POSITIONS) else np.arange(size)
        if type_ids is not None:
            token_type_ids[start:end] = type_ids
        sequence_ids[start:end] = number
    names = ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
    rows = batch.reshape(4, shape.rows, shape.length)
    return PackedBatch(dict(zip(names, rows, strict=True)), offsets, sizes)


_POSITIONS = np.arange(512)
