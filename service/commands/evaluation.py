"""The evaluation of one artifact on labeled texts: similarities, measures, and their two formats."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.commands.datasets import SIDES, LabeledFile, RetrievalData, SimilarityData, WordData
from service.commands.encoder import Encoder
from service.commands.lines import BATCH_SIZE, open_engine
from service.commands.measures import (
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
from service.commands.neighbors import Vectors
from service.commands.report import describe_model, model_record
from service.config import Settings
from service.engine.schema.encode import ModelInfo

UNLIMITED = 2**40
"""Bytes of a response: the vectors of a batch of words are never sent."""


@dataclass(frozen=True)
class Datasets:
    """The files of the tasks to evaluate."""

    similarity: SimilarityData | None
    retrieval: RetrievalData | None
    words: WordData | None


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
    """Two-fold cross-validated accuracy, the threshold that each fold was classified with, and the AUC."""

    accuracy: Estimate
    thresholds: tuple[float, float]
    auc: Estimate


@dataclass(frozen=True)
class WordFigures:
    """`majority` is the share of the more frequent class, 0.5..1."""

    pairs: int
    majority: float
    contextual: SenseFigures
    static: SenseFigures


@dataclass(frozen=True)
class Evaluation:
    """The measures of one artifact. A task without file is None."""

    info: ModelInfo
    truncated: int
    """Number of texts over the token limit."""
    files: dict[str, LabeledFile]
    sts: SimilarityFigures | None
    retrieval: RetrievalFigures | None
    words: WordFigures | None

    def to_json(self) -> dict[str, Any]:
        """Return the result for programs."""
        tasks = (("sts", self.sts), ("retrieval", self.retrieval), ("word_in_context", self.words))
        files = {
            name: {"file": str(file.path), "lines_read": file.lines_read, "complete": file.is_complete}
            for name, file in self.files.items()
        }
        return {"model": model_record(self.info, self.truncated), "files": files} | dict(tasks)

    def to_lines(self) -> Iterator[str]:
        """Yield the lines of the table."""
        yield f"model      {describe_model(self.info)}"
        for name, file in self.files.items():
            rest = "" if file.is_complete else "; the file has more, see --limit"
            yield f"file       {name.replace('_', '-')}: {file.path}, {file.lines_read:,} lines{rest}"
        if self.truncated:
            yield f"truncated  {self.truncated:,} texts to {self.info.max_input_tokens} tokens"
        if self.words is not None:
            yield f"majority   {self.words.majority:.4f} of the pairs of words have the more frequent label"
        yield ""
        yield f"{'task':<46}{'measure':<11}{'value':>9}   95 % interval"
        for task, measure, estimate in self._rows():
            if estimate.value is None:
                figures = "not defined, because all similarities are equal"
            elif estimate.low is None:
                figures = f"{estimate.value:9.4f}   not defined"
            else:
                figures = f"{estimate.value:9.4f}   {estimate.low:.4f} to {estimate.high:.4f}"
            yield f"{task:<46}{measure:<11}{figures}"

    def _rows(self) -> Iterator[tuple[str, str, Estimate]]:
        if self.sts is not None:
            task = f"sts, {self.sts.pairs:,} pairs"
            yield task, "Spearman", self.sts.spearman
            yield task, "Pearson", self.sts.pearson
        if self.retrieval is not None:
            task = f"retrieval, {self.retrieval.queries:,} queries, {self.retrieval.documents:,} documents"
            yield task, f"recall@{self.retrieval.top_k}", self.retrieval.recall
            yield task, "nDCG@10", self.retrieval.ndcg
            yield task, "MRR", self.retrieval.mrr
        if self.words is not None:
            for name in ("contextual", "static"):
                task = f"word-in-context, {self.words.pairs:,} pairs, {name}"
                figures: SenseFigures = getattr(self.words, name)
                yield task, "accuracy", figures.accuracy
                yield task, "AUC", figures.auc


def evaluate(settings: Settings, datasets: Datasets, top_k: int) -> Evaluation:
    """Load an artifact and measure it on all files. Raises `ArtifactError`, `ConfigError` or `TextError`."""
    limits = {"max_response_bytes": UNLIMITED} | {
        name: max(getattr(settings, name), BATCH_SIZE) for name in ("max_inputs", "max_spans_per_request")
    }
    return asyncio.run(_evaluate(settings.model_copy(update=limits), datasets, top_k))


async def _evaluate(settings: Settings, datasets: Datasets, top_k: int) -> Evaluation:
    async with open_engine(settings) as engine:
        encoder = Encoder(engine)
        files, sts, retrieval, words = {}, None, None, None
        if datasets.similarity is not None:
            files["sts"] = datasets.similarity.file
            sts = await _similarity_figures(encoder, datasets.similarity)
        if datasets.retrieval is not None:
            files["retrieval"] = datasets.retrieval.file
            retrieval = await _retrieval_figures(encoder, datasets.retrieval, top_k)
        if datasets.words is not None:
            files["word_in_context"] = datasets.words.file
            words = await _word_figures(encoder, datasets.words)
        return Evaluation(engine.info, encoder.truncated, files, sts, retrieval, words)


async def _similarity_figures(encoder: Encoder, data: SimilarityData) -> SimilarityFigures:
    texts = [(f"line {pair.line}: text{side}", pair.texts[side - 1]) for pair in data.pairs for side in SIDES]
    similarities = await encoder.pair_similarities(data.file.path, texts)
    scores = np.array([pair.score for pair in data.pairs])
    return SimilarityFigures(
        len(scores), estimate_spearman(similarities, scores), estimate_pearson(similarities, scores)
    )


async def _retrieval_figures(encoder: Encoder, data: RetrievalData, top_k: int) -> RetrievalFigures:
    documents = await encoder.vectors(data.file.path, data.documents, "document")
    queries = await encoder.vectors(data.file.path, data.queries, "query")
    relevant = [np.array(indices, np.int64) for indices in data.relevant]
    recall, ndcg, reciprocal_rank = rank_measures(Vectors(documents, queries), relevant, top_k).T
    estimates = (estimate_mean(values) for values in (recall, ndcg, reciprocal_rank))
    return RetrievalFigures(len(queries), len(documents), top_k, *estimates)


async def _word_figures(encoder: Encoder, data: WordData) -> WordFigures:
    same = np.array([pair.same for pair in data.pairs])
    contextual, static = await encoder.word_cosines(
        data.file.path, [place for pair in data.pairs for place in pair.places]
    )
    share = float(same.mean())
    return WordFigures(len(same), max(share, 1 - share), _sense_figures(contextual, same), _sense_figures(static, same))


def _sense_figures(similarities: Values, same: Flags) -> SenseFigures:
    correct, thresholds = cross_validate(similarities, same)
    return SenseFigures(estimate_mean(correct.astype(np.float64)), thresholds, estimate_auc(similarities, same))
