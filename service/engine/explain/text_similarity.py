"""How a model represents a text, and how similar two representations are: embeddings, sparse vectors, token vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import Pooling, Similarity
from service.engine.encode.similarity_functions import DISTANCES, compare_all, compare_rows
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

    def score_alone(self, text: Any, /) -> float:
        """Return the similarity of a text and one of which no token remains."""


@dataclass(frozen=True)
class EmbeddingSimilarity:
    """A function of embeddings, which have length 1 for the cosine."""

    embedder: Embedder
    pooling: Pooling
    function: Similarity

    def task(self, tokens: ModelInput, pool_from: int) -> EncodeTask:
        return EncodeTask(tokens, self.pooling, hidden=False, pool_from=pool_from)

    def represent(self, vectors: TextVectors) -> Floats:
        assert vectors.pooled is not None
        embedding: Floats = self.embedder.embed(vectors.pooled)[0]
        return embedding

    def scores(self, query: Floats, documents: Sequence[Floats]) -> Scores:
        scores: Scores = compare_all(query[None], np.stack(documents), self.function)[0]
        return scores

    def score_alone(self, text: Floats) -> float:
        return float(self.scores(np.zeros_like(text), [text])[0])


@dataclass(frozen=True)
class SparseSimilarity:
    """A function of sparse vectors."""

    function: Similarity

    def task(self, tokens: ModelInput, pool_from: int) -> EncodeTask:
        del pool_from  # sparse heads read all tokens
        return EncodeTask(tokens, None, hidden=False, heads=("sparse",))

    def represent(self, vectors: TextVectors) -> SparseVector:
        assert vectors.sparse is not None
        return vectors.sparse

    def scores(self, query: SparseVector, documents: Sequence[SparseVector]) -> Scores:
        if self.function in DISTANCES:
            pairs = [sparse_rows(query, document) for document in documents]
            return np.array([compare_rows(*rows, self.function)[0] for rows in pairs])
        return np.array([self.products(query, document)[1].sum() for document in documents])

    def score_alone(self, text: SparseVector) -> float:
        return float(self.scores(SparseVector(text.token_ids[:0], text.weights[:0]), [text])[0])

    def products(self, query: SparseVector, document: SparseVector) -> tuple[NDArray[np.int32], Scores]:
        """Return the ids that two sparse vectors share, ascending, and the terms of their dot product or cosine."""
        ids, own, other = np.intersect1d(query.token_ids, document.token_ids, assume_unique=True, return_indices=True)
        products = query.weights[own].astype(np.float64) * document.weights[other]
        if self.function == "cosine":
            products /= np.prod([np.linalg.norm(text.weights.astype(np.float64)) for text in (query, document)]) or 1
        return ids, products


def sparse_rows(query: SparseVector, document: SparseVector) -> tuple[Scores, Scores]:
    """Return the weights of two sparse vectors for the M entries that either of them has, (1, M) each."""
    ids, places = np.unique(np.concatenate([query.token_ids, document.token_ids]), return_inverse=True)
    rows = np.zeros((2, len(ids)))
    rows[0, places[: len(query.token_ids)]] = query.weights
    rows[1, places[len(query.token_ids) :]] = document.weights
    return rows[:1], rows[1:]


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

    def score_alone(self, text: Floats) -> float:
        del text  # the sum over no token vectors
        return 0.0


def _sum_of_largest(products: Floats) -> float:
    """Return the sum of the largest product of each query vector, for products (K, Q); 0 without vectors."""
    return float(products.max(axis=0).sum(dtype=np.float64)) if products.size else 0.0
