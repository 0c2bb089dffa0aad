"""Packed batches: sequences end to end in the rows of a tensor, separated by `sequence_ids`.

Positions restart at 0 in each sequence. Padding has sequence id 0. Shapes come from a short list, because some
backends compile once per shape. The cost of attention is quadratic in the row length, so four rows of 128 tokens run
1.4 times as fast as two batches of 256 (bfloat16 with AMX).
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

PACKED_TOKENS = 512
"""Rows longer than this hold one sequence, with one row per batch, unless `max_batch_tokens` is greater."""
MAX_BATCH_TOKENS = 1024
"""Maximum of `max_batch_tokens`: in longer rows, attention does not separate sequences."""
LONG_STEP = 128
"""Lengths of single-sequence rows are multiples of this, in tokens. It is also the length of query blocks."""
LONG_STEPS = 4
"""Number of these lengths between one power of two and the next. Each is compiled on first use, which takes time and
memory. Powers of two are included because they are the usual truncation limits."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A shape of R rows of T tokens."""

    rows: int
    length: int
    tokens: int = field(init=False, compare=False)
    """R * T, padding included."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", self.rows * self.length)


LEAST_FIXED = 0.25
"""The fixed cost is at least this fraction of the shortest run time, because small batches are never efficient."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Estimated run time of a batch: fixed + R T (token + square T) seconds."""

    fixed: float
    token: float
    square: float

    @classmethod
    def fit(cls, measured: Sequence[tuple[BatchShape, float]]) -> "CostModel":
        """Fit nonnegative coefficients that minimize the squared relative error.

        `measured`: shapes and their run times in seconds, all positive. Fewer than three shapes determine fewer
        coefficients: `token` first, then `fixed`.

        On a busy machine, a short batch runs within one time slice, while longer batches seem up to twice as slow.
        Without `LEAST_FIXED`, each text would then run in a separate batch, which seems cheapest per token.
        """
        seconds = np.array([time for _, time in measured])
        terms = np.array([[shape.tokens, 1.0, shape.tokens * shape.length] for shape, _ in measured])
        least_fixed = LEAST_FIXED * float(seconds.min())
        relative, rest = terms / seconds[:, None], 1 - least_fixed / seconds
        best, least = np.zeros(3), math.inf
        allowed = range(min(3, len(measured)))
        for count in range(1, len(allowed) + 1):
            for used in map(list, combinations(allowed, count)):
                found, *_ = np.linalg.lstsq(relative[:, used], rest)
                error = float(np.sum((relative[:, used] @ found - rest) ** 2))
                if error < least and (found >= 0).all():
                    best, least = np.zeros(3), error
                    best[used] = found
        token, fixed, square = best.tolist()
        return cls(least_fixed + fixed, token, square)

    def seconds(self, shape: BatchShape) -> float:
        return self.fixed + shape.tokens * (self.token + self.square * shape.length)


DEFAULT_COSTS = CostModel(fixed=3e-3, token=5e-5, square=8e-8)
"""Costs that order the shapes until a backend has measured some: the default model in bfloat16 with AMX."""


class BatchFill(Protocol):
    """A batch during selection of its sequences."""

    @property
    def by_total(self) -> bool:
        """Whether any sequences fit if their total is at most `free`, so that one `add` of the total replaces many."""

    @property
    def free(self) -> int:
        """The number of tokens that remain, at least 0."""

    def add(self, size: int) -> bool:
        """Reserve `size` tokens; return False if they do not fit. The first sequence always fits."""


class TokenLimit:
    """A batch of at most `free` tokens."""

    by_total = True

    def __init__(self, free: int) -> None:
        self.free = free
        self._empty = True

    def add(self, size: int) -> bool:
        if size > self.free and not self._empty:
            return False
        self._empty = False
        self.free = max(0, self.free - size)
        return True


MAX_PADDING = 0.25


class PaddedFill:
    """A batch of rows with one sequence each: at most `limit` tokens, including at most 25% padding.

    A sequence longer than `limit` is accepted only as the first, and fills the batch.
    """

    by_total = False

    @classmethod
    def partial(cls, tokens: int, limit: int) -> "PaddedFill":
        """Return an empty batch for about `tokens` tokens without padding, and at most `limit` with padding."""
        return cls(min(limit, math.ceil(tokens / (1 - MAX_PADDING))))

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows = self._tokens = self._longest = 0

    @property
    def free(self) -> int:
        return max(0, self._limit - self._rows * self._longest)

    def add(self, size: int) -> bool:
        longest, tokens = max(self._longest, size), self._tokens + size
        padded = (self._rows + 1) * longest
        if self._rows and (padded > self._limit or padded - tokens > MAX_PADDING * padded):
            return False
        self._rows, self._tokens, self._longest = self._rows + 1, tokens, longest
        return True


class RowFill:
    """A full batch. The first sequence selects the shape; all sequences are placed in its rows by best fit.

    The batch runs for at most `max_seconds`, unless its first sequence takes longer.
    """

    by_total = False

    def __init__(self, shapes: "BatchShapes", max_seconds: float = math.inf) -> None:
        self.free = shapes.max_batch_tokens
        self._shapes = shapes
        self._max_seconds = max_seconds
        self._rows: list[int] = []  # the free tokens of each row, ascending

    def add(self, size: int) -> bool:
        rows = self._rows
        if not rows:
            shape = self._shapes.full_shape(size, self._max_seconds)
            rows = self._rows = [shape.length] * shape.rows
            self.free = max(size, min(shape.tokens, self.free))
        if size > rows[-1] or size > self.free:
            return False
        insort(rows, rows.pop(bisect_left(rows, size)) - size)
        self.free -= size
        return True


class BatchShapes:
    """The allowed shapes of packed batches, cheapest first.

    Sequences with a total of at most `max_batch_tokens` always fit one shape. A longer sequence gets a separate batch.
    `max_batch_tokens` is at most `MAX_BATCH_TOKENS`. Only rows of the `packed` shapes hold several sequences.
    """

    def __init__(
        self,
        max_input_tokens: int,
        max_batch_tokens: int,
        shapes: Iterable[tuple[int, int]],
        costs: CostModel = DEFAULT_COSTS,
    ) -> None:
        """Keep the pairs (R, T) of `shapes` that the limits allow, and add longer single-row shapes."""
        max_batch_tokens = min(max_batch_tokens, MAX_BATCH_TOKENS)
        packed = max(max_batch_tokens, min(max_input_tokens, PACKED_TOKENS))
        allowed = {
            BatchShape(rows, length)
            for rows, length in shapes
            if rows * length <= (packed if rows == 1 else max_batch_tokens)
        }
        last = max((shape.length for shape in allowed), default=0)
        allowed |= {BatchShape(1, length) for length in (*range(last + LONG_STEP, packed, LONG_STEP), packed)}
        allowed |= {BatchShape(1, length) for length in _long_lengths(packed, max_input_tokens)}
        self.max_batch_tokens = max_batch_tokens
        self._packed_length = packed
        self._allowed = sorted(allowed, key=lambda shape: (shape.tokens, shape.length))
        self.use(costs)

    def use(self, costs: CostModel) -> None:
        """Order the shapes by these costs. Not thread-safe."""
        limit = self.max_batch_tokens
        self.costs = costs
        self.shapes = tuple(sorted(self._allowed, key=costs.seconds))
        self.packed = tuple(shape for shape in self.shapes if shape.length <= self._packed_length)
        self._full = sorted(self.shapes, key=lambda shape: (shape.tokens > limit, costs.seconds(shape) / shape.tokens))
        self._row_lengths = sorted({shape.length for shape in self.shapes})
        full = [self.full_shape(length) for length in self._row_lengths]
        self._token_seconds = [costs.seconds(shape) / shape.tokens for shape in full]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The distinct token counts (R * T) of the shapes, ascending."""
        return tuple(sorted({shape.tokens for shape in self.shapes}))

    def sample(self, count: int) -> list[BatchShape]:
        """Return up to `count` distinct packed shapes, evenly spaced from the cheapest to the most expensive."""
        last = len(self.packed) - 1
        return [self.packed[index] for index in sorted({round(last * step / (count - 1)) for step in range(count)})]

    def longest_within(self, max_seconds: float) -> BatchShape | None:
        """Return the longest single-sequence shape that runs within `max_seconds` according to the current costs."""
        long = [shape for shape in self.shapes if shape not in self.packed]
        return max((s for s in long if self.costs.seconds(s) <= max_seconds), key=lambda s: s.length, default=None)

    def full_shape(self, size: int, max_seconds: float = math.inf) -> BatchShape:
        """Return the shape for a full batch that starts with a sequence of this size: the cheapest per token.

        If no fitting shape runs within `max_seconds`, return the fastest one.
        """
        for shape in self._full:
            if shape.length >= size and self.costs.seconds(shape) <= max_seconds:
                return shape
        return next(shape for shape in self.shapes if shape.length >= size)

    def sequence_seconds(self, size: int) -> float:
        """Return the run time of a sequence of this size: its share of a full batch, or a separate batch."""
        index = bisect_left(self._row_lengths, size)
        length = self._row_lengths[index]
        return (size if length <= self._packed_length else length) * self._token_seconds[index]

    def fit(self, sizes: Sequence[int]) -> tuple[BatchShape, list[int]]:
        """Return the cheapest shape that fits sequences of these sizes, and their start indices in its R * T tokens."""
        total, longest = sum(sizes), max(sizes)
        for shape in self.shapes:
            if shape.tokens >= total and shape.length >= longest:
                starts = _place(sizes, shape)
                if starts is not None:
                    return shape, starts
        raise ValueError(f"batch: exceeds every allowed shape ({total} tokens, longest sequence {longest})")


def _long_lengths(packed: int, longest: int) -> list[int]:
    """Return the lengths of rows longer than `packed`, for sequences of up to `longest` tokens, ascending."""
    lengths, length = [], packed
    while length < longest:
        step = max(LONG_STEP, 2 ** (length.bit_length() - 1) // LONG_STEPS)
        length = min((length // step + 1) * step, _round_up(longest))
        lengths.append(length)
    return lengths


def _round_up(length: int) -> int:
    return -(-length // LONG_STEP) * LONG_STEP


def _place(sizes: Sequence[int], shape: BatchShape) -> list[int] | None:
    """Return the start of each sequence; None if they need more rows.

    Tries best fit in decreasing order of size, then in batch order, the order in which `RowFill` placed the sequences.
    """
    if shape.rows == 1:
        return [0, *accumulate(sizes[:-1])]
    numbers = range(len(sizes))
    decreasing = sorted(numbers, key=sizes.__getitem__, reverse=True)
    return _place_in_order(sizes, decreasing, shape) or _place_in_order(sizes, numbers, shape)


def _place_in_order(sizes: Sequence[int], order: Iterable[int], shape: BatchShape) -> list[int] | None:
    rows = [(shape.length, row) for row in range(shape.rows)]  # free tokens and number of each row, ascending
    starts = [0] * len(sizes)
    for index in order:
        place = bisect_left(rows, (sizes[index], 0))
        if place == len(rows):
            return None
        free, row = rows.pop(place)
        starts[index] = (row + 1) * shape.length - free
        insort(rows, (free - sizes[index], row))
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
    """Pack N sequences, given as pairs of `input_ids` and `token_type_ids` (None means all 0).

    `starts` comes from `BatchShapes.fit`. Without `starts`, sequences are placed end to end in order.
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
