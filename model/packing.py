"""Packed batches: sequences end to end in the rows of a tensor, kept apart by `sequence_ids`. Pure functions.

Positions restart at 0 in each sequence. Padding at the end of a row has sequence id 0. Shapes come from a short list,
so that a backend that compiles per shape meets few. Attention costs the square of the row length, so four rows of 128
tokens run 1.4 times as fast as two batches of 256 (bfloat16 with AMX).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LONG_STEP = 128
"""Distance of the row lengths beyond the listed ones, in tokens."""
FIXED_COST, SQUARE_COST = 60, 1 / 640
"""Time of a batch in units of a token: FIXED_COST + R T (1 + SQUARE_COST T), fitted to ten shapes with AMX."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """R rows of T tokens."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    @property
    def cost(self) -> float:
        return FIXED_COST + self.tokens * (1 + SQUARE_COST * self.length)


class BatchShapes:
    """The shapes that batches may have, cheapest first. Any sequences of at most `max_batch_tokens` fit one of them.

    A sequence longer than `max_batch_tokens` has a batch of its own.
    """

    def __init__(self, max_input_tokens: int, max_batch_tokens: int, shapes: Iterable[tuple[int, int]]) -> None:
        """`shapes` are pairs (R, T); those that the model needs are taken, and longer single rows are added."""
        longest = max(max_input_tokens, max_batch_tokens)
        known = {BatchShape(rows, length) for rows, length in shapes if rows * length <= 1.25 * longest}
        last = max((shape.length for shape in known), default=0)
        known |= {BatchShape(1, length) for length in (*range(last + LONG_STEP, longest, LONG_STEP), longest)}
        self.max_batch_tokens = max_batch_tokens
        self.shapes = tuple(sorted(known, key=lambda shape: shape.cost))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The distinct numbers of tokens of a batch, ascending."""
        return tuple(sorted({shape.tokens for shape in self.shapes}))

    def fit(self, sizes: Sequence[int]) -> tuple[BatchShape, list[int]]:
        """Return the cheapest shape that holds sequences of these sizes, and where each starts in its R T tokens."""
        total, longest = sum(sizes), max(sizes)
        for shape in self.shapes:
            if shape.tokens >= total and shape.length >= longest:
                starts = _place(sizes, shape)
                if starts is not None:
                    return shape, starts
        raise ValueError(f"{total} tokens, the longest sequence {longest}, exceed every batch shape")


def _place(sizes: Sequence[int], shape: BatchShape) -> list[int] | None:
    """Place sequences by first fit, longest first; None if they need more rows."""
    if shape.rows == 1:
        ends = np.cumsum(sizes)
        return [int(end) - size for end, size in zip(ends, sizes, strict=True)]
    used, starts = [0] * shape.rows, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        size = sizes[index]
        for row, filled in enumerate(used):
            if filled + size <= shape.length:
                starts[index] = row * shape.length + filled
                used[row] = filled + size
                break
        else:
            return None
    return starts


@dataclass(frozen=True)
class PackedBatch:
    """One run of the model.

    `inputs`: int64, four tensors (R, T). `starts` and `sizes`: where each of N sequences lies in the R T tokens.
    """

    inputs: dict[str, Ints]
    starts: list[int]
    sizes: list[int]


def pack_batch(
    sequences: Sequence[tuple[Sequence[int], Sequence[int] | None]],
    shape: BatchShape,
    starts: Sequence[int] | None = None,
) -> PackedBatch:
    """Pack N sequences, each its `input_ids` and `token_type_ids` (None means all 0).

    `starts` are those of `BatchShapes.fit`; without them, the sequences lie end to end in the order given.
    """
    sizes = [len(ids) for ids, _ in sequences]
    places = list(starts) if starts is not None else [sum(sizes[:index]) for index in range(len(sizes))]
    batch = np.zeros((4, shape.tokens), dtype=np.int64)
    input_ids, position_ids, token_type_ids, sequence_ids = batch
    for number, ((ids, types), start, size) in enumerate(zip(sequences, places, sizes, strict=True), start=1):
        end = start + size
        input_ids[start:end] = ids
        position_ids[start:end] = _POSITIONS[:size] if size <= len(_POSITIONS) else np.arange(size)
        if types is not None:
            token_type_ids[start:end] = types
        sequence_ids[start:end] = number
    names = ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
    rows = batch.reshape(4, shape.rows, shape.length)
    return PackedBatch(dict(zip(names, rows, strict=True)), places, sizes)


_POSITIONS = np.arange(512)
