"""Pooling, cutting and narrowing against their definitions in plain numpy."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from model.artifact import Artifact, DenseRecord, Manifest, Pooling, TensorRecord
from service.engine.encode.pooling import DenseLayers, Floats, cast, cast_map, mean_ranges, normalize, pool_batch
from service.errors import InvalidArgument

SIZES = [3, 1, 7, 2]
STARTS = [0, 3, 4, 11]


@pytest.fixture
def hidden() -> Floats:
    """Four texts and three tokens of padding that hold nonsense."""
    values = np.random.default_rng(2).standard_normal((16, 8)).astype(np.float32)
    values[13:] = 1e30
    return values


def plain(text: Floats, pooling: Pooling) -> Floats:
    if pooling == "cls":
        return text[0:1].reshape(-1)
    return np.asarray(text.mean(axis=0) if pooling == "mean" else text.max(axis=0))


def with_dense(root: Path, manifest: Manifest, *dense: DenseRecord) -> Artifact:
    """An artifact of dense layers alone."""
    return Artifact(root, manifest.model_copy(update={"dense": dense}), "")


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_each_segment_is_pooled_alone(hidden: Floats, pooling: Pooling) -> None:
    """Neither neighbours nor padding get into a text's vector."""
    pooled = pool_batch(hidden, STARTS, SIZES, pooling)
    texts = [hidden[start : start + size] for start, size in zip(STARTS, SIZES, strict=True)]
    expected = np.array([plain(text, pooling) for text in texts])
    np.testing.assert_allclose(pooled, expected, rtol=1e-5)
    assert pooled.dtype == np.float32


def test_ranges_are_means_and_empty_ones_are_zeros(hidden: Floats) -> None:
    """Of rows `[first, last)`."""
    found = mean_ranges(hidden[:13], np.array([[0, 3], [5, 6], [4, 13], [7, 7]]))
    first, second, third = (hidden[a:b].mean(axis=0) for a, b in ((0, 3), (5, 6), (4, 13)))
    expected = np.array([first, second, third, np.zeros(8)])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert found.dtype == np.float32


def test_normal_vectors_have_length_one_and_zeros_stay() -> None:
    """No division by nothing."""
    found = normalize(np.array([[3, 4], [0, 0]], dtype=np.float32))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)


def test_narrow_types_follow_their_definitions(hidden: Floats) -> None:
    """float16 rounds, int8 is round(127 x), ubinary the signs in numpy.packbits order."""
    unit = normalize(hidden[:13])
    assert cast(unit, "float32") is unit
    assert cast(unit, "float16").dtype == np.float16
    np.testing.assert_array_equal(cast(unit, "int8"), np.round(unit * 127).astype(np.int8))
    np.testing.assert_array_equal(cast(unit, "ubinary"), np.packbits(unit > 0, axis=1))
    assert cast(np.array([[1, -1, 1, 1, -1, -1, -1, 1]]), "ubinary").tolist() == [[0b10110001]]


def test_int8_reaches_both_ends() -> None:
    """1 is 127 and -1 is -127, never -128."""
    assert cast(np.array([1.0, -1.0, 0.0]), "int8").tolist() == [127, -127, 0]


@pytest.mark.parametrize("activation", ["identity", "tanh"])
@pytest.mark.parametrize("biased", [True, False])
def test_the_head_applies_the_dense_layers(
    tmp_path: Path, manifest: Manifest, activation: Literal["identity", "tanh"], biased: bool
) -> None:
    """`activation(x @ weight.T + bias)`, read from the artifact's own file."""
    generator = np.random.default_rng(4)
    weight, bias = generator.standard_normal((3, 8)).astype("<f4"), generator.standard_normal(3).astype("<f4")
    (tmp_path / "dense.bin").write_bytes(weight.tobytes() + bias.tobytes())
    record = DenseRecord(
        weight=TensorRecord(file="dense.bin", offset=0, shape=(3, 8)),
        bias=TensorRecord(file="dense.bin", offset=weight.nbytes, shape=(3,)) if biased else None,
        activation=activation,
    )
    pooled = generator.standard_normal((5, 8)).astype(np.float32)
    expected = pooled @ weight.T + (bias if biased else 0)
    expected = np.tanh(expected) if activation == "tanh" else expected
    found = DenseLayers(with_dense(tmp_path, manifest, record))(pooled)
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-5)


def test_a_model_without_dense_layers_has_no_head(tmp_path: Path, manifest: Manifest) -> None:
    """The pooled vector comes out as it went in."""
    pooled = np.ones((2, 8), dtype=np.float32)
    assert DenseLayers(with_dense(tmp_path, manifest))(pooled) is pooled


@pytest.mark.parametrize(
    "to_float16", [lambda values: cast(values, "float16"), lambda values: cast_map(values, "float16")]
)
def test_float16_overflow_is_rejected_by_name(to_float16: Callable[[Floats], object]) -> None:
    """JSON spells infinity as null."""
    with pytest.raises(
        InvalidArgument, match=r'"float16" cannot represent this result \(magnitude 70000, limit 65504\)'
    ):
        to_float16(np.array([[1, -70_000]], dtype=np.float32))
    to_float16(np.array([[1, -65_504]], dtype=np.float32))


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_padding_between_sequences_is_not_pooled(pooling: Pooling) -> None:
    """Sequences may lie in any order, with padding between rows, up to the last token."""
    hidden = np.random.default_rng(3).normal(size=(16, 4)).astype(np.float32)
    starts, sizes = [10, 0, 8], [6, 5, 2]
    pooled = pool_batch(hidden, starts, sizes, pooling)
    for vector, start, size in zip(pooled, starts, sizes, strict=True):
        rows = hidden[start : start + size]
        expected = {"mean": rows.mean(axis=0), "max": rows.max(axis=0), "cls": rows[0]}[pooling]
        np.testing.assert_allclose(vector, expected, rtol=1e-5)
