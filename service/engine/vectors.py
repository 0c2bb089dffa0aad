"""Vectors of texts: pooling, dense layers, reductions, casts, and similarity functions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from attendant_client.types import DTYPES, Dtype, LayerReduce, MapDtype
from numpy.typing import NDArray

from model.artifact.files import Artifact
from model.artifact.manifest import COMBINED, CombinedPooling, EmbeddingHead, Similarity, split_pooling
from service.errors import InvalidArgument

MAX_OVERLAP = 8
"""Means of ranges that contain each row more often than this, on average, are differences of cumulative sums.

Otherwise, those take 2 to 12 times as long.
"""

Floats = NDArray[Any]
"""A float32 array. NumPy's type annotations widen the results of arithmetic, hence Any."""


def pool_batch(
    hidden: Floats, starts: Sequence[int], lengths: Sequence[int], pooling: CombinedPooling, pool_from: Sequence[int]
) -> Floats:
    """Pool each of N sequences in `hidden` (T, D), which padding may separate; float32, (N, D) or (N, P * D).

    P is the number of combined poolings.

    Each sum covers a single sequence, so that an embedding does not depend on the batch composition. The first
    `pool_from` tokens of a sequence are skipped; cls then selects the first token after them, if any.
    """
    if COMBINED in pooling:
        parts = [pool_batch(hidden, starts, lengths, part, pool_from) for part in split_pooling(pooling)]
        return np.concatenate(parts, axis=1)
    if pooling == "cls":
        spans = zip(starts, lengths, pool_from, strict=True)
        return hidden.take([start + min(first, length - 1) for start, length, first in spans], axis=0)
    if pooling == "last":
        return hidden.take([start + length - 1 for start, length in zip(starts, lengths, strict=True)], axis=0)
    if pooling not in ("mean", "max"):
        factors = np.zeros(len(hidden), dtype=hidden.dtype)
        for start, length, skipped in zip(starts, lengths, pool_from, strict=True):
            factors[start : start + length] = token_factors(pooling, length, skipped)
        hidden = hidden * factors[:, None]
    pooled: Floats = np.empty((len(starts), hidden.shape[1]), dtype=hidden.dtype)
    reduce = np.maximum.reduce if pooling == "max" else np.add.reduce  # `reduceat` takes four times as long
    for row, start, length, skipped in zip(pooled, starts, lengths, pool_from, strict=True):
        reduce(hidden[start + skipped : start + length], axis=0, out=row)
    if pooling == "mean":
        pooled /= (np.asarray(lengths) - np.asarray(pool_from)).astype(np.float32)[:, None]
    return pooled


def token_factors(pooling: str, tokens: int, pool_from: int) -> NDArray[np.float64]:
    """Return each token's factor (T) in a pooling that is a weighted sum; 0 before `pool_from`.

    The weights of `weighted_mean` are 1-based positions (Muennighoff 2022), counting skipped tokens.
    """
    factors = np.zeros(tokens)
    if pooling == "cls":
        factors[min(pool_from, tokens - 1)] = 1
    elif pooling == "last":
        factors[-1] = 1
    elif pooling == "weighted_mean":
        factors[pool_from:] = np.arange(pool_from + 1, tokens + 1)
        factors /= max(1.0, factors.sum())
    else:
        count = max(1, tokens - pool_from)
        factors[pool_from:] = 1 / (count if pooling == "mean" else np.sqrt(count))
    return factors


def mean_ranges(hidden: Floats, ranges: NDArray[np.intp]) -> Floats:
    """Return the mean of rows [first, last) of `hidden` (T, D) per range (S, 2); zeros for empty ranges."""
    counts = ranges[:, 1] - ranges[:, 0]
    if counts.sum() > MAX_OVERLAP * len(hidden):
        sums = np.zeros((len(hidden) + 1, hidden.shape[1]), dtype=np.float64)
        np.cumsum(hidden, axis=0, dtype=np.float64, out=sums[1:])
        sums = sums[ranges[:, 1]] - sums[ranges[:, 0]]
        means: Floats = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        return means
    means = hidden.take(np.minimum(ranges[:, 0], len(hidden) - 1), axis=0)
    for place in np.flatnonzero(counts != 1).tolist():  # most words are one token
        first, last = ranges[place]
        means[place] = np.add.reduce(hidden[first:last], axis=0, dtype=np.float64) / max(1, last - first)
    return means


def reduce_layers(vectors: NDArray[Any], reduce: LayerReduce) -> NDArray[Any]:
    """Combine vectors of N layers (N, ..., D): concatenated (..., N * D), averaged (..., D), or stacked (N, ..., D)."""
    if reduce == "stack":
        return vectors
    if reduce == "mean":
        mean: NDArray[Any] = vectors.mean(axis=0)
        return mean
    return vectors[0] if len(vectors) == 1 else np.concatenate(list(vectors), axis=-1)


def normalize(vectors: Floats) -> Floats:
    """Return the vectors scaled to length 1; zero vectors stay zero."""
    lengths = np.sqrt(np.add.reduce(vectors * vectors, axis=-1, keepdims=True))  # np.linalg.norm takes twice as long
    unit: Floats = vectors / np.maximum(lengths, np.float32(1e-12))
    return unit


def cast(vectors: Floats, dtype: Dtype) -> NDArray[Any]:
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
    return vectors.astype(DTYPES[dtype], copy=False) if dtype == "float32" else _to_float16(vectors)


def cast_map(values: Floats, dtype: MapDtype) -> NDArray[Any]:
    """Return map values as `dtype`; sqrt_uint8 is `round(255 * sqrt(v))`, for values from 0 to 1.

    Raises:
        InvalidArgument: A value is out of range of float16.
    """
    if dtype == "sqrt_uint8":
        roots: NDArray[Any] = np.rint(255 * np.sqrt(np.clip(values, 0, 1))).astype(DTYPES[dtype])
        return roots
    return values.astype(DTYPES[dtype], copy=False) if dtype == "float32" else _to_float16(values)


def _to_float16(values: Floats) -> NDArray[Any]:
    """Return values as float16. Raises `InvalidArgument` on overflow: JSON cannot represent infinity."""
    with np.errstate(over="ignore"):
        result: NDArray[Any] = values.astype(DTYPES["float16"], copy=False)
    if not np.isfinite(result).all():
        largest = float(np.abs(values).max())
        raise InvalidArgument(
            "float16 overflow",
            "Use float32.",
            field="dtype",
            actual=round(largest),
            maximum=65504,
            reason="DTYPE_OVERFLOW",
        )
    return result


def truncates(head: EmbeddingHead, dimensions: int | None) -> bool:
    """Return whether the model's built-in truncation applies to an embedding, after normalization."""
    return head.truncate_dim is not None and (dimensions is None or dimensions >= head.dimensions)


def finish_pooled(  # noqa: PLR0913  # the settings of pooled vectors
    pooled: Floats,
    head: EmbeddingHead,
    dense_layers: "DenseLayers",
    *,
    last_layer_only: bool = True,
    layer_reduce: LayerReduce = "concat",
    dimensions: int | None = None,
    normalize_vectors: bool | None = None,
    dtype: Dtype = "float32",
) -> NDArray[Any]:
    """Return pooled vectors (layers, N, D) as one array per input, (N, ...).

    The model's dense layers and built-in truncation apply only to its last layer. Then layers are combined, and vectors
    are truncated, normalized and cast. `normalize_vectors` None selects the model's setting.
    """
    scale = head.normalize if normalize_vectors is None else normalize_vectors
    if last_layer_only:
        pooled = dense_layers(pooled[0])[None]
        if truncates(head, dimensions):
            # As in sentence-transformers, normalization precedes the model's truncation.
            if scale:
                pooled = normalize(pooled)
            scale = normalize_vectors is True
        pooled = pooled[..., : head.truncate_dim]
    whole = reduce_layers(pooled, layer_reduce)[..., :dimensions]
    if scale or dtype in ("int8", "ubinary"):
        whole = normalize(whole)
    if layer_reduce == "stack":
        whole = whole.swapaxes(0, 1)
    return np.ascontiguousarray(cast(whole, dtype))


class DenseLayers:
    """Dense layers of the model after pooling (LaBSE has one); empty for most models."""

    def __init__(self, artifact: Artifact) -> None:
        self._layers = [
            (
                np.array(artifact.map(dense.weight)[:]),
                None if dense.bias is None else np.array(artifact.map(dense.bias)[:]),
                dense.activation,
            )
            for dense in artifact.manifest.embedding.dense
        ]

    @property
    def linear(self) -> bool:
        """Whether no layer has an activation; True without layers."""
        return all(activation == "identity" for _, _, activation in self._layers)

    def map_linearly(self, vectors: Floats) -> Floats:
        """Apply the weights without biases and activations to vectors (N, D); returns (N, dimensions)."""
        for weight, _, _ in self._layers:
            vectors = vectors @ weight.T
        return vectors

    def __call__(self, pooled: Floats) -> Floats:
        """Return pooled vectors (N, D) as embeddings (N, dimensions)."""
        for weight, bias, activation in self._layers:
            pooled = pooled @ weight.T
            if bias is not None:
                pooled = pooled + bias
            if activation == "tanh":
                pooled = np.tanh(pooled)
        return pooled


DISTANCES = ("euclidean", "manhattan")
"""Functions that return a negative distance: scores are at most 0."""
CANCELLED = 1e-6
"""If a squared distance is below this fraction of the squared norms, it has too few correct digits, even in float64."""


def compare_all(queries: Floats, documents: Floats, similarity: Similarity) -> Floats:
    """Return the similarities of queries (Q, D) and documents (N, D), (Q, N).

    Cosine requires normalized vectors. Distances are computed in float64.
    """
    if similarity not in DISTANCES:
        products: Floats = queries @ documents.T
        return products
    own, other = queries.astype(np.float64), documents.astype(np.float64)
    if similarity == "manhattan":
        distances = np.empty((len(own), len(other)))
        for row, vector in enumerate(own):
            distances[row] = np.abs(other - vector).sum(axis=1)
        return 0 - distances
    return 0 - np.sqrt(_squared_distances(own, other))


def compare_rows(left: Floats, right: Floats, similarity: Similarity) -> Floats:
    """Return the similarities of corresponding rows of two arrays (N, D), (N); see `compare_all`."""
    if similarity not in DISTANCES:
        products: Floats = np.einsum("nd,nd->n", left, right)
        return products
    difference = left.astype(np.float64) - right
    distances: Floats = np.linalg.norm(difference, ord=1 if similarity == "manhattan" else 2, axis=1)
    return 0 - distances


def _squared_distances(queries: Floats, documents: Floats) -> Floats:
    """Return |q|² + |d|² - 2 q·d, computed directly from differences where almost all of it cancels."""
    lengths = np.square(queries).sum(axis=1)[:, None] + np.square(documents).sum(axis=1)
    squares: Floats = lengths - 2 * (queries @ documents.T)
    cancelled = squares < CANCELLED * lengths
    for row in np.flatnonzero(cancelled.any(axis=1)):
        near = cancelled[row]
        squares[row, near] = np.square(documents[near] - queries[row]).sum(axis=1)
    return squares
