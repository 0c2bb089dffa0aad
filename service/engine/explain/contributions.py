"""Exact decomposition of a similarity into contributions of pairs of tokens.

With mean pooling and linear dense layers, the embedding of a text is a sum of one term per token and a bias. So the dot
product of two embeddings is a sum over pairs of terms, and the cosine is that sum divided by both lengths. With cls
or last pooling, there is one term, from the first or last token. A distance is no such sum. Only the square of the
Euclidean distance is one, and it has terms of pairs within each text too.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import EmbeddingHead, Pooling
from service.engine.encode.pooling import DenseLayers, truncates
from service.engine.schema.encode import Array
from service.engine.schema.similarity import SCORE_DECIMALS, ContributionRest, TopContributions

Vectors = NDArray[np.float64]

SPECIAL, PROMPT = -1, -2
"""Values of `unit_of_token` for tokens without a unit; a token outside of all words counts as a special token."""


@dataclass(frozen=True)
class Embedder:
    """The steps from pooled vectors to the embeddings that a similarity function compares."""

    dense_layers: DenseLayers
    dimensions: int | None
    """The number of leading components to keep."""
    divisor: Literal["none", "kept", "all"]
    """What embeddings are divided by: nothing, or the length of the kept components or of all components."""

    @classmethod
    def of(
        cls, dense_layers: DenseLayers, head: EmbeddingHead, similarity: str, dimensions: int | None = None
    ) -> "Embedder":
        """Return the steps of a model for a similarity function and the `dimensions` of a request."""
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
        """Truncate terms (N, E) of vectors `whole` (N or 1, E), and divide them by the length of those vectors."""
        kept: Vectors = terms[:, : self.dimensions]
        if self.divisor == "none":
            return kept
        lengths = np.linalg.norm(whole if self.divisor == "all" else whole[:, : self.dimensions], axis=1, keepdims=True)
        scaled: Vectors = kept / np.where(lengths > 0, lengths, 1)
        return scaled

    def terms(self, unit_terms: Vectors) -> Vectors:
        """Return the terms of an embedding: those of the rows (N, D) of a pooled vector, and the bias as the last row.

        Their sum (N + 1 rows) is the embedding. Requires linear dense layers.
        """
        mapped = self.dense_layers.map_linearly(unit_terms)
        whole = self.dense_layers(unit_terms.sum(axis=0, keepdims=True))
        bias = whole - mapped.sum(axis=0, keepdims=True)
        return self._finish(np.concatenate([mapped, bias]), whole)


def unit_terms(
    hidden: NDArray[Any], unit_of_token: NDArray[np.intp], units: int, pooling: Pooling, pool_from: int
) -> Vectors:
    """Return the terms of a pooled vector: rows of U units, of special tokens, and of the prompt, (U + 2, D).

    Args:
        hidden: Token vectors, (T, D).
        unit_of_token: The unit of each token, `SPECIAL`, or `PROMPT`; (T).
        units: U.
        pooling: "mean", "cls" or "last".
        pool_from: Index of the first pooled token.
    """
    pooled = np.zeros(len(hidden), dtype=bool)
    if pooling == "cls":
        pooled[min(pool_from, len(hidden) - 1)] = True
    elif pooling == "last":
        pooled[-1] = True
    else:
        pooled[pool_from:] = True
    rows = np.where(unit_of_token == SPECIAL, units, np.where(unit_of_token == PROMPT, units + 1, unit_of_token))
    membership = (rows == np.arange(units + 2)[:, None]) & pooled
    terms: Vectors = membership.astype(np.float64) @ hidden.astype(np.float64) / max(1, pooled.sum())
    return terms


@dataclass(frozen=True)
class Contributions:
    """The contributions of one pair of U and V units, `units` (U, V), and the remaining terms of its score."""

    units: NDArray[np.float32]
    rest: ContributionRest

    @classmethod
    def of(cls, query: NDArray[np.float32], document: NDArray[np.float32]) -> "Contributions":
        """Multiply the terms of both embeddings, (U + 3, dimensions) and (V + 3, dimensions).

        The last three rows are those of special tokens, of the prompt, and of the bias. A product that involves
        several of these counts as bias, then as special tokens, then as prompt.
        """
        products = query @ document.T
        bias = float(products[-1, :].sum(dtype=np.float64) + products[:-1, -1].sum(dtype=np.float64))
        special = float(products[-3, :-1].sum(dtype=np.float64) + products[:-3, -3].sum(dtype=np.float64))
        special += float(products[-2, -3])
        prompt = float(products[-2, :-3].sum(dtype=np.float64) + products[:-3, -2].sum(dtype=np.float64))
        prompt += float(products[-2, -2])
        return cls(products[:-3, :-3], _rest(special, prompt, bias, 0.0))

    def largest(self, count: int) -> tuple[TopContributions, ContributionRest]:
        """Return the `count` contributions of the largest magnitude, and the rest with the sum of the others."""
        flat = self.units.ravel()
        count = min(count, flat.size)
        order = np.argpartition(-np.abs(flat), count - 1)[:count] if count else np.zeros(0, dtype=np.intp)
        order = order[np.lexsort((order, -np.abs(flat[order])))]
        rows, columns = np.divmod(order, max(1, self.units.shape[1]))
        kept = flat[order]
        dropped = float(flat.sum(dtype=np.float64) - kept.sum(dtype=np.float64)) if count < flat.size else 0.0
        rest = _rest(self.rest.special_tokens, self.rest.prompt, self.rest.bias, dropped)
        return TopContributions(rows.tolist(), columns.tolist(), Array(kept, "float32")), rest


def _rest(*terms: float) -> ContributionRest:
    return ContributionRest(*(round(term, SCORE_DECIMALS) + 0.0 for term in terms))
