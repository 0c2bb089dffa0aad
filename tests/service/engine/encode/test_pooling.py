"""Pooling, normalization, casts and dense layers against their NumPy definitions."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from attendant_client.types import Floats
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.files import Artifact
from model.artifact.manifest import POOLINGS, DenseRecord, Manifest, Pooling, TensorRecord
from service.engine.vectors import DenseLayers, cast, cast_map, mean_ranges, normalize, pool_batch
from service.errors import InvalidArgument
from tests.manifests import with_head

SIZES = [3, 1, 7, 2]
STARTS = [0, 3, 4, 11]


@pytest.fixture
def hidden() -> Floats:
    """Hidden states of four sequences, and three padding tokens with huge values."""
    values = np.random.default_rng(2).standard_normal((16, 8)).astype(np.float32)
    values[13:] = 1e30
    return values


def reference_pool(sequence: Floats, pooling: str) -> Floats:
    position = np.arange(1, len(sequence) + 1)[:, None]
    pooled = {
        "cls": sequence[0],
        "last": sequence[-1],
        "mean": sequence.mean(axis=0),
        "max": sequence.max(axis=0),
        "mean_sqrt_len": sequence.sum(axis=0) / np.sqrt(len(sequence)),
        "weighted_mean": (sequence * position).sum(axis=0) / position.sum(),
    }
    return np.concatenate([pooled[part] for part in pooling.split("+")])


def with_dense(root: Path, manifest: Manifest, *dense: DenseRecord) -> Artifact:
    return Artifact(root, with_head(manifest, dense=dense), "")


@pytest.mark.parametrize("pooling", [*POOLINGS, "max+mean+cls"])
def test_pool_batch_ignores_other_sequences_and_padding(hidden: Floats, pooling: str) -> None:
    pooled = pool_batch(hidden, STARTS, SIZES, pooling, [0] * len(STARTS))
    sequences = [hidden[start : start + size] for start, size in zip(STARTS, SIZES, strict=True)]
    expected = np.array([reference_pool(sequence, pooling) for sequence in sequences])
    np.testing.assert_allclose(pooled, expected, rtol=1e-5)
    assert pooled.dtype == np.float32


RANGES = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)).map(sorted), min_size=1, max_size=40)
"""Ranges of 13 rows: empty, single, overlapping, and in total few or many times the number of rows."""


@given(RANGES)
def test_mean_ranges_returns_means_and_zeros_for_empty_ranges(ranges: list[tuple[int, int]]) -> None:
    hidden = np.random.default_rng(2).standard_normal((13, 8)).astype(np.float32)
    means = mean_ranges(hidden, np.array(ranges))
    expected = [hidden[first:last].mean(axis=0) if first < last else np.zeros(8) for first, last in ranges]
    np.testing.assert_allclose(means, np.array(expected), rtol=1e-5, atol=1e-6)
    assert means.dtype == np.float32


def test_normalize_returns_unit_vectors_and_keeps_zeros() -> None:
    normalized = normalize(np.array([[3, 4], [0, 0]], dtype=np.float32))
    np.testing.assert_allclose(normalized, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)


def test_cast_follows_the_definition_of_each_dtype(hidden: Floats) -> None:
    """float16 rounds, int8 is round(127 x), and ubinary packs the signs in numpy.packbits order."""
    unit = normalize(hidden[:13])
    assert cast(unit, "float32") is unit
    assert cast(unit, "float16").dtype == np.float16
    np.testing.assert_array_equal(cast(unit, "int8"), np.round(unit * 127).astype(np.int8))
    np.testing.assert_array_equal(cast(unit, "ubinary"), np.packbits(unit > 0, axis=1))
    assert cast(np.array([[1, -1, 1, 1, -1, 0, -1, 1]]), "ubinary").tolist() == [[0b10110001]]


def test_int8_range_is_symmetric() -> None:
    assert cast(np.array([1.0, -1.0, 0.0]), "int8").tolist() == [127, -127, 0]


@pytest.mark.parametrize("activation", ["identity", "tanh"])
@pytest.mark.parametrize("biased", [True, False])
def test_dense_layers_apply_weight_bias_and_activation(
    tmp_path: Path, manifest: Manifest, activation: Literal["identity", "tanh"], biased: bool
) -> None:
    """A layer computes `activation(x @ weight.T + bias)` with tensors from one of the artifact's files."""
    generator = np.random.default_rng(4)
    weight, bias = generator.standard_normal((3, 8)).astype("<f4"), generator.standard_normal(3).astype("<f4")
    (tmp_path / "dense.bin").write_bytes(weight.tobytes() + bias.tobytes())
    record = DenseRecord(
        weight=TensorRecord(file="dense.bin", offset=0, shape=(3, 8), dtype="float32"),
        bias=TensorRecord(file="dense.bin", offset=weight.nbytes, shape=(3,), dtype="float32") if biased else None,
        activation=activation,
    )
    pooled = generator.standard_normal((5, 8)).astype(np.float32)
    expected = pooled @ weight.T + (bias if biased else 0)
    expected = np.tanh(expected) if activation == "tanh" else expected
    result = DenseLayers(with_dense(tmp_path, manifest, record))(pooled)
    np.testing.assert_allclose(result, np.asarray(expected), rtol=1e-5)


def test_dense_layers_return_their_input_when_empty(tmp_path: Path, manifest: Manifest) -> None:
    pooled = np.ones((2, 8), dtype=np.float32)
    assert DenseLayers(with_dense(tmp_path, manifest))(pooled) is pooled


@pytest.mark.parametrize(
    "to_float16", [lambda values: cast(values, "float16"), lambda values: cast_map(values, "float16")]
)
def test_float16_overflow_is_rejected(to_float16: Callable[[Floats], object]) -> None:
    """JSON has no infinity: orjson would write null."""
    with pytest.raises(InvalidArgument, match=r"^dtype: float16 overflow \(70000, limit 65504\)"):
        to_float16(np.array([[1, -70_000]], dtype=np.float32))
    to_float16(np.array([[1, -65_504]], dtype=np.float32))


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_padding_between_sequences_is_not_pooled(pooling: Pooling) -> None:
    """Sequences may be in any order, with padding between them, up to the last token."""
    hidden = np.random.default_rng(3).normal(size=(16, 4)).astype(np.float32)
    starts, sizes = [10, 0, 8], [6, 5, 2]
    pooled = pool_batch(hidden, starts, sizes, pooling, [0] * len(starts))
    for vector, start, size in zip(pooled, starts, sizes, strict=True):
        rows = hidden[start : start + size]
        expected = {"mean": rows.mean(axis=0), "max": rows.max(axis=0), "cls": rows[0]}[pooling]
        np.testing.assert_allclose(vector, expected, rtol=1e-5)
