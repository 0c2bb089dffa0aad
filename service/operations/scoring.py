"""Text scores: tokenized texts and their units, effects of units, and similarity functions.

The effect of a unit is how much the score drops without the unit. `leave_one_out` pools the token vectors of the whole
text except the unit's tokens. `occlusion` encodes the text again without the unit's tokens, so that the other tokens do
not attend to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from attendant_client.types import SimilarityText, SimilarityUnit, Unit
from numpy.typing import NDArray

from model.artifact.manifest import COMBINED, CombinedPooling, EmbeddingHead, Manifest, Similarity, split_pooling
from model.artifact.tokenizer import TokenizedInput, Tokenizer
from service.engine.scheduling import OVERESTIMATE, UNIT_S, remaining_s, too_large_for_deadline
from service.engine.sides import SidedInput
from service.engine.tasks import EncodeTask, ModelInput, OccludedSequence, SparseEntries, TextVectors
from service.engine.vectors import DISTANCES, DenseLayers, compare_all, compare_rows, truncates
from service.operations.encode import first_pooled_token
from service.operations.units import list_units

Floats = NDArray[Any]
Scores = NDArray[np.float64]
Vectors = NDArray[np.float64]

NUMBERS_PER_CHARACTER = 6000
"""Multiplications in dot products of token vectors that take as long as preparing one character."""
PRODUCT_NUMBERS = 64
"""Finding the largest of several products takes as long as multiplying this many numbers per product."""
SPECIAL, PROMPT = -1, -2
"""Values of `unit_of_token` for tokens without a unit. Tokens outside of words count as special tokens."""


@dataclass(frozen=True)
class TokenizedText:
    """A tokenized text. It has units only if an explanation is requested."""

    tokens: TokenizedInput
    pool_from: int
    units: list[Unit]
    unit_of_token: NDArray[np.intp]
    """The unit of each token, `SPECIAL`, or `PROMPT`; (T)."""

    @classmethod
    def of(
        cls, tokens: TokenizedInput, tokenizer: Tokenizer, manifest: Manifest, unit: SimilarityUnit | None
    ) -> "TokenizedText":
        """Find the units of a text; none if `unit` is None."""
        pool_from = first_pooled_token(tokens, manifest)
        if unit is None:
            return cls(tokens, pool_from, [], np.zeros(0, dtype=np.intp))
        units, owner = list_units(tokens, tokenizer.token_texts(tokens), unit)
        special = np.array([item.special for item in units], dtype=bool)
        unit_of_token = np.where(special, SPECIAL, np.cumsum(~special) - 1)[np.array(owner, dtype=np.intp)]
        first, last = tokens.prompt_range
        unit_of_token[first:last] = PROMPT
        return cls(tokens, pool_from, [item for item in units if not item.special], unit_of_token)

    @cached_property
    def occluded(self) -> list[OccludedSequence]:
        """The text without each of its units."""
        return [occlude(self.tokens, np.flatnonzero(self.unit_of_token != unit)) for unit in range(len(self.units))]

    @property
    def occluded_sizes(self) -> list[int]:
        """The number of tokens of the text without each of its units, without building the sequences."""
        counts = np.bincount(self.unit_of_token[self.unit_of_token >= 0], minlength=len(self.units))
        sizes: list[int] = np.maximum(len(self.tokens) - counts, self.tokens.least_tokens).tolist()
        return sizes

    def result(self, *, explain: bool) -> SimilarityText:
        """Return the text as part of the response."""
        return SimilarityText(len(self.tokens), self.tokens.truncated, self.units if explain else None)


def occlude(tokens: TokenizedInput, kept: NDArray[np.intp]) -> OccludedSequence:
    """Return the tokens at the given indices."""
    places = kept.tolist()
    if isinstance(tokens, SidedInput):
        return tokens.select(places)
    ids, types = tokens.input_ids, tokens.token_type_ids
    return OccludedSequence([ids[place] for place in places], [types[place] for place in places], side=tokens.side)


def sum_by_unit(values: NDArray[Any], unit_of_token: NDArray[np.intp], units: int) -> NDArray[np.float64]:
    """Return the sum of the rows of `values` (T, D) in each unit, (U, D). Tokens without a unit are left out.

    A product with a matrix of units and tokens would need U * T numbers.
    """
    sums = np.zeros((units, values.shape[1]))
    order = np.argsort(unit_of_token, kind="stable")
    order = order[np.searchsorted(unit_of_token, 0, sorter=order) :]
    if len(order):
        sorted_units = unit_of_token[order]
        starts = np.flatnonzero(np.diff(sorted_units, prepend=-1))
        sums[sorted_units[starts]] = np.add.reduceat(values[order], starts, axis=0)
    return sums


def pool_without_units(
    hidden: NDArray[Any], unit_of_token: NDArray[np.intp], units: int, pooling: CombinedPooling, pool_from: int
) -> NDArray[np.float64]:
    """Return a text's pooled vector without each of its units, (U, D) or (U, P * D); zeros if no token remains.

    Arguments are as in `unit_terms`. `pooling` must not select a single token. A unit's tokens are contiguous.
    Remaining tokens keep their position and weight.
    """
    if COMBINED in pooling:
        parts = split_pooling(pooling)
        return np.concatenate(
            [pool_without_units(hidden, unit_of_token, units, part, pool_from) for part in parts], axis=1
        )
    weights = (
        np.arange(pool_from + 1, len(hidden) + 1) if pooling == "weighted_mean" else np.ones(len(hidden) - pool_from)
    )
    hidden = hidden[pool_from:].astype(np.float64)
    unit_of_token = unit_of_token[pool_from:]
    counts = np.bincount(unit_of_token[unit_of_token >= 0], minlength=units)[:, None]
    remaining = len(hidden) - counts
    if pooling != "max":
        weighted = hidden * weights[:, None]
        sums = weighted.sum(axis=0) - sum_by_unit(weighted, unit_of_token, units)
        divisor = weights.sum() - sum_by_unit(weights[:, None], unit_of_token, units)
        divisor = np.sqrt(divisor) if pooling == "mean_sqrt_len" else divisor
        pooled: NDArray[np.float64] = sums / np.maximum(1, divisor)
    else:
        first = np.zeros(units, np.intp)
        present, starts = np.unique(unit_of_token, return_index=True)
        first[present[present >= 0]] = starts[present >= 0]
        last = first + counts[:, 0]
        lowest = np.full((1, hidden.shape[1]), -np.inf)
        before = np.concatenate([lowest, np.maximum.accumulate(hidden)])
        after = np.concatenate([np.maximum.accumulate(hidden[::-1])[::-1], lowest])
        pooled = np.maximum(before[first], after[last])
    pooled[remaining[:, 0] == 0] = 0
    return pooled


@dataclass(frozen=True)
class Embedder:
    """The steps from pooled vectors to the embeddings that a similarity function compares."""

    dense_layers: DenseLayers
    dimensions: int | None
    """The number of leading components to keep."""
    divisor: Literal["none", "kept", "all"]
    """The norm to divide embeddings by: none, or that of the kept components or of all components."""

    @classmethod
    def of(
        cls, dense_layers: DenseLayers, head: EmbeddingHead, similarity: str, dimensions: int | None = None
    ) -> "Embedder":
        """Return a model's steps for a similarity function and a request's `dimensions`."""
        truncated = truncates(head, dimensions)
        divisor: Literal["none", "kept", "all"] = "all" if head.normalize else "none"
        if similarity == "cosine" or (head.normalize and not truncated):
            divisor = "kept"
        return cls(dense_layers, head.truncate_dim if dimensions is None else dimensions, divisor)

    def embed(self, pooled: NDArray[Any]) -> Vectors:
        """Return pooled vectors (N, D) as embeddings (N, dimensions)."""
        vectors = self.dense_layers(pooled.astype(np.float64))
        return self._finish(vectors, vectors)

    def _finish(self, terms: Vectors, whole: Vectors) -> Vectors:
        """Truncate the terms (N, E) of vectors `whole` (N or 1, E), and divide by the norm of `whole`."""
        kept: Vectors = terms[:, : self.dimensions]
        if self.divisor == "none":
            return kept
        lengths = np.linalg.norm(whole if self.divisor == "all" else whole[:, : self.dimensions], axis=1, keepdims=True)
        scaled: Vectors = kept / np.where(lengths > 0, lengths, 1)
        return scaled

    def terms(self, unit_terms: Vectors) -> Vectors:
        """Return the terms of an embedding: one per row (N, D) of a pooled vector, and the bias as the last row.

        Their sum (N + 1 rows) is the embedding. Requires linear dense layers.
        """
        mapped = self.dense_layers.map_linearly(unit_terms)
        whole = self.dense_layers(unit_terms.sum(axis=0, keepdims=True))
        bias = whole - mapped.sum(axis=0, keepdims=True)
        return self._finish(np.concatenate([mapped, bias]), whole)


@dataclass(frozen=True)
class EmbeddingSimilarity:
    """A similarity between embeddings, which are normalized for cosine."""

    embedder: Embedder
    pooling: CombinedPooling
    function: Similarity

    def task(self, tokens: ModelInput, pool_from: int) -> EncodeTask:
        """Return the task that encodes a text; `pool_from` is as in `EncodeTask`."""
        return EncodeTask(tokens, self.pooling, hidden=False, pool_from=pool_from)

    def represent(self, vectors: TextVectors) -> Floats:
        """Return a text's representation, given the result of its task."""
        assert vectors.pooled is not None
        embedding: Floats = self.embedder.embed(vectors.pooled)[0]
        return embedding

    def scores(self, query: Floats, documents: Sequence[Floats]) -> Scores:
        """Return the similarity between a query and each of N documents, (N)."""
        scores: Scores = compare_all(query[None], np.stack(documents), self.function)[0]
        return scores

    def score_alone(self, text: Floats) -> float:
        """Return the similarity between a text and a text without remaining tokens."""
        return float(self.scores(np.zeros_like(text), [text])[0])


@dataclass(frozen=True)
class SparseSimilarity:
    """A similarity between sparse vectors, with the methods of `EmbeddingSimilarity`."""

    function: Similarity

    def task(self, tokens: ModelInput, pool_from: int) -> EncodeTask:
        del pool_from  # sparse heads read all tokens
        return EncodeTask(tokens, None, hidden=False, heads=("sparse",))

    def represent(self, vectors: TextVectors) -> SparseEntries:
        assert vectors.sparse is not None
        return vectors.sparse

    def scores(self, query: SparseEntries, documents: Sequence[SparseEntries]) -> Scores:
        if self.function in DISTANCES:
            pairs = [sparse_rows(query, document) for document in documents]
            return np.array([compare_rows(*rows, self.function)[0] for rows in pairs])
        return np.array([self.products(query, document)[1].sum() for document in documents])

    def score_alone(self, text: SparseEntries) -> float:
        return float(self.scores(SparseEntries(text.token_ids[:0], text.weights[:0]), [text])[0])

    def products(self, query: SparseEntries, document: SparseEntries) -> tuple[NDArray[np.int32], Scores]:
        """Return the ids that two sparse vectors share, ascending, and the terms of their dot product or cosine."""
        ids, own, other = np.intersect1d(query.token_ids, document.token_ids, assume_unique=True, return_indices=True)
        products = query.weights[own].astype(np.float64) * document.weights[other]
        if self.function == "cosine":
            products /= np.prod([np.linalg.norm(text.weights.astype(np.float64)) for text in (query, document)]) or 1
        return ids, products


def sparse_rows(query: SparseEntries, document: SparseEntries) -> tuple[Scores, Scores]:
    """Return the weights of two sparse vectors over the M entries that occur in either, (1, M) each."""
    ids, places = np.unique(np.concatenate([query.token_ids, document.token_ids]), return_inverse=True)
    rows = np.zeros((2, len(ids)))
    rows[0, places[: len(query.token_ids)]] = query.weights
    rows[1, places[len(query.token_ids) :]] = document.weights
    return rows[:1], rows[1:]


@dataclass(frozen=True)
class MaxSim:
    """Late interaction (Khattab and Zaharia 2020): the sum over query vectors of the largest dot product.

    With `mean`, the mean instead, as in BGE-M3. It ranks the documents of a query in the same order. It has the methods
    of `EmbeddingSimilarity`.
    """

    mean: bool

    def task(self, tokens: ModelInput, pool_from: int) -> EncodeTask:
        del pool_from  # multi-vector heads read all tokens
        return EncodeTask(tokens, None, hidden=False, heads=("multi_vector",))

    def represent(self, vectors: TextVectors) -> Floats:
        assert vectors.multi_vector is not None
        return vectors.multi_vector

    def scores(self, query: Floats, documents: Sequence[Floats]) -> Scores:
        """Multiply the documents one by one, which is faster than copying them to one array."""
        columns = np.ascontiguousarray(query.T)
        scores = np.array([_sum_of_largest(document @ columns) for document in documents], dtype=np.float64)
        return scores / len(query) if self.mean and len(query) else scores

    def score_alone(self, text: Floats) -> float:
        del text  # an empty sum
        return 0.0


TextSimilarity = EmbeddingSimilarity | SparseSimilarity | MaxSim
"""A similarity between separately encoded texts."""


def maxsim_cost(products: int, manifest: Manifest, deadline: float) -> int:
    """Return the cost, in characters, of this many products of token vectors.

    Raises `DeadlineExceeded` if they would take far longer than the remaining time: they cannot be cancelled.
    """
    assert manifest.multi_vector is not None
    cost = products * (manifest.multi_vector.dimensions + PRODUCT_NUMBERS) // NUMBERS_PER_CHARACTER
    remaining = remaining_s(deadline)
    if cost * UNIT_S > OVERESTIMATE * remaining:
        raise too_large_for_deadline(cost * UNIT_S, remaining)
    return cost


def _sum_of_largest(products: Floats) -> float:
    """Return the sum of the largest product of each query vector, for products (K, Q); 0 without vectors."""
    return float(products.max(axis=0).sum(dtype=np.float64)) if products.size else 0.0
