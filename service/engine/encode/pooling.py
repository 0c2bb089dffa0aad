"""From token vectors to one vector per text: pooling over a packed batch, dense layers, truncation, casts."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model.artifact import Artifact, Pooling
from service.engine.schema.encode import DTYPES, DType, LayerReduce, MapDType
from service.errors import InvalidArgument

Floats = NDArray[Any]
"""float32, whatever numpy's own types make of arithmetic on it."""


def pool_batch(hidden: Floats, starts: Sequence[int], lengths: Sequence[int], pooling: Pooling) -> Floats:
    """Pool each of N sequences that lie in `hidden` (T, D), padding between them; float32, (N, D).

    Each sum is over one sequence alone, so that an embedding does not depend on the batch composition.
    """
    if pooling == "cls":
        return hidden.take(starts, axis=0)
    first = np.asarray(starts)
    order = np.argsort(first)
    bounds = np.stack([first[order], first[order] + np.asarray(lengths)[order]], axis=1).ravel()
    if bounds[-1] == len(hidden):
        bounds = bounds[:-1]
    reduce = np.maximum.reduceat if pooling == "max" else np.add.reduceat
    pooled = np.empty((len(first), hidden.shape[1]), dtype=hidden.dtype)
    pooled[order] = reduce(hidden, bounds, axis=0)[::2]  # every other range is what lies between two sequences
    if pooling == "mean":
        pooled /= np.asarray(lengths, dtype=np.float32)[:, None]
    return pooled


def mean_ranges(hidden: Floats, ranges: NDArray[np.intp]) -> Floats:
    """The mean of rows `[first, last)` of `hidden` `(T, D)` for each range `(S, 2)`; zeros for an empty one."""
    sums = np.zeros((len(hidden) + 1, hidden.shape[1]), dtype=np.float64)
    np.cumsum(hidden, axis=0, dtype=np.float64, out=sums[1:])
    counts = np.maximum(ranges[:, 1] - ranges[:, 0], 1)[:, None]
    means: Floats = ((sums[ranges[:, 1]] - sums[ranges[:, 0]]) / counts).astype(np.float32)
    return means


def reduce_layers(vectors: NDArray[Any], reduce: LayerReduce) -> NDArray[Any]:
    """Vectors of N layers `(N, ..., D)` as one: end to end `(..., N * D)`, their mean `(..., D)`, or as they are."""
    if reduce == "stack":
        return vectors
    if reduce == "mean":
        mean: NDArray[Any] = vectors.mean(axis=0)
        return mean
    return vectors[0] if len(vectors) == 1 else np.concatenate(list(vectors), axis=-1)


def normalize(vectors: Floats) -> Floats:
    """Each vector with length 1; a vector of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Floats = vectors / np.maximum(lengths, np.float32(1e-12))
    return unit


def cast(vectors: Floats, dtype: DType) -> NDArray[Any]:
    """Return float32 vectors (..., D) as `dtype`; int8 and ubinary expect normalized vectors.

    Raises:
        InvalidArgument: A value is out of range of float16.
    """
    if dtype == "int8":
        rounded: NDArray[Any] = np.clip(np.rint(vectors * 127), -127, 127).astype(DTYPES[dtype])
        return rounded
    if dtype == "ubinary":
        bits: NDArray[Any] = np.packbits(vectors > 0, axis=-1)
        return bits
    return _to_float(vectors, dtype)


def cast_map(values: Floats, dtype: MapDType) -> NDArray[Any]:
    """Return map values as `dtype`; sqrt_uint8 is `round(255 * sqrt(v))`, for values from 0 to 1.

    Raises:
        InvalidArgument: A value is out of range of float16.
    """
    if dtype == "sqrt_uint8":
        roots: NDArray[Any] = np.rint(255 * np.sqrt(np.clip(values, 0, 1))).astype(DTYPES[dtype])
        return roots
    return _to_float(values, dtype)


def _to_float(values: Floats, dtype: Literal["float32", "float16"]) -> NDArray[Any]:
    """Raise `InvalidArgument` if a finite value is out of range of the dtype: JSON has no infinity."""
    with np.errstate(over="ignore"):
        result: NDArray[Any] = values.astype(DTYPES[dtype], copy=False)
    if dtype == "float16" and not np.isfinite(result).all():
        largest = float(np.abs(values).max())
        raise InvalidArgument(
            f'dtype: "float16" cannot represent this result (magnitude {largest:.0f}, limit 65504). Use "float32".',
            reason="dtype_overflow",
        )
    return result


class DenseLayers:
    """The model's own trained layers after pooling, when it has any (LaBSE, for one)."""

    def __init__(self, artifact: Artifact) -> None:
        self._layers = [
            (
                np.array(artifact.map(dense.weight)),
                None if dense.bias is None else np.array(artifact.map(dense.bias)),
                dense.activation,
            )
            for dense in artifact.manifest.dense
        ]

    def __call__(self, pooled: Floats) -> Floats:
        """`(N, D)` to `(N, output width)`."""
        for weight, bias, activation in self._layers:
            pooled = pooled @ weight.T
            if bias is not None:
                pooled = pooled + bias
            if activation == "tanh":
                pooled = np.tanh(pooled)
        return pooled
