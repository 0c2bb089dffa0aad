"""Flat rows: every row has a shape, every token a segment."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.backends.varlen import BATCH_LENGTHS, Shape, ShapeBuckets, pack_varlen
from service.engine.fair_queue import FairQueue


def batch_of(sizes: list[int], max_tokens: int, max_size: int) -> list[int]:
    queue: FairQueue[int] = FairQueue(max_tokens)
    for size in sizes:
        queue.add([size], [size])
    return queue.select_batch(max_tokens, max_size)[0]


LIMITS = st.sampled_from([(41, 64), (256, 1024), (256, 16384), (512, 300), (512, 4096), (8192, 512)])


@given(LIMITS, st.data())
def test_what_is_chosen_has_a_shape(limits: tuple[int, int], data: st.DataObject) -> None:
    """Whatever waits, the row that is chosen from it fits, and one shape fewer in tokens would not hold it."""
    max_tokens, shared = limits
    shapes = ShapeBuckets.up_to(max_tokens, shared)
    sizes = data.draw(st.lists(st.integers(1, max_tokens), min_size=1, max_size=300))
    chosen = batch_of(sizes, shared, shapes.max_sequences)
    assert len(chosen) <= shapes.max_sequences
    assert shapes.fit(chosen).holds(chosen)


@given(LIMITS, st.integers(1, 3))
def test_rows_of_the_shortest_texts_have_a_shape(limits: tuple[int, int], size: int) -> None:
    """Many more would fit by their tokens than a row has segments for."""
    shapes = ShapeBuckets.up_to(*limits)
    sizes = [size] * 5000
    chosen = batch_of(sizes, limits[1], shapes.max_sequences)
    assert shapes.fit([size] * len(chosen)).holds([size] * len(chosen))
    assert len(chosen) == min(shapes.max_sequences, max(limits[1] // size, 1))


def test_shapes_are_few_and_the_cheapest_is_taken() -> None:
    """Each is run before the server is ready."""
    shapes = ShapeBuckets.up_to(512, 16384)
    assert len(shapes.shapes) <= 50
    assert shapes.lengths == BATCH_LENGTHS
    assert shapes.fit([128]) == Shape(128, 128, 17)
    assert shapes.fit([129]) == Shape(256, 256, 33)
    assert shapes.fit([128] * 128) == Shape(16384, 128, 512 + 128)
    assert shapes.fit([23] * 712) == Shape(16384, 128, 1024 + 128)
    assert shapes.fit([23] * 700 + [200]) == Shape(16384, 512, 1024 + 32)


def test_lengths_reach_what_is_asked() -> None:
    """The longest text of the model, and the longest row; no further."""
    assert ShapeBuckets.up_to(256, 300).lengths == (64, 128, 256, 300)
    assert ShapeBuckets.up_to(8192, 512).lengths[-1] == 8192
    assert ShapeBuckets.up_to(41, 41).lengths == (41,)


@given(st.lists(st.lists(st.integers(1, 999), min_size=1, max_size=40), min_size=1, max_size=30))
def test_every_token_lies_in_one_segment(texts: list[list[int]]) -> None:
    """Texts in theirs, the rest in spare ones no longer than the longest may be, and what follows is empty."""
    shape = ShapeBuckets.up_to(40, 2048).fit([len(text) for text in texts])
    row = pack_varlen([(text, None) for text in texts], shape)
    bounds = row.inputs["cu_seqlens"]
    assert (len(bounds), bounds[0], bounds[-1]) == (shape.slots + 1, 0, shape.tokens)
    assert all(0 <= end - start <= shape.longest for start, end in pairwise(bounds.tolist()))
    assert row.tokens == sum(map(len, texts))
    for number, text in enumerate(texts):
        start, end = bounds[number], bounds[number + 1]
        assert (row.starts[number], row.sizes[number]) == (start, len(text))
        assert row.inputs["input_ids"][start:end].tolist() == text
        assert row.inputs["position_ids"][start:end].tolist() == list(range(len(text)))
    assert not row.inputs["input_ids"][row.tokens :].any()
    assert not row.inputs["position_ids"][row.tokens :].any()


def test_types_are_those_of_each_text() -> None:
    """Zero where a text has none of its own."""
    row = pack_varlen([([5, 6], None), ([7, 8, 9], [0, 1, 1]), ([4], None)], Shape(8, 8, 4))
    assert row.inputs["token_type_ids"].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert {values.dtype for values in row.inputs.values()} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
    ("sizes", "holds"),
    [([8], True), ([9], False), ([8, 8], True), ([8, 8, 1], False), ([1] * 3, True), ([1] * 4, False)],
)
def test_a_shape_holds_what_has_room(sizes: list[int], holds: bool) -> None:
    """By tokens, by the longest and by segments, of which spare tokens need some too."""
    assert Shape(tokens=16, longest=8, slots=5).holds(sizes) == holds
