"""Varlen batches: the layout for a graph that takes `cu_seqlens` instead of a mask. Pure functions.

A GPU replays the CUDA graph captured for a shape, so shapes come from a short list: number of tokens, number of
sequences, longest sequence. Padding tokens form extra sequences, because the attention kernel writes only inside
sequences. Remaining slots are empty sequences.

Shapes: T tokens, B sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

INPUTS = ("input_ids", "position_ids", "token_type_ids", "cu_seqlens")
BATCH_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 6144, 8192, 12288, 16384)
"""Batch lengths in tokens. The longest saturate a large GPU; a single text uses a short one."""
LONGEST = (128, 512, 2048)
"""Lengths of the longest sequence. The kernel launches one block per 128 tokens of `max_seqlen`, and in causal models
the score bias has `max_seqlen` rows and columns."""
MULTIPLE = 64
"""Batch lengths are multiples of this number of tokens, which layers with windows compute together."""
ALIGNED = 8
"""`longest` is a multiple of this. The memory-efficient kernel requires it for a float16 bias; the kernel that ONNX
Runtime would otherwise use allocates all scores of a batch."""
TOKENS_PER_SEQUENCE = (8, 16, 32)
"""Average tokens per sequence: a shape of T tokens has T divided by this many sequence slots.

Empty slots cost little.
"""
PADDED_TOKENS = 4096
"""Maximum tokens in a batch whose attention computes a score bias, (B, S, S), per head and layer."""
SHORTEST_ROWS = 16
"""Batches with such a bias contain sequences of similar lengths: buckets are powers of two, starting here."""
MANY_TOKENS = 1024
"""Up to this batch length, one slot count per length is enough, because empty slots are cheap."""


@dataclass(frozen=True, order=True)
class Shape:
    """`tokens` T, and `slots` B that each hold a sequence or padding of at most `longest` tokens."""

    tokens: int
    longest: int
    slots: int

    @property
    def input_ranges(self) -> dict[str, tuple[int, int]]:
        """The start and end of each input in `VarlenBatch.values`. All inputs start at a multiple of 64 values."""
        ends = accumulate((self.tokens, self.tokens, self.tokens, self.slots + 1))
        return dict(zip(INPUTS, pairwise((0, *ends)), strict=True))

    @property
    def input_size(self) -> int:
        """The length of `VarlenBatch.values`."""
        return self.input_ranges[INPUTS[-1]][1]

    def holds(self, sizes: Sequence[int]) -> bool:
        """Return whether sequences of these sizes fit, padding included."""
        padding = self.tokens - sum(sizes)
        return padding >= 0 and max(sizes) <= self.longest and len(sizes) + -(-padding // self.longest) <= self.slots


@dataclass(frozen=True)
class ShapeBuckets:
    """All batch shapes, cheapest first, and the maximum number of sequences per batch."""

    shapes: tuple[Shape, ...]
    max_sequences: int

    @classmethod
    def up_to(
        cls, max_input_tokens: int, max_batch_tokens: int, *, padded: bool = False, short: int = 0
    ) -> "ShapeBuckets":
        """Return shapes that hold any sequence of the model, and batches of `max_batch_tokens`.

        With `padded`, shapes hold the batches that `PaddedFill` selects, and B * S is less than 4 * T. With `short`,
        there are also shapes for sequences of up to this length.
        """
        most = _round_up(max(max_input_tokens, max_batch_tokens), MULTIPLE)
        longest_input = _round_up(max_input_tokens, ALIGNED)
        lengths = (*(length for length in BATCH_LENGTHS if length < most), most)
        powers = [SHORTEST_ROWS << shift for shift in range((most // SHORTEST_ROWS).bit_length())]
        longest_lengths = (*(powers if padded else LONGEST), most, *([short] if short else ()))

        def tokens_per_sequence(tokens: int, longest: int) -> tuple[int, ...]:
            if padded:
                return (longest // 2,)
            return TOKENS_PER_SEQUENCE if tokens > MANY_TOKENS else TOKENS_PER_SEQUENCE[:1]

        shapes = {
            Shape(tokens, longest, max(tokens // per_sequence, 1) + -(-tokens // longest))
            for tokens in lengths
            for longest in {min(tokens, length, longest_input) for length in longest_lengths}
            for per_sequence in tokens_per_sequence(tokens, longest)
        }
        return cls(tuple(sorted(shapes)), max(most // TOKENS_PER_SEQUENCE[0], 1))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The batch lengths in tokens, ascending."""
        return tuple(sorted({shape.tokens for shape in self.shapes}))

    @property
    def offset_bytes(self) -> int:
        """The size of the largest `token_offset`, int32, in bytes."""
        return 4 * max(shape.slots * shape.longest for shape in self.shapes)

    def fit(self, sizes: Sequence[int]) -> Shape:
        """Return the cheapest shape that fits sequences of these sizes."""
        return next(shape for shape in self.shapes if shape.holds(sizes))


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class VarlenBatch:
    """One run of the graph.

    `values`: all inputs in one array, int32: three of T values, then `cu_seqlens` of B+1. `inputs`: views of it.
    `starts` and `sizes`: start and length of each of the N sequences.
    """

    shape: Shape
    values: Ints
    inputs: dict[str, Ints]
    starts: list[int]
    sizes: list[int]

    @property
    def tokens(self) -> int:
        return self.starts[-1] + self.sizes[-1]


def pack_varlen(
    sequences: Sequence[tuple[Sequence[int], Sequence[int] | None]], shape: Shape, unattended: Sequence[int] = ()
) -> VarlenBatch:
    """Pack N sequences of `input_ids` and `token_type_ids` (None means all 0). Positions restart in each sequence.

    `unattended`: for each sequence, the number of final tokens that no token attends to.
    """
    sizes = [len(ids) for ids, _ in sequences]
    bounds = [0, *accumulate(sizes)]
    used = bounds[-1]
    values = np.zeros(shape.input_size, dtype=np.int32)
    inputs = {name: values[start:end] for name, (start, end) in shape.input_ranges.items()}
    ids, positions, types, cu_seqlens = inputs.values()
    ids[:used] = np.fromiter(chain.from_iterable(ids for ids, _ in sequences), dtype=np.int32, count=used)
    positions[:used] = np.arange(used) - np.repeat(bounds[:-1], sizes)
    for (_, sequence_types), start, end in zip(sequences, bounds[:-1], bounds[1:], strict=True):
        if sequence_types is not None:
            types[start:end] = sequence_types
    for end, count in zip(bounds[1:], unattended, strict=False):
        if count:
            types[end - count : end] = -1 - types[end - count : end]
    cu_seqlens[: len(bounds)] = bounds
    padding = np.arange(used, shape.tokens, shape.longest)[1:]
    cu_seqlens[len(bounds) : len(bounds) + len(padding)] = padding
    cu_seqlens[len(bounds) + len(padding) :] = shape.tokens
    return VarlenBatch(shape, values, inputs, bounds[:-1], sizes)


def split_segments(starts: Sequence[int], sizes: Sequence[int], length: int) -> tuple[Ints, list[bool]]:
    """Return the tokens of each segment of some texts, int32 (N, `length`), and whether it is the last of its text.

    A text's last segment repeats its last token.
    """
    counts = -(-np.array(sizes) // length)
    texts = np.repeat(np.arange(len(sizes)), counts)
    ends = np.cumsum(counts)
    number = np.arange(len(texts)) - np.repeat(ends - counts, counts)  # of a segment in its text
    places = number[:, None] * length + np.arange(length)
    positions = np.array(starts)[texts, None] + np.minimum(places, np.array(sizes)[texts, None] - 1)
    is_last = np.isin(np.arange(len(texts)), ends - 1)
    return positions.astype(np.int32), is_last.tolist()
