"""Packed batches: choosing shapes and placing sequences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.packing import LONG_STEP, PACKED_TOKENS, BatchShape, BatchShapes, CostModel, RowFill, pack_batch
from service.engine.backends.onnxruntime_cpu import OnnxRuntimeCpuBackend
from service.engine.backends.openvino import OpenVinoBackend

SHAPES = (OpenVinoBackend.batch_shapes, OnnxRuntimeCpuBackend.batch_shapes)
LIMITS = st.sampled_from([(16, 1), (41, 128), (256, 512), (512, 512), (512, 64), (8192, 512), (8194, 2048)])


@given(st.sampled_from(SHAPES), LIMITS, st.data())
def test_any_batch_within_limits_fits_a_shape(
    pairs: tuple[tuple[int, int], ...], limits: tuple[int, int], data: st.DataObject
) -> None:
    max_input_tokens, max_batch_tokens = limits
    shapes = BatchShapes(max_input_tokens, max_batch_tokens, pairs)
    sizes = data.draw(st.lists(st.integers(1, max_input_tokens), min_size=1, max_size=40))
    while len(sizes) > 1 and sum(sizes) > shapes.max_batch_tokens:
        sizes.pop()
    shape, starts = shapes.fit(sizes)
    used = np.zeros(shape.tokens, dtype=bool)
    for start, size in zip(starts, sizes, strict=True):
        assert start // shape.length == (start + size - 1) // shape.length  # within one row
        assert not used[start : start + size].any()
        used[start : start + size] = True


def test_fit_chooses_cheapest_of_few_shapes() -> None:
    """The backend compiles every shape for every stream during startup."""
    shapes = BatchShapes(256, 512, OpenVinoBackend.batch_shapes)
    assert len(shapes.shapes) <= 30
    assert shapes.fit([20])[0] == BatchShape(1, 32)
    assert shapes.fit([24] * 20)[0] == BatchShape(5, 96)
    assert shapes.fit([20] * 24)[0] == BatchShape(8, 64)
    assert shapes.fit([128] * 3)[0] == BatchShape(3, 128)
    assert shapes.fit([120, 8] * 3)[0] == BatchShape(3, 128)
    assert shapes.fit([200, 200])[0] == BatchShape(2, 224)
    assert shapes.fit([480])[0] == BatchShape(1, 512)


@given(st.sampled_from(SHAPES), LIMITS, st.data())
def test_row_fill_holds_what_one_shape_holds(
    pairs: tuple[tuple[int, int], ...], limits: tuple[int, int], data: st.DataObject
) -> None:
    """The result must fit the shape selected by the first sequence, or a cheaper one."""
    max_input_tokens, max_batch_tokens = limits
    shapes = BatchShapes(max_input_tokens, max_batch_tokens, pairs)
    fill = RowFill(shapes)
    sizes = data.draw(st.lists(st.integers(1, max_input_tokens), min_size=1, max_size=60))
    batch = [size for size in sizes if fill.add(size)]
    assert batch[0] == sizes[0]
    assert sum(batch) <= shapes.max_batch_tokens or len(batch) == 1
    assert shapes.costs.seconds(shapes.fit(batch)[0]) <= shapes.costs.seconds(shapes.full_shape(batch[0]))
    assert fill.free == 0 or not fill.add(fill.free + 1)


@given(st.sampled_from(SHAPES), LIMITS, st.floats(0.001, 0.2), st.data())
def test_row_fill_keeps_to_its_time(
    pairs: tuple[tuple[int, int], ...], limits: tuple[int, int], max_seconds: float, data: st.DataObject
) -> None:
    """Only a sequence that takes longer by itself exceeds it, and then nothing cheaper holds it."""
    max_input_tokens, max_batch_tokens = limits
    shapes = BatchShapes(max_input_tokens, max_batch_tokens, pairs)
    fill = RowFill(shapes, max_seconds)
    sizes = data.draw(st.lists(st.integers(1, max_input_tokens), min_size=1, max_size=60))
    batch = [size for size in sizes if fill.add(size)]
    seconds = shapes.costs.seconds(shapes.fit(batch)[0])
    assert seconds <= max(max_seconds, shapes.costs.seconds(shapes.fit(batch[:1])[0]))


@given(st.floats(0.35, 1e4), st.floats(1e-7, 1e-2), st.floats(1e-10, 1e-5), st.sampled_from(SHAPES), LIMITS)
def test_costs_are_fitted_exactly_without_noise(
    fixed: float, token: float, square: float, pairs: tuple[tuple[int, int], ...], limits: tuple[int, int]
) -> None:
    """`fixed` is drawn as a multiple of the rest of the shortest run time."""
    shapes = BatchShapes(*limits, pairs)
    sample = shapes.sample(6)
    costs = CostModel(fixed * CostModel(0, token, square).seconds(sample[0]), token, square)
    fitted = CostModel.fit([(shape, costs.seconds(shape)) for shape in sample])
    shapes.use(fitted)
    for shape in shapes.sample(20):
        assert fitted.seconds(shape) == pytest.approx(costs.seconds(shape), rel=1e-3)


@given(st.lists(st.floats(1e-5, 1.0), min_size=1, max_size=6), st.sampled_from(SHAPES), LIMITS)
def test_fitted_costs_are_never_negative(
    seconds: list[float], pairs: tuple[tuple[int, int], ...], limits: tuple[int, int]
) -> None:
    """Whatever a busy machine measures, longer batches do not become cheaper."""
    shapes = BatchShapes(*limits, pairs)
    costs = CostModel.fit(list(zip(shapes.sample(6), seconds, strict=False)))
    assert min(costs.fixed, costs.token, costs.square) >= 0
    shapes.use(costs)
    assert all(shapes.sequence_seconds(size) > 0 for size in range(1, limits[0] + 1))


@pytest.mark.parametrize("slowdown", [1.0, 1.2, 1.5, 2.5])
@pytest.mark.parametrize("first_slowed", range(1, 6))
def test_costs_of_a_busy_machine_do_not_make_small_batches_the_cheapest(slowdown: float, first_slowed: int) -> None:
    """Other processes slow down only the batches that run for longer than a time slice."""
    true, shapes = CostModel(1.4e-3, 1.05e-4, 9.5e-8), BatchShapes(256, 512, OpenVinoBackend.batch_shapes)
    factors = [1.0] * first_slowed + [slowdown] * (6 - first_slowed)
    sample = shapes.sample(6)
    shapes.use(CostModel.fit([(s, true.seconds(s) * factor) for s, factor in zip(sample, factors, strict=True)]))
    assert shapes.full_shape(20).tokens == 512


def test_row_fill_selects_short_rows_for_short_sequences() -> None:
    shapes = BatchShapes(256, 512, OpenVinoBackend.batch_shapes)
    for first, expected in ((20, (8, 64)), (70, (5, 96)), (100, (4, 128)), (150, (3, 160)), (250, (2, 256))):
        assert shapes.full_shape(first) == BatchShape(*expected)
    assert BatchShapes(256, 128, OnnxRuntimeCpuBackend.batch_shapes).full_shape(20) == BatchShape(1, 128)


@pytest.mark.parametrize("pairs", SHAPES)
def test_long_rows_hold_one_sequence(pairs: tuple[tuple[int, int], ...]) -> None:
    shapes = BatchShapes(8192, 512, pairs)
    for size in (PACKED_TOKENS + 1, 2000, 8192):
        fill = RowFill(shapes)
        assert fill.add(size)
        assert fill.free == 0
        shape, starts = shapes.fit([size])
        assert (shape.rows, starts) == (1, [0])
        assert size <= shape.length < 1.25 * size
        assert shape.length % LONG_STEP == 0
        assert shapes.full_shape(size) == shape


def test_long_shapes_are_few_and_leave_packed_ones_unchanged() -> None:
    short, long = (BatchShapes(tokens, 512, OpenVinoBackend.batch_shapes) for tokens in (512, 8192))
    assert set(long.packed) == set(short.shapes) == set(short.packed)
    lengths = [shape.length for shape in long.shapes if shape.length > PACKED_TOKENS]
    assert lengths[:4] == [640, 768, 896, 1024]
    assert lengths[4:] == [quarters * power for power in (256, 512, 1024) for quarters in (5, 6, 7, 8)]
    assert BatchShapes(8194, 512, OpenVinoBackend.batch_shapes).lengths[-1] == 8320
    assert all(shape in long.packed for shape in long.sample(6))


def test_long_sequence_costs_its_whole_row() -> None:
    shapes = BatchShapes(8192, 512, OpenVinoBackend.batch_shapes)
    assert shapes.sequence_seconds(2000) == pytest.approx(shapes.costs.seconds(BatchShape(1, 2048)))
    assert shapes.sequence_seconds(64) == pytest.approx(shapes.costs.seconds(BatchShape(8, 64)) / 8)


def test_longest_within_ignores_packed_shapes() -> None:
    shapes = BatchShapes(8192, 512, OpenVinoBackend.batch_shapes, CostModel(0, 1e-3, 0))
    assert shapes.longest_within(2.0) == BatchShape(1, 1792)
    assert shapes.longest_within(0.6) is None
    assert BatchShapes(512, 512, OpenVinoBackend.batch_shapes).longest_within(9.0) is None


def test_fit_rejects_sequences_over_every_shape() -> None:
    with pytest.raises(ValueError, match=r"exceeds every allowed shape \(800 tokens, longest sequence 800\)"):
        BatchShapes(256, 512, OpenVinoBackend.batch_shapes).fit([800])


@given(st.lists(st.lists(st.integers(1, 999), min_size=1, max_size=40), min_size=1, max_size=12))
def test_pack_batch_places_sequences_at_starts(sequences: list[list[int]]) -> None:
    shape, starts = BatchShapes(512, 512, OpenVinoBackend.batch_shapes).fit([len(sequence) for sequence in sequences])
    batch = pack_batch([(sequence, None) for sequence in sequences], shape, starts)
    input_ids, position_ids, token_type_ids, sequence_ids = (
        batch.inputs[name] for name in ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
    )
    assert input_ids.shape == (shape.rows, shape.length)
    for number, (start, sequence) in enumerate(zip(starts, sequences, strict=True), start=1):
        part = slice(start, start + len(sequence))
        assert input_ids.ravel()[part].tolist() == sequence
        assert position_ids.ravel()[part].tolist() == list(range(len(sequence)))
        assert np.flatnonzero(sequence_ids.ravel() == number).tolist() == list(range(start, start + len(sequence)))
    assert np.count_nonzero(sequence_ids) == sum(map(len, sequences))
    assert not token_type_ids.any()


def test_pack_batch_places_sequences_end_to_end_without_starts() -> None:
    batch = pack_batch([([5], None), ([6, 7], [0, 1])], BatchShape(1, 4))
    assert batch.starts == [0, 1]
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 7, 0]]
    assert batch.inputs["token_type_ids"].tolist() == [[0, 0, 1, 0]]


def test_positions_of_long_sequence_ascend() -> None:
    batch = pack_batch([([1] * 8192, None)], BatchShape(1, 8192))
    assert batch.inputs["position_ids"][0].tolist() == list(range(8192))
