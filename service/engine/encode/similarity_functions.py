"""Similarity functions of vectors, as sentence-transformers defines them: a distance counts negatively."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import Similarity

Floats = NDArray[Any]

DISTANCES = ("euclidean", "manhattan")
"""Functions that are the negative of a distance: their scores are at most 0."""
CANCELLED = 1e-6
"""Below this ratio to the squared lengths, a squared distance has too few correct digits, even in float64."""


def compare_all(queries: Floats, documents: Floats, similarity: Similarity) -> Floats:
    """Return the similarities of queries (Q, D) and documents (N, D), (Q, N).

    For the cosine, vectors must have length 1. Distances are computed in float64.
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
    """Return |q|² + |d|² - 2 q·d, one matrix product, except where almost all of it cancels."""
    lengths = np.square(queries).sum(axis=1)[:, None] + np.square(documents).sum(axis=1)
    squares: Floats = lengths - 2 * (queries @ documents.T)
    cancelled = squares < CANCELLED * lengths
    for row in np.flatnonzero(cancelled.any(axis=1)):
        near = cancelled[row]
        squares[row, near] = np.square(documents[near] - queries[row]).sum(axis=1)
    return squares
