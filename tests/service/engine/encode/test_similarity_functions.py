"""Similarity functions, compared with sentence-transformers in float64."""

from typing import get_args

import numpy as np
import pytest
import torch
from sentence_transformers import SimilarityFunction

from model.artifact.manifest import Similarity
from service.engine.vectors import compare_all, compare_rows


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("function", get_args(Similarity))
def test_functions_equal_sentence_transformers(function: Similarity, scale: float) -> None:
    """Some documents equal a query, or almost: there, squared distances cancel."""
    rng = np.random.default_rng(3)
    queries = rng.normal(size=(40, 12)).astype(np.float32) * scale
    documents = np.concatenate([queries[:5], queries[5:9] * (1 + 1e-6), rng.normal(size=(30, 12)) * scale])
    documents = documents.astype(np.float32)
    if function == "cosine":
        queries, documents = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, documents))
    one, other = torch.from_numpy(queries).double(), torch.from_numpy(documents).double()
    expected = np.stack(
        [SimilarityFunction.to_similarity_pairwise_fn(function)(row.expand_as(other), other).numpy() for row in one]
    )
    size = np.abs(expected).max()
    actual = compare_all(queries, documents, function)
    np.testing.assert_allclose(actual, expected, rtol=1e-9 if actual.dtype == np.float64 else 1e-5, atol=1e-6 * size)
    rows = compare_rows(queries[:39], documents, function)
    np.testing.assert_allclose(rows, np.diagonal(expected), rtol=1e-5, atol=1e-6 * size)
    if function in ("euclidean", "manhattan"):
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=0)
        assert not np.signbit(actual[0, 0])  # 0, not -0
