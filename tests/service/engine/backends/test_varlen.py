"""Varlen batches: shapes, and the tensors that describe the sequences."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.packing import PaddedFill, TokenLimit
from service.engine.backends.varlen import (
    ALIGNED,
    BATCH_LENGTHS,
    MULTIPLE,
    Shape,
    ShapeBuckets,
    pack_varlen,
    split_segments,
)
from tests.service.engine.fake_backend import ItemQueue, cost_of


def first_batch(sizes: list[int], max_tokens: int, max_size: int) -> list[int]:
    queue = ItemQueue(max_tokens)
    for size in sizes:
        queue.put([size], [cost_of(size)])
    return queue.take(TokenLimit(max_tokens), max_size)[0]


LIMITS = st.sampled_from([(41, 64), (256, 1024), (256, 16384), (512, 300), (512, 4096), (8192, 512)])


@given(LIMITS, st.data())
def test_selected_batch_fits_a_shape(limits: tuple[int, int], data: st.DataObject) -> None:
    max_tokens, max_batch_tokens = limits
    shapes = ShapeBuckets.up_to(max_tokens, max_batch_tokens)
    sizes = data.draw(st.lists(st.integers(1, max_tokens), min_size=1, max_size=300))
    batch = first_batch(sizes, max_batch_tokens, shapes.max_sequences)
    assert len(batch) <= shapes.max_sequences
    assert shapes.fit(batch).holds(batch)
    assert all(shape.longest % ALIGNED == shape.tokens % MULTIPLE == 0 for shape in shapes.shapes)


@given(LIMITS, st.data())
def test_padded_batch_fits_a_shape_of_little_memory(limits: tuple[int, int], data: st.DataObject) -> None:
    max_tokens, max_batch_tokens = limits
    shapes = ShapeBuckets.up_to(max_tokens, max_batch_tokens, padded=True)
    assert all(shape.slots * shape.longest <= 4 * shape.tokens for shape in shapes.shapes)
    longest = data.draw(st.sampled_from([1, 3, 16, 17, max_tokens]))
    for size in range(1, longest + 1) if longest < 20 else data.draw(st.lists(st.integers(1, longest), min_size=1)):
        fill, batch = PaddedFill(data.draw(st.integers(1, max_batch_tokens))), [size]
        fill.add(size)
        while len(batch) < shapes.max_sequences and fill.add(other := data.draw(st.integers(1, longest))):
            batch.append(other)
        assert shapes.fit(batch).holds(batch)


@given(LIMITS, st.integers(1, 3))
def test_batch_of_short_sequences_fits_a_shape(limits: tuple[int, int], size: int) -> None:
    """The token limit allows more sequences than a shape has slots."""
    shapes = ShapeBuckets.up_to(*limits)
    sizes = [size] * 5000
    batch = first_batch(sizes, limits[1], shapes.max_sequences)
    assert shapes.fit([size] * len(batch)).holds([size] * len(batch))
    assert len(batch) == min(shapes.max_sequences, max(limits[1] // size, 1))


def test_fit_returns_the_smallest_of_few_shapes() -> None:
    """The warm-up runs every shape, so there must be few of them."""
    shapes = ShapeBuckets.up_to(512, 16384)
    assert len(shapes.shapes) <= 50
    assert shapes.lengths == BATCH_LENGTHS
    assert shapes.fit([128]) == Shape(128, 128, 17)
    assert shapes.fit([129]) == Shape(256, 256, 33)
    assert shapes.fit([128] * 128) == Shape(16384, 128, 512 + 128)
    assert shapes.fit([23] * 712) == Shape(16384, 128, 1024 + 128)
    assert shapes.fit([23] * 700 + [200]) == Shape(16384, 512, 1024 + 32)


def test_lengths_end_at_the_larger_limit() -> None:
    assert ShapeBuckets.up_to(256, 300).lengths == (64, 128, 256, 320)
    assert ShapeBuckets.up_to(8192, 512).lengths[-1] == 8192
    assert ShapeBuckets.up_to(41, 41).lengths == (64,)


@given(st.lists(st.lists(st.integers(1, 999), min_size=1, max_size=40), min_size=1, max_size=30))
def test_cu_seqlens_cover_every_token(sequences: list[list[int]]) -> None:
    """Sequences come first, then padding sequences no longer than the shape's longest length."""
    shape = ShapeBuckets.up_to(40, 2048).fit([len(sequence) for sequence in sequences])
    batch = pack_varlen([(sequence, None) for sequence in sequences], shape)
    bounds = batch.inputs["cu_seqlens"]
    assert (len(bounds), bounds[0], bounds[-1]) == (shape.slots + 1, 0, shape.tokens)
    assert all(0 <= end - start <= shape.longest for start, end in pairwise(bounds.tolist()))
    assert batch.tokens == sum(map(len, sequences))
    for index, sequence in enumerate(sequences):
        start, end = bounds[index], bounds[index + 1]
        assert (batch.starts[index], batch.sizes[index]) == (start, len(sequence))
        assert batch.inputs["input_ids"][start:end].tolist() == sequence
        assert batch.inputs["position_ids"][start:end].tolist() == list(range(len(sequence)))
    assert not batch.inputs["input_ids"][batch.tokens :].any()
    assert not batch.inputs["position_ids"][batch.tokens :].any()


def test_token_type_ids_default_to_zero() -> None:
    batch = pack_varlen([([5, 6], None), ([7, 8, 9], [0, 1, 1]), ([4], None)], Shape(8, 8, 4))
    assert batch.inputs["token_type_ids"].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert {values.dtype for values in batch.inputs.values()} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
    ("sizes", "holds"),
    [([8], True), ([9], False), ([8, 8], True), ([8, 8, 1], False), ([1] * 3, True), ([1] * 4, False)],
)
def test_shape_holds_sizes_within_its_limits(sizes: list[int], holds: bool) -> None:
    """The limits are tokens, the longest sequence, and slots, which padding sequences also occupy."""
    assert Shape(tokens=16, longest=8, slots=5).holds(sizes) == holds


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 100)), min_size=1), st.sampled_from([1, 4, 32]))
def test_segments_cover_the_tokens_of_each_text(gaps_and_sizes: list[tuple[int, int]], length: int) -> None:
    """Texts need not be adjacent: only some of a batch's texts may have sparse vectors."""
    starts, sizes, end = [], [], 0
    for gap, size in gaps_and_sizes:
        starts.append(end + gap)
        sizes.append(size)
        end += gap + size
    positions, is_last = split_segments(starts, sizes, length)
    assert positions.shape == (sum(-(-size // length) for size in sizes), length)
    segments = iter(zip(positions.tolist(), is_last, strict=True))
    for start, size in zip(starts, sizes, strict=True):
        tokens: list[int] = []
        for segment, last in segments:
            tokens += segment
            if last:
                break
        assert tokens == [*range(start, start + size)] + [start + size - 1] * (-size % length)
