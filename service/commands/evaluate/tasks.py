"""The tasks of an evaluation: figures, how they are measured, and their rows in the table."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from service.commands.encoding import TextEncoder, run_engine
from service.commands.evaluate.attribution import SIMILARITY_METHODS, rank_words
from service.commands.evaluate.datasets import (
    AttributionLine,
    RetrievalData,
    ScoredPair,
    WordPair,
    read_attribution,
    read_retrieval,
    read_similarity,
    read_words,
)
from service.commands.evaluate.measures import (
    Estimate,
    Flags,
    Values,
    cross_validate,
    estimate_auc,
    estimate_mean,
    estimate_pearson,
    estimate_spearman,
    rank_measures,
)
from service.commands.evaluate.records import Records
from service.commands.evaluate.similarities import pair_similarities, word_cosines
from service.commands.lines import ReadFile
from service.commands.neighbors import Vectors
from service.config import Settings
from service.engine.schema.model import ModelInfo

if TYPE_CHECKING:
    from service.engine.engine import Engine


class RowKey(NamedTuple):
    """A measure. `subject` describes the data."""

    subject: str
    method: str
    measure: str


Rows = Iterator[tuple[RowKey, Estimate]]


class Figures(ABC):
    """The figures of one task."""

    @classmethod
    @abstractmethod
    async def measure(cls, encoder: TextEncoder, data: Any, top_k: int) -> "Figures":
        """Evaluate a model on a file. Raises `TextError`."""

    @abstractmethod
    def rows(self) -> Rows:
        """Yield the measures with their keys."""

    def chances(self) -> Iterator[str]:
        """Yield lines about the figures of a model that guesses."""
        yield from ()


@dataclass(frozen=True)
class SimilarityFigures(Figures):
    pairs: int
    spearman: Estimate
    pearson: Estimate

    @classmethod
    async def measure(cls, encoder: TextEncoder, data: Records[ScoredPair], top_k: int) -> "SimilarityFigures":
        texts = [labeled for pair in data.lines for labeled in pair.labeled]
        similarities = await pair_similarities(encoder, data.file.path, texts)
        scores = np.array([pair.score for pair in data.lines])
        return cls(len(scores), estimate_spearman(similarities, scores), estimate_pearson(similarities, scores))

    def rows(self) -> Rows:
        subject = f"sts, {self.pairs:,} pairs"
        yield RowKey(subject, "", "Spearman"), self.spearman
        yield RowKey(subject, "", "Pearson"), self.pearson


@dataclass(frozen=True)
class RetrievalFigures(Figures):
    queries: int
    documents: int
    top_k: int
    recall: Estimate
    ndcg: Estimate
    mrr: Estimate

    @classmethod
    async def measure(cls, encoder: TextEncoder, data: RetrievalData, top_k: int) -> "RetrievalFigures":
        documents = await encoder.vectors(data.file.path, data.documents, "document")
        queries = await encoder.vectors(data.file.path, data.queries, "query")
        relevant = [np.array(indices, np.int64) for indices in data.relevant]
        measures = rank_measures(Vectors(documents, queries, encoder.engine.info.similarity), relevant, top_k).T
        return cls(len(queries), len(documents), top_k, *map(estimate_mean, measures))

    def rows(self) -> Rows:
        subject = f"retrieval, {self.queries:,} queries, {self.documents:,} documents"
        yield RowKey(subject, "", f"recall@{self.top_k}"), self.recall
        yield RowKey(subject, "", "nDCG@10"), self.ndcg
        yield RowKey(subject, "", "MRR"), self.mrr


@dataclass(frozen=True)
class SenseFigures:
    """Two-fold cross-validated accuracy, each fold's threshold, and the AUC."""

    accuracy: Estimate
    thresholds: tuple[float, float]
    auc: Estimate

    @classmethod
    def of(cls, similarities: Values, same: Flags) -> "SenseFigures":
        correct, thresholds = cross_validate(similarities, same)
        return cls(estimate_mean(correct.astype(np.float64)), thresholds, estimate_auc(similarities, same))


@dataclass(frozen=True)
class WordFigures(Figures):
    """Figures for words in context. `majority` is the share of the more frequent class, 0.5..1."""

    pairs: int
    majority: float
    contextual: SenseFigures
    static: SenseFigures

    @classmethod
    async def measure(cls, encoder: TextEncoder, data: Records[WordPair], top_k: int) -> "WordFigures":
        same = np.array([pair.same for pair in data.lines])
        places = [place for pair in data.lines for place in pair.places]
        contextual, static = await word_cosines(encoder, data.file.path, places)
        share = float(same.mean())
        return cls(len(same), max(share, 1 - share), SenseFigures.of(contextual, same), SenseFigures.of(static, same))

    def rows(self) -> Rows:
        for name, figures in (("contextual", self.contextual), ("static", self.static)):
            subject = f"word-in-context, {self.pairs:,} pairs"
            yield RowKey(subject, name, "accuracy"), figures.accuracy
            yield RowKey(subject, name, "AUC"), figures.auc

    def chances(self) -> Iterator[str]:
        yield f"majority   {self.majority:.4f} of the pairs of words have the more frequent label"


@dataclass(frozen=True)
class AttributionFigures(Figures):
    """Precision@1 by method. `chance` is the precision of a random order; `omitted` has the reason by kind or method.

    Similarity methods only cover lines with a reference. If there are none, `reference_chance` is None.
    """

    lines: int
    references: int
    chance: float
    reference_chance: float | None
    methods: dict[str, Estimate]
    omitted: dict[str, str]

    @classmethod
    async def measure(cls, encoder: TextEncoder, data: Records[AttributionLine], top_k: int) -> "AttributionFigures":
        precisions = await rank_words(encoder, data)
        references = precisions.reference_chances
        return cls(
            len(data.lines),
            len(references),
            float(np.mean(precisions.chances)),
            float(np.mean(references)) if references else None,
            {name: estimate_mean(np.array(values)) for name, values in precisions.by_method.items()},
            precisions.omitted,
        )

    def rows(self) -> Rows:
        for method, estimate in self.methods.items():
            lines = self.references if method in SIMILARITY_METHODS else self.lines
            yield RowKey(f"attribution, {lines:,} lines", method, "precision@1"), estimate

    def chances(self) -> Iterator[str]:
        yield f"chance     {self.chance:.4f} is the precision@1 of a random order of the words"
        if self.reference_chance is not None:
            yield f"chance     {self.reference_chance:.4f} for the {self.references:,} lines with a reference"


TASKS: dict[str, tuple[Callable[[Path, int], Any], type[Figures]]] = {
    "sts": (read_similarity, SimilarityFigures),
    "retrieval": (read_retrieval, RetrievalFigures),
    "word_in_context": (read_words, WordFigures),
    "attribution": (read_attribution, AttributionFigures),
}
"""The functions that read the files of the tasks, and the figures, by name."""


@dataclass(frozen=True)
class Evaluation:
    """The figures of one artifact by task. Tasks without a file are missing."""

    info: ModelInfo
    truncated: int
    """Number of texts over the token limit."""
    files: dict[str, ReadFile]
    tasks: dict[str, Figures]

    def rows(self) -> dict[RowKey, Estimate]:
        return {key: estimate for figures in self.tasks.values() for key, estimate in figures.rows()}


def evaluate(settings: Settings, datasets: dict[str, Any], top_k: int) -> Evaluation:
    """Load an artifact, evaluate it on the data of each task, and free the model.

    Raises `ArtifactError`, `ConfigError` or `TextError`.
    """

    async def measure(engine: "Engine") -> Evaluation:
        encoder = TextEncoder(engine, engine.info.name)
        tasks = {name: await TASKS[name][1].measure(encoder, data, top_k) for name, data in datasets.items()}
        files = {name: data.file for name, data in datasets.items()}
        return Evaluation(engine.info, encoder.truncated, files, tasks)

    return run_engine(settings, measure)
