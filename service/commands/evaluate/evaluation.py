"""Evaluates one artifact on labeled texts."""

import asyncio
import gc
from dataclasses import dataclass

import numpy as np

from service.commands.evaluate.attribution import Attributor
from service.commands.evaluate.datasets import SIDES, AttributionData, RetrievalData, SimilarityData, WordData
from service.commands.evaluate.encoder import Encoder
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
from service.commands.lines import BATCH_SIZE, open_engine
from service.commands.neighbors import Vectors
from service.config import Settings

UNLIMITED = 2**40
"""No limit on response bytes and request tokens: vectors are never sent, and no other request is waiting."""


@dataclass(frozen=True)
class Datasets:
    """The files of the tasks to evaluate."""

    similarity: SimilarityData | None
    retrieval: RetrievalData | None
    words: WordData | None
    attribution: AttributionData | None


def evaluate(settings: Settings, datasets: Datasets, top_k: int) -> Evaluation:
    """Load an artifact, evaluate it on all files, and free the model.

    Raises `ArtifactError`, `ConfigError` or `TextError`.
    """
    limits = {"max_response_bytes": UNLIMITED, "max_queue_tokens": UNLIMITED} | {
        # Each pair has two texts.
        name: max(getattr(settings, name), 2 * BATCH_SIZE)
        for name in ("max_inputs", "max_spans_per_request")
    }
    evaluation = asyncio.run(_evaluate(settings.model_copy(update=limits), datasets, top_k))
    gc.collect()  # free the model's sessions before the next model is loaded
    return evaluation


async def _evaluate(settings: Settings, datasets: Datasets, top_k: int) -> Evaluation:
    async with open_engine(settings) as engine:
        encoder, attributor = Encoder(engine), Attributor(engine)
        files, sts, retrieval, words, attribution = {}, None, None, None, None
        if datasets.similarity is not None:
            files["sts"] = datasets.similarity.file
            sts = await _similarity_figures(encoder, datasets.similarity)
        if datasets.retrieval is not None:
            files["retrieval"] = datasets.retrieval.file
            retrieval = await _retrieval_figures(encoder, datasets.retrieval, top_k)
        if datasets.words is not None:
            files["word_in_context"] = datasets.words.file
            words = await _word_figures(encoder, datasets.words)
        if datasets.attribution is not None:
            files["attribution"] = datasets.attribution.file
            attribution = await _attribution_figures(attributor, datasets.attribution)
        truncated = encoder.truncated + attributor.truncated
        return Evaluation(engine.info, truncated, files, sts, retrieval, words, attribution)


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


async def _attribution_figures(attributor: Attributor, data: AttributionData) -> AttributionFigures:
    precisions = await attributor.precisions(data)
    references = precisions.reference_chances
    return AttributionFigures(
        len(data.lines),
        len(references),
        float(np.mean(precisions.chances)),
        float(np.mean(references)) if references else None,
        {name: estimate_mean(np.array(values)) for name, values in precisions.by_method.items()},
        precisions.omitted,
    )
