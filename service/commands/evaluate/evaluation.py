"""Evaluates one artifact on labeled texts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from service.commands.encoding import TextEncoder, run_engine
from service.commands.evaluate.attribution import rank_words
from service.commands.evaluate.datasets import AttributionLine, RetrievalData, ScoredPair, WordPair
from service.commands.evaluate.figures import (
    AttributionFigures,
    Evaluation,
    RetrievalFigures,
    SenseFigures,
    SimilarityFigures,
    WordFigures,
)
from service.commands.evaluate.measures import (
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
from service.commands.neighbors import Vectors
from service.config import Settings

if TYPE_CHECKING:
    from service.engine.engine import Engine


@dataclass(frozen=True)
class Datasets:
    """The files of the tasks to evaluate."""

    sts: Records[ScoredPair] | None
    retrieval: RetrievalData | None
    word_in_context: Records[WordPair] | None
    attribution: Records[AttributionLine] | None


def evaluate(settings: Settings, datasets: Datasets, top_k: int) -> Evaluation:
    """Load an artifact, evaluate it on all files, and free the model.

    Raises `ArtifactError`, `ConfigError` or `TextError`.
    """
    files = {task: data.file for task, data in vars(datasets).items() if data is not None}

    async def measure(engine: "Engine") -> Evaluation:
        encoder = TextEncoder(engine, engine.info.name)
        sts = await _similarity_figures(encoder, datasets.sts) if datasets.sts else None
        retrieval = await _retrieval_figures(encoder, datasets.retrieval, top_k) if datasets.retrieval else None
        words = await _word_figures(encoder, datasets.word_in_context) if datasets.word_in_context else None
        attribution = await _attribution_figures(encoder, datasets.attribution) if datasets.attribution else None
        return Evaluation(engine.info, encoder.truncated, files, sts, retrieval, words, attribution)

    return run_engine(settings, measure)


async def _similarity_figures(encoder: TextEncoder, data: Records[ScoredPair]) -> SimilarityFigures:
    texts = [labeled for pair in data.lines for labeled in pair.labeled]
    similarities = await pair_similarities(encoder, data.file.path, texts)
    scores = np.array([pair.score for pair in data.lines])
    return SimilarityFigures(
        len(scores), estimate_spearman(similarities, scores), estimate_pearson(similarities, scores)
    )


async def _retrieval_figures(encoder: TextEncoder, data: RetrievalData, top_k: int) -> RetrievalFigures:
    documents = await encoder.vectors(data.file.path, data.documents, "document")
    queries = await encoder.vectors(data.file.path, data.queries, "query")
    relevant = [np.array(indices, np.int64) for indices in data.relevant]
    recall, ndcg, reciprocal_rank = rank_measures(Vectors(documents, queries), relevant, top_k).T
    estimates = (estimate_mean(values) for values in (recall, ndcg, reciprocal_rank))
    return RetrievalFigures(len(queries), len(documents), top_k, *estimates)


async def _word_figures(encoder: TextEncoder, data: Records[WordPair]) -> WordFigures:
    same = np.array([pair.same for pair in data.lines])
    places = [place for pair in data.lines for place in pair.places]
    contextual, static = await word_cosines(encoder, data.file.path, places)
    share = float(same.mean())
    return WordFigures(len(same), max(share, 1 - share), _sense_figures(contextual, same), _sense_figures(static, same))


def _sense_figures(similarities: Values, same: Flags) -> SenseFigures:
    correct, thresholds = cross_validate(similarities, same)
    return SenseFigures(estimate_mean(correct.astype(np.float64)), thresholds, estimate_auc(similarities, same))


async def _attribution_figures(encoder: TextEncoder, data: Records[AttributionLine]) -> AttributionFigures:
    precisions = await rank_words(encoder, data)
    references = precisions.reference_chances
    return AttributionFigures(
        len(data.lines),
        len(references),
        float(np.mean(precisions.chances)),
        float(np.mean(references)) if references else None,
        {name: estimate_mean(np.array(values)) for name, values in precisions.by_method.items()},
        precisions.omitted,
    )
