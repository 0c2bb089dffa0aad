"""How a model represents a text, and how similar two representations are: embeddings, sparse vectors, token vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.manifest import Pooling
from service.engine.explain.contributions import Embedder
from service.engine.schema.tasks import EncodeTask, ModelInput, SparseVector, TextVectors

Scores = NDArray[np.float64]
Floats = NDArray[Any]


class TextSimilarity(Protocol):
    """A similarity of texts that are encoded one by one."""

    def task(self, tokens: ModelInput, pool_from: int, /) -> EncodeTask:
        """Return the task that encodes a text; `pool_from` is as in `EncodeTask`."""

    def represent(self, vectors: TextVectors, /) -> Any:
        """Return the representation of a text from the result of its task."""

    def scores(self, query: Any, documents: Sequence[Any], /) -> Scores:
        """Return the similarity of a query and each of N documents, (N)."""


@dataclass(frozen=True)
class EmbeddingSimilarity:
    """The dot product of embeddings, which have length 1 if that is their cosine."""

    embedder: Embedder
    pooling: Pooling

    def task(self, tokens: ModelInput, pool_from: int) -> EncodeTask:
        return EncodeTask(tokens, self.pooling, hidden=False, pool_from=pool_from)

    def represent(self, vectors: TextVectors) -> Floats:
        assert vectors.pooled is not None
        embedding: Floats = self.embedder.embed(vectors.pooled)[0]
        return embedding

    def scores(self, query: Floats, documents: Sequence[Floats]) -> Scores:
        scores: Scores = np.stack(documents) @ query
        return scores


class SparseSimilarity:
    """The dot product of sparse vectors."""

    def task(self, tokens: ModelInput, pool_from: int) -> EncodeTask:
        del pool_from  # sparse heads read all tokens
        return EncodeTask(tokens, None, hidden=False, heads=("sparse",))

    def represent(self, vectors: TextVectors) -> SparseVector:
        assert vectors.sparse is not None
        return vectors.sparse

    def scores(self, query: SparseVector, documents: Sequence[SparseVector]) -> Scores:
        return np.array([sparse_products(query, document)[1].sum() for document in documents])


def sparse_products(query: SparseVector, document: SparseVector) -> tuple[NDArray[np.int32], Scores]:
    """Return the ids that two sparse vectors share, ascending, and the products of their weights."""
    ids, own, other = np.intersect1d(query.token_ids, document.token_ids, assume_unique=True, return_indices=True)
    return ids, query.weights[own].astype(np.float64) * document.weights[other]


@dataclass(frozen=True)
class MaxSim:
    """Late interaction (Khattab and Zaharia 2020): for each query vector, the largest dot product; their sum.

    With `mean`, as in BGE-M3, their mean, which ranks the documents of a query in the same order.
    """

    mean: bool

    def task(self, tokens: ModelInput, pool_from: int) -> EncodeTask:
        del pool_from  # multi-vector heads read all tokens
        return EncodeTask(tokens, None, hidden=False, heads=("multi_vector",))

    def represent(self, vectors: TextVectors) -> Floats:
        assert vectors.multi_vector is not None
        return vectors.multi_vector

    def scores(self, query: Floats, documents: Sequence[Floats]) -> Scores:
        """Multiply the documents one by one, which takes less time than copying them to one array."""
        columns = np.ascontiguousarray(query.T)
        scores = np.array([_sum_of_largest(document @ columns) for document in documents], dtype=np.float64)
        return scores / len(query) if self.mean and len(query) else scores


def _sum_of_largest(products: Floats) -> float:
    """Return the sum of the largest product of each query vector, for products (K, Q); 0 without vectors."""
    return float(products.max(axis=0).sum(dtype=np.float64)) if products.size else 0.0
