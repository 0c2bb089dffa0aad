"""Similarity of token vectors and of sparse vectors, and the terms that its scores consist of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.tokenizer import TokenizedInput, Tokenizer
from service.engine.encode.pooling import shortest
from service.engine.encode.similarity_functions import DISTANCES
from service.engine.encode.sizes import RESULT_BYTES, array_bytes, listed_bytes
from service.engine.explain.similarity import PAIR_BYTES, ComparedText
from service.engine.explain.text_similarity import MaxSim, Scores, SparseSimilarity, TextSimilarity
from service.engine.explain.units import token_units
from service.engine.schema.encode import Array
from service.engine.schema.similarity import (
    SCORE_DECIMALS,
    ContributionRest,
    PairResult,
    SharedEntry,
    SimilarityRequest,
    TokenMatch,
)
from service.engine.schema.tasks import EncodeTask, TextVectors

TERM_BYTES = 256
"""Upper bound on the size of a match or a shared entry in JSON."""
MAX_TERMS = 1024
"""Terms to list per pair at most: two sparse vectors may share the whole vocabulary."""


def token_text(tokens: TokenizedInput, tokenizer: Tokenizer, first: int) -> ComparedText:
    """Return a text whose units are all tokens with a vector, from `first` on, special tokens included."""
    listed = token_units(tokens, tokenizer.token_texts(tokens)).units
    units = [
        unit
        for unit, number in zip(listed[first:], tokens.input_ids[first:], strict=True)
        if number not in tokens.skipped_ids
    ]
    return ComparedText(tokens, 0, units, np.zeros(0, dtype=np.intp))


@dataclass(frozen=True)
class HeadSimilarity:
    """A request with the similarity function "maxsim" or "sparse", tokenized; see `PreparedSimilarity`."""

    request: SimilarityRequest
    texts: list[ComparedText]
    """Queries, then documents."""
    similarity: TextSimilarity
    tokenizer: Tokenizer

    @property
    def queries(self) -> list[ComparedText]:
        return self.texts[: len(self.request.queries)]

    @property
    def documents(self) -> list[ComparedText]:
        return self.texts[len(self.request.queries) :]

    def tasks(self) -> list[EncodeTask]:
        """Return one task per text."""
        return [self.similarity.task(text.tokens, 0) for text in self.texts]

    def response_bytes(self) -> int:
        """Return an upper bound on the size of the response."""
        request, wire = self.request, self.request.wire
        total = RESULT_BYTES + request.pair_count * array_bytes(1, "float32", wire)
        total += sum(RESULT_BYTES + listed_bytes(text.units, wire) for text in self.texts)
        if request.explain:
            is_sparse = isinstance(self.similarity, SparseSimilarity)
            for query, _ in request.index_pairs():
                count = MAX_TERMS if is_sparse else len(self.queries[query].tokens)
                total += PAIR_BYTES + TERM_BYTES * min(count, self._max_terms)
        return total

    def results(self, vectors: Sequence[TextVectors]) -> tuple[Array, list[PairResult] | None]:
        """Return the scores and, with `explain`, the explained pairs; `vectors` are those of `tasks`."""
        represented: list[Any] = [self.similarity.represent(item) for item in vectors]
        queries, documents = represented[: len(self.request.queries)], represented[len(self.request.queries) :]
        if self.request.pairs == "zip":
            pairs = zip(queries, documents, strict=True)
            scores = np.array([self.similarity.scores(query, [document])[0] for query, document in pairs])
        else:
            scores = np.stack([self.similarity.scores(query, documents) for query in queries])
        rounded = Array(np.round(scores, SCORE_DECIMALS).astype(np.float32), "float32")
        if not self.request.explain:
            return rounded, None
        return rounded, [
            self._explain(query, document, queries[query], documents[document])
            for query, document in self.request.index_pairs()
        ]

    def _explain(self, query: int, document: int, own: Any, other: Any) -> PairResult:
        matches = products = None
        if isinstance(self.similarity, MaxSim):
            best, values = match_tokens(own, other, mean=self.similarity.mean)
            places, dropped = self._largest(values)
            matches = [TokenMatch(place, int(best[place]), shortest(values[place])) for place in places]
        else:
            assert isinstance(self.similarity, SparseSimilarity)
            if self.similarity.function in DISTANCES:
                (score,) = self.similarity.scores(own, [other])
                rounded = shortest(round(score, SCORE_DECIMALS))
                return PairResult(query, document, rounded, None, None, None, None, None)
            ids, values = self.similarity.products(own, other)
            places, dropped = self._largest(values)
            texts = self.tokenizer.vocabulary_texts(ids[places].tolist())
            products = [
                SharedEntry(int(ids[place]), text, shortest(values[place]))
                for place, text in zip(places, texts, strict=True)
            ]
        score, rest = shortest(round(float(values.sum()), SCORE_DECIMALS)), ContributionRest(0.0, 0.0, 0.0, dropped)
        return PairResult(query, document, score, None, None, rest, None, None, matches, products)

    def _largest(self, values: Scores) -> tuple[list[int], float]:
        """Return the places of the terms to list, of the largest magnitude first, and the sum of the others."""
        places = np.argsort(-np.abs(values), kind="stable")
        listed = places[: self._max_terms]
        dropped = float(values[places[self._max_terms :]].sum())
        return listed.tolist(), round(dropped, SCORE_DECIMALS) + 0.0

    @property
    def _max_terms(self) -> int:
        return min(self.request.top_k or MAX_TERMS, MAX_TERMS)


def match_tokens(query: Any, document: Any, *, mean: bool) -> tuple[NDArray[np.intp], Scores]:
    """Return the best token of the document (K, D) for each query token (Q, D), and the terms of the score, (Q) each.

    A term is the dot product, divided by Q if the score is a `mean`. Without tokens, there are no terms.
    """
    if not len(document):
        return np.zeros(0, dtype=np.intp), np.zeros(0)
    products = query @ document.T
    return products.argmax(axis=1), products.max(axis=1).astype(np.float64) / (len(query) if mean else 1)
