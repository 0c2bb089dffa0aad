"""Flat rows: how a row of texts is laid out for a graph that takes bounds in place of a mask. Pure numbers.

A GPU replays what it recorded for a shape, so shapes come from a short list: how many tokens, how many segments, how
long the longest may be. What is left over is covered by spare segments, for the attention kernel writes only what
some segment covers; segments beyond those are empty.

Shapes: T tokens, B segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

ROW_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 6144, 8192, 12288, 16384)
"""In tokens. The longest saturate a large GPU; a lone text takes a short one."""
SHORT = 128
"""The kernel starts work for every 128 tokens of the longest segment that there might be, so short texts pay less."""
TOKENS_A_TEXT = (8, 16, 32)
"""A shape has room for so many texts that each may have this few tokens; room that is never used costs a little."""
MANY_TOKENS = 1024
"""In rows up to this length it costs too little for shapes of their own."""


@dataclass(frozen=True, order=True)
class Shape:
    """`tokens` T and `slots` B, of which each holds a text or spare tokens, none longer than `longest`."""

    tokens: int
    longest: int
    slots: int

    def holds(self, sizes: Sequence[int]) -> bool:
        """Whether texts of these sizes fit, and the spare tokens too."""
        spare = self.tokens - sum(sizes)
        return spare >= 0 and max(sizes) <= self.longest and len(sizes) + -(-spare // self.longest) <= self.slots


@dataclass(frozen=True)
class Shapes:
    """Every shape that rows may have, the cheapest first, and how many texts a row may have at most."""

    shapes: tuple[Shape, ...]
    texts: int

    @classmethod
    def up_to(cls, max_tokens: int, shared: int) -> "Shapes":
        """Shapes that hold any text of the model, and rows of `shared` tokens."""
        most = max(max_tokens, shared)
        lengths = (*(length for length in ROW_LENGTHS if length < most), most)
        found = {
            Shape(tokens, longest, max(tokens // each, 1) + -(-tokens // longest))
            for tokens in lengths
            for longest in (min(tokens, SHORT, max_tokens), min(tokens, max_tokens))
            for each in (TOKENS_A_TEXT if tokens > MANY_TOKENS else TOKENS_A_TEXT[:1])
        }
        return cls(tuple(sorted(found)), max(most // TOKENS_A_TEXT[0], 1))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of tokens, ascending."""
        return tuple(sorted({shape.tokens for shape in self.shapes}))

    def fit(self, sizes: Sequence[int]) -> Shape:
        """The cheapest that holds texts of these sizes."""
        return next(shape for shape in self.shapes if shape.holds(sizes))


@dataclass(frozen=True)
class FlatRow:
    """One run of the graph: its shape, three arrays `(T,)` and one `(B+1,)`, and where each of the N texts lies."""

    shape: Shape
    inputs: dict[str, Ints]
    starts: list[int]
    sizes: list[int]

    @property
    def tokens(self) -> int:
        return self.starts[-1] + self.sizes[-1]


def lay_flat(texts: Sequence[tuple[Sequence[int], Sequence[int] | None]], shape: Shape) -> FlatRow:
    """Lay N texts, each its ids and types (None means all 0), end to end; positions restart at 0 in each."""
    sizes = [len(ids) for ids, _ in texts]
    bounds = [0, *accumulate(sizes)]
    used = bounds[-1]
    row = np.zeros((3, shape.tokens), dtype=np.int32)
    ids, positions, types = row
    ids[:used] = np.fromiter(chain.from_iterable(ids for ids, _ in texts), dtype=np.int32, count=used)
    positions[:used] = np.arange(used) - np.repeat(bounds[:-1], sizes)
    for (_, text_types), start, end in zip(texts, bounds[:-1], bounds[1:], strict=True):
        if text_types is not None:
            types[start:end] = text_types
    cumulative_lengths = np.full(shape.slots + 1, shape.tokens, dtype=np.int32)
    cumulative_lengths[: len(bounds)] = bounds
    spare = np.arange(used, shape.tokens, shape.longest)[1:]
    cumulative_lengths[len(bounds) : len(bounds) + len(spare)] = spare
    inputs = {"ids": ids, "positions": positions, "types": types, "cumulative_lengths": cumulative_lengths}
    return FlatRow(shape, inputs, bounds[:-1], sizes)
