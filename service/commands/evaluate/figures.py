"""An artifact's measures by task, and as table rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from service.commands.evaluate.attribution import SIMILARITY_METHODS
from service.commands.evaluate.measures import Estimate
from service.commands.lines import ReadFile
from service.engine.schema.encode import ModelInfo


class RowKey(NamedTuple):
    """A measure of a task. `task` is a key of `Evaluation.files`, and `subject` describes the data."""

    task: str
    subject: str
    method: str
    measure: str


Rows = dict[RowKey, Estimate]


@dataclass(frozen=True)
class SimilarityFigures:
    pairs: int
    spearman: Estimate
    pearson: Estimate


@dataclass(frozen=True)
class RetrievalFigures:
    queries: int
    documents: int
    top_k: int
    recall: Estimate
    ndcg: Estimate
    mrr: Estimate


@dataclass(frozen=True)
class SenseFigures:
    """Two-fold cross-validated accuracy, each fold's threshold, and the AUC."""

    accuracy: Estimate
    thresholds: tuple[float, float]
    auc: Estimate


@dataclass(frozen=True)
class WordFigures:
    """Figures for words in context. `majority` is the share of the more frequent class, 0.5..1."""

    pairs: int
    majority: float
    contextual: SenseFigures
    static: SenseFigures


@dataclass(frozen=True)
class AttributionFigures:
    """Precision@1 by method. `chance` is the precision of a random order; `omitted` has the reason by kind or method.

    Similarity methods only cover lines with a reference. If there are none, `reference_chance` is None.
    """

    lines: int
    references: int
    chance: float
    reference_chance: float | None
    methods: dict[str, Estimate]
    omitted: dict[str, str]


@dataclass(frozen=True)
class Evaluation:
    """The measures of one artifact. A task is None if it has no file."""

    info: ModelInfo
    truncated: int
    """Number of texts over the token limit."""
    files: dict[str, ReadFile]
    sts: SimilarityFigures | None
    retrieval: RetrievalFigures | None
    word_in_context: WordFigures | None
    attribution: AttributionFigures | None

    def rows(self) -> Rows:
        return dict(self._rows())

    def _rows(self) -> Iterator[tuple[RowKey, Estimate]]:
        if self.sts is not None:
            subject = f"sts, {self.sts.pairs:,} pairs"
            yield RowKey("sts", subject, "", "Spearman"), self.sts.spearman
            yield RowKey("sts", subject, "", "Pearson"), self.sts.pearson
        if self.retrieval is not None:
            subject = f"retrieval, {self.retrieval.queries:,} queries, {self.retrieval.documents:,} documents"
            yield RowKey("retrieval", subject, "", f"recall@{self.retrieval.top_k}"), self.retrieval.recall
            yield RowKey("retrieval", subject, "", "nDCG@10"), self.retrieval.ndcg
            yield RowKey("retrieval", subject, "", "MRR"), self.retrieval.mrr
        if self.word_in_context is not None:
            subject = f"word-in-context, {self.word_in_context.pairs:,} pairs"
            for name in ("contextual", "static"):
                figures: SenseFigures = getattr(self.word_in_context, name)
                yield RowKey("word_in_context", subject, name, "accuracy"), figures.accuracy
                yield RowKey("word_in_context", subject, name, "AUC"), figures.auc
        if self.attribution is not None:
            for method, estimate in self.attribution.methods.items():
                lines = self.attribution.references if method in SIMILARITY_METHODS else self.attribution.lines
                yield RowKey("attribution", f"attribution, {lines:,} lines", method, "precision@1"), estimate
