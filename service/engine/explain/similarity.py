"""Similarity of pairs of texts: the texts and their units before inference, scores and explanations after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import Manifest, Similarity
from model.artifact.tokenizer import TokenizedInput, Tokenizer
from service.engine.encode.pooling import pool_batch, shortest
from service.engine.encode.response import first_pooled_token
from service.engine.encode.similarity_functions import compare_all, compare_rows
from service.engine.encode.sizes import RESULT_BYTES, array_bytes, listed_bytes
from service.engine.explain.attend import JSON_INDEX_BYTES
from service.engine.explain.contributions import PROMPT, SPECIAL, Contributions, Embedder, unit_terms
from service.engine.explain.effects import occlude, pool_without_units
from service.engine.explain.units import token_units, word_units
from service.engine.schema.encode import Array, Wire
from service.engine.schema.explain import Unit
from service.engine.schema.similarity import (
    SCORE_DECIMALS,
    PairResult,
    SimilarityRequest,
    SimilaritySpec,
    SimilarityText,
    SimilarityUnit,
)
from service.engine.schema.tasks import EncodeTask, OccludedSequence, TextVectors

PAIR_BYTES = 512
"""Upper bound on the size of a pair without its arrays."""


@dataclass(frozen=True)
class ComparedText:
    """One tokenized query or document. Without `explain`, it has no units."""

    tokens: TokenizedInput
    pool_from: int
    units: list[Unit]
    unit_of_token: NDArray[np.intp]
    """The unit of each token, `SPECIAL`, or `PROMPT`; (T)."""

    @classmethod
    def of(
        cls, tokens: TokenizedInput, tokenizer: Tokenizer, manifest: Manifest, unit: SimilarityUnit | None
    ) -> "ComparedText":
        """Find the units of a text; `unit` None finds none."""
        pool_from = first_pooled_token(tokens, manifest)
        if unit is None:
            return cls(tokens, pool_from, [], np.zeros(0, dtype=np.intp))
        texts = tokenizer.token_texts(tokens)
        listed = token_units(tokens, texts) if unit == "token" else word_units(tokens, texts)
        numbers = np.cumsum([not item.special for item in listed.units]) - 1
        own = np.where([item.special for item in listed.units], SPECIAL, numbers)
        unit_of_token = own[listed.membership.argmax(axis=0)]
        first, last = tokens.prompt_range
        unit_of_token[first:last] = PROMPT
        return cls(tokens, pool_from, [item for item in listed.units if not item.special], unit_of_token)

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


@dataclass(frozen=True)
class PreparedSimilarity:
    """A request whose texts are tokenized: its tasks for the fast lane, and its results from their vectors."""

    request: SimilarityRequest
    spec: SimilaritySpec
    manifest: Manifest
    embedder: Embedder
    function: Similarity
    texts: list[ComparedText]
    """Queries, then documents."""

    @property
    def queries(self) -> list[ComparedText]:
        return self.texts[: len(self.request.queries)]

    @property
    def documents(self) -> list[ComparedText]:
        return self.texts[len(self.request.queries) :]

    def tasks(self) -> list[EncodeTask]:
        """Return one task per text, then one per occluded sequence that has tokens to pool."""
        pooling = self.manifest.embedding.pooling
        explain = self.request.explain
        tasks = [EncodeTask(text.tokens, None if explain else pooling, explain, text.pool_from) for text in self.texts]
        if self.request.effect == "occlusion":
            tasks += [
                EncodeTask(sequence, pooling, hidden=False, pool_from=text.pool_from)
                for text in self.texts
                for sequence in text.occluded
                if len(sequence) > text.pool_from
            ]
        return tasks

    def occluded_sizes(self) -> list[int]:
        """Return the number of tokens of each occluded sequence, without building the sequences."""
        return [size for text in self.texts for size in text.occluded_sizes]

    def response_bytes(self) -> int:
        """Return an upper bound on the size of the response."""
        request, wire = self.request, self.request.wire
        total = RESULT_BYTES + self.request.pair_count * array_bytes(1, "float32", wire)
        for text in self.texts:
            total += RESULT_BYTES + listed_bytes(text.units, wire)
        if not request.explain:
            return total
        for query, document in self._pairs():
            count = len(query.units) * len(document.units) if self.spec.unavailable is None else 0
            if request.top_k is not None:
                count = min(count, request.top_k)
                total += 2 * count * JSON_INDEX_BYTES
            if request.effect != "none":
                count += len(query.units) + len(document.units)
            total += PAIR_BYTES + array_bytes(count, "float32", wire) + _row_bytes(len(query.units), wire)
        return total

    def results(self, vectors: Sequence[TextVectors]) -> tuple[Array, list[PairResult] | None]:
        """Return the scores and, with `explain`, the explained pairs; `vectors` are those of `tasks`."""
        if not self.request.explain:
            embeddings = self.embedder.embed(np.concatenate([_present(item.pooled) for item in vectors]))
            return self._scores(embeddings), None
        hidden = [_present(item.hidden)[0] for item in vectors[: len(self.texts)]]
        embeddings = self.embedder.embed(
            np.concatenate([self._pool(text, states) for text, states in zip(self.texts, hidden, strict=True)])
        )
        terms = self._terms(hidden)
        without = self._without_units(hidden, vectors[len(self.texts) :])
        pairs = []
        for query, document in self.request.index_pairs():
            other = len(self.request.queries) + document
            score = float(compare_rows(embeddings[[query]], embeddings[[other]], self.function)[0])
            effects: list[Array | None] = [None, None]
            if without is not None:
                effects = [
                    _array(score - compare_all(without[query], embeddings[[other]], self.function)[:, 0]),
                    _array(score - compare_all(without[other], embeddings[[query]], self.function)[:, 0]),
                ]
            matrix, top, rest = None, None, None
            if terms is not None:
                contributions = Contributions.of(terms[query], terms[other])
                rest = contributions.rest
                if self.request.top_k is None:
                    matrix = Array(np.ascontiguousarray(contributions.units), "float32")
                else:
                    top, rest = contributions.largest(self.request.top_k)
            rounded = shortest(round(score, SCORE_DECIMALS))
            pairs.append(PairResult(query, document, rounded, matrix, top, rest, effects[0], effects[1]))
        return self._scores(embeddings), pairs

    def _pairs(self) -> list[tuple[ComparedText, ComparedText]]:
        queries, documents = self.queries, self.documents
        return [(queries[query], documents[document]) for query, document in self.request.index_pairs()]

    def _scores(self, embeddings: NDArray[np.float64]) -> Array:
        queries, documents = np.split(embeddings, [len(self.request.queries)])
        if self.request.pairs == "zip":
            return _array(np.round(compare_rows(queries, documents, self.function), SCORE_DECIMALS))
        scores = compare_all(queries, documents, self.function)
        return _array(np.round(scores, SCORE_DECIMALS))  # printed like the scores of pairs

    def _pool(self, text: ComparedText, hidden: NDArray[Any]) -> NDArray[Any]:
        return pool_batch(hidden, [0], [len(hidden)], self.manifest.embedding.pooling, [text.pool_from])

    def _terms(self, hidden: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]] | None:
        if self.spec.unavailable is not None:
            return None
        pooling = self.manifest.embedding.pooling
        return [
            self.embedder.terms(
                unit_terms(states, text.unit_of_token, len(text.units), pooling, text.pool_from)
            ).astype(np.float32)
            for text, states in zip(self.texts, hidden, strict=True)
        ]

    def _without_units(
        self, hidden: Sequence[NDArray[Any]], occluded: Sequence[TextVectors]
    ) -> list[NDArray[np.float32]] | None:
        """Return the embeddings of each text without each of its units; zeros if no token remains."""
        effect, pooling = self.request.effect, self.manifest.embedding.pooling
        if effect == "none":
            return None
        embeddings = []
        vectors = iter(occluded)
        for text, states in zip(self.texts, hidden, strict=True):
            units = len(text.units)
            if effect == "leave_one_out":
                rows = pool_without_units(states, text.unit_of_token, units, pooling, text.pool_from)
            else:
                rows = np.zeros((units, self.manifest.architecture.hidden_size))
                for index, sequence in enumerate(text.occluded):
                    if len(sequence) > text.pool_from:
                        rows[index] = _present(next(vectors).pooled)[0]
            embeddings.append(self._embed_present(rows).astype(np.float32))
        return embeddings

    def _embed_present(self, pooled: NDArray[np.float64]) -> NDArray[np.float64]:
        """Embed pooled vectors; a text without tokens has no embedding, here zeros."""
        embeddings = self.embedder.embed(pooled)
        embeddings[~pooled.any(axis=1)] = 0
        return embeddings


def _row_bytes(rows: int, wire: Wire) -> int:
    """Return the size of the brackets and commas between rows."""
    return 0 if wire == "binary" else 2 * rows


def _array(values: NDArray[Any]) -> Array:
    return Array(values.astype(np.float32), "float32")


def _present(vectors: NDArray[Any] | None) -> NDArray[Any]:
    assert vectors is not None
    return vectors
