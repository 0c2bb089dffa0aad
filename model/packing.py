"""Packed batches: sequences end to end in one row of a tensor, kept apart by `sequence_ids`. Pure functions.

Positions restart at 0 in each sequence. Lengths come from a short list of buckets, so that a backend that compiles
per shape meets few shapes. Padding at the end has sequence id 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LONG_STEP = 128
"""Distance of the buckets beyond the listed ones, in tokens."""


@dataclass(frozen=True)
class LengthBuckets:
    """The lengths that packed batches may have, ascending, and how many tokens sequences may share.

    A sequence longer than `max_batch_tokens` has a batch of its own.
    """

    lengths: tuple[int, ...]
    max_batch_tokens: int

    @classmethod
    def up_to(cls, max_input_tokens: int, max_batch_tokens: int, short: Sequence[int]) -> "LengthBuckets":
        """Return buckets for a model: those of `short` that it needs, and wider steps beyond them."""
        longest = max(max_input_tokens, max_batch_tokens)
        lengths = [length for length in short if length < longest]
        lengths += range(short[-1] + LONG_STEP, longest, LONG_STEP)
        return cls((*lengths, longest), max_batch_tokens)

    def fit(self, tokens: int) -> int:
        """Return the shortest bucket that holds `tokens`."""
        return next(length for length in self.lengths if length >= tokens)


@dataclass(frozen=True)
class PackedBatch:
    """One run of the model.

    `inputs`: int64, four tensors (1, T). `starts` and `sizes`: where each of N sequences lies. `tokens`: T without
    padding.
    """

    inputs: dict[str, Ints]
    starts: list[int]
    sizes: list[int]
    tokens: int

    @property
    def length(self) -> int:
        return len(self.inputs["input_ids"][0])


def pack_batch(sequences: Sequence[tuple[Sequence[int], Sequence[int] | None]], length: int) -> PackedBatch:
    """Pack N sequences, each its `input_ids` and `token_type_ids` (None means all 0), into `length` tokens."""
    batch = np.zeros((4, 1, length), dtype=np.int64)
    input_ids, position_ids, token_type_ids, sequence_ids = batch[:, 0]
    starts, sizes, start = [], [], 0
    for number, (ids, types) in enumerate(sequences, start=1):
        size = len(ids)
        end = start + size
        input_ids[start:end] = ids
        position_ids[start:end] = _POSITIONS[:size] if size <= len(_POSITIONS) else np.arange(size)
        if types is not None:
            token_type_ids[start:end] = types
        sequence_ids[start:end] = number
        starts.append(start)
        sizes.append(size)
        start = end
    names = ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
    return PackedBatch(dict(zip(names, batch, strict=True)), starts, sizes, start)


_POSITIONS = np.arange(512)
