"""Arrays over all inputs of a request, with zeros where an input is shorter than the longest one."""

from collections.abc import Sequence

import numpy as np

from service.engine.schema.encode import DTYPES, Array
from service.engine.schema.explain import AttentionMap

FLOAT32 = DTYPES["float32"]


def stack_vectors(vectors: Sequence[Array]) -> Array:
    """Return N vectors (D) as float32, (N, D)."""
    return Array(np.stack([vector.values for vector in vectors]), "float32")


def stack_rows(rows: Sequence[Sequence[float]]) -> Array:
    """Return N rows of C numbers as float32, (N, C)."""
    return Array(np.array(rows, FLOAT32), "float32")


def pad_vectors(vectors: Sequence[Array]) -> Array:
    """Return N vectors (K) as float32, (N, K_max)."""
    padded = np.zeros((len(vectors), max(len(vector.values) for vector in vectors)), FLOAT32)
    for row, vector in zip(padded, vectors, strict=True):
        row[: len(vector.values)] = vector.values
    return Array(padded, "float32")


def pad_matrices(matrices: Sequence[Array]) -> Array:
    """Return N matrices (T, D) as float32, (N, T_max, D)."""
    longest = max(len(matrix.values) for matrix in matrices)
    padded = np.zeros((len(matrices), longest, matrices[0].shape[1]), FLOAT32)
    for row, matrix in zip(padded, matrices, strict=True):
        row[: len(matrix.values)] = matrix.values
    return Array(padded, "float32")


def pad_maps(maps: Sequence[Sequence[AttentionMap]], layers: int) -> Array:
    """Return the dense maps (T, T) of N inputs, first layer first, as float32 (N, L, H, T_max, T_max)."""
    matrices = [[item.matrix.values for item in of_input if item.matrix is not None] for of_input in maps]
    longest = max(len(of_input[0]) for of_input in matrices)
    heads = len(matrices[0]) // layers
    padded = np.zeros((len(matrices), layers, heads, longest, longest), FLOAT32)
    for block, of_input in zip(padded, matrices, strict=True):
        for index, matrix in enumerate(of_input):
            block[index // heads, index % heads, : len(matrix), : len(matrix)] = matrix
    return Array(padded, "float32")
