"""Rankers: how models of different kinds score documents for a query, and what each unit contributes to a score."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import ScoreActivation
from service.engine.explain.labels import effects, label_tasks, occlusion_tasks, to_scores
from service.engine.explain.similarity import ComparedText
from service.engine.explain.text_similarity import TextSimilarity
from service.engine.schema.encode import Array
from service.engine.schema.labels import RankExplanation
from service.engine.schema.tasks import EncodeTask, TextVectors

Scores = NDArray[np.float64]


class Ranker(Protocol):
    """A query and N documents, tokenized."""

    texts: list[ComparedText]

    def occluded_sizes(self, document: int) -> list[int]:
        """Return the number of tokens of each sequence that explains the score of a document."""

    def explained(self, document: int) -> list[ComparedText]:
        """Return the texts whose units explain the score of a document."""

    def tasks(self) -> list[EncodeTask]:
        """Return the tasks from which `scores` computes the scores."""

    def scores(self, vectors: Sequence[TextVectors]) -> tuple[Scores, Scores]:
        """Return the values by which documents are sorted, and their scores; (N) each."""

    def occlusion_tasks(self, documents: Sequence[int]) -> list[EncodeTask]:
        """Return the tasks from which `explain` explains the scores of documents."""

    def explain(self, documents: Sequence[int], vectors: Sequence[TextVectors]) -> list[RankExplanation]:
        """Return the effects of the units of the query and of each document, after `scores`."""


class PairRanker:
    """A cross-encoder: each text is the query with a document, and the score is that of the only label."""

    def __init__(self, texts: list[ComparedText], activation: ScoreActivation) -> None:
        self.texts = texts
        self._activation = activation
        self._scores = np.zeros((0, 1))

    def occluded_sizes(self, document: int) -> list[int]:
        return self.texts[document].occluded_sizes

    def explained(self, document: int) -> list[ComparedText]:
        return [self.texts[document]]

    def tasks(self) -> list[EncodeTask]:
        return label_tasks(self.texts)

    def scores(self, vectors: Sequence[TextVectors]) -> tuple[Scores, Scores]:
        logits = np.concatenate([item.logits for item in vectors]).astype(np.float64)
        self._scores = to_scores(logits[:, None], self._activation)
        return logits, self._scores[:, 0]

    def occlusion_tasks(self, documents: Sequence[int]) -> list[EncodeTask]:
        return occlusion_tasks([self.texts[document] for document in documents])

    def explain(self, documents: Sequence[int], vectors: Sequence[TextVectors]) -> list[RankExplanation]:
        texts = [self.texts[document] for document in documents]
        changes = effects(texts, self._scores[list(documents)], vectors, self._activation)
        return [_by_segment(text, of_text[0]) for text, of_text in zip(texts, changes, strict=True)]


def _by_segment(text: ComparedText, changes: NDArray[np.float32]) -> RankExplanation:
    """Return the effects of the units of a pair: segment 0 is the query, segment 1 the document."""
    segments = np.array([unit.segment for unit in text.units], dtype=np.intp)
    query, document = ([unit for unit in text.units if unit.segment == segment] for segment in (0, 1))
    own, other = (Array(np.ascontiguousarray(changes[segments == segment]), "float32") for segment in (0, 1))
    return RankExplanation(query, document, own, other)


class SimilarityRanker:
    """A model that represents texts one by one: the first text is the query, and the score is a similarity."""

    def __init__(self, texts: list[ComparedText], similarity: TextSimilarity) -> None:
        self.texts = texts
        self._similarity = similarity
        self._represented: list[Any] = []

    def occluded_sizes(self, document: int) -> list[int]:
        return [size for text in self.explained(document) for size in text.occluded_sizes]

    def explained(self, document: int) -> list[ComparedText]:
        return [self.texts[0], self.texts[document + 1]]

    def tasks(self) -> list[EncodeTask]:
        return [self._similarity.task(text.tokens, text.pool_from) for text in self.texts]

    def scores(self, vectors: Sequence[TextVectors]) -> tuple[Scores, Scores]:
        self._represented = [self._similarity.represent(item) for item in vectors]
        query, *documents = self._represented
        scores = self._similarity.scores(query, documents)
        return scores, scores

    def occlusion_tasks(self, documents: Sequence[int]) -> list[EncodeTask]:
        """Return the tasks of the query, once, and of the documents."""
        return [
            self._similarity.task(sequence, text.pool_from)
            for text in self._occluded_texts(documents)
            for sequence in text.occluded
            if len(sequence) > text.pool_from
        ]

    def explain(self, documents: Sequence[int], vectors: Sequence[TextVectors]) -> list[RankExplanation]:
        results = iter(vectors)
        without = [
            [
                self._similarity.represent(next(results)) if len(sequence) > text.pool_from else None
                for sequence in text.occluded
            ]
            for text in self._occluded_texts(documents)
        ]
        query, explanations = self._represented[0], []
        for document, shorter in zip(documents, without[1:], strict=True):
            own = self._represented[document + 1]
            (score,) = self._similarity.scores(query, [own])
            of_query = [self._score(other, own) for other in without[0]]
            of_document = [self._score(query, other) for other in shorter]
            units = self.texts[0].units, self.texts[document + 1].units
            explanations.append(RankExplanation(*units, _effects(score, of_query), _effects(score, of_document)))
        return explanations

    def _score(self, query: Any, document: Any) -> float:
        """Return the score of two representations; one of them may be None if no token of its text remains."""
        if query is None or document is None:
            return self._similarity.score_alone(document if query is None else query)
        return float(self._similarity.scores(query, [document])[0])

    def _occluded_texts(self, documents: Sequence[int]) -> list[ComparedText]:
        return [self.texts[0], *(self.texts[document + 1] for document in documents)]


def _effects(score: float, without: Sequence[float]) -> Array:
    return Array((score - np.array(without)).astype(np.float32), "float32")
