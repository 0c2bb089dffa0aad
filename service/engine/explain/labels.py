"""Scores of labels, and what each unit of a text contributes to them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import ScoreActivation
from service.engine.explain.similarity import ComparedText
from service.engine.schema.tasks import EncodeTask, TextVectors


def to_scores(logits: NDArray[Any], activation: ScoreActivation) -> NDArray[np.float64]:
    """Return the scores of logits (..., C)."""
    values = logits.astype(np.float64)
    if activation == "identity":
        return values
    scores: NDArray[np.float64]
    if activation == "sigmoid":
        scores = np.exp(-np.logaddexp(0.0, -values))
    else:
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        scores = powers / powers.sum(axis=-1, keepdims=True)
    return scores


def label_tasks(texts: Sequence[ComparedText]) -> list[EncodeTask]:
    """Return one task per text."""
    return [EncodeTask(text.tokens, None, hidden=False, heads=("classification",)) for text in texts]


def occlusion_tasks(texts: Sequence[ComparedText]) -> list[EncodeTask]:
    """Return one task per unit of each text, for the text without the unit, unless no token remains."""
    return [
        EncodeTask(sequence, None, hidden=False, heads=("classification",))
        for text in texts
        for sequence in text.occluded
        if len(sequence)
    ]


def effects(
    texts: Sequence[ComparedText],
    scores: NDArray[np.float64],
    occluded: Sequence[TextVectors],
    activation: ScoreActivation,
) -> list[NDArray[np.float32]]:
    """Return the score of each label less its score without each unit, (C, U) per text.

    `scores` (N, C) are those of the texts, and `occluded` the results of `occlusion_tasks`. A text without tokens
    has the score 0.
    """
    results, found = iter(occluded), []
    for text, own in zip(texts, scores, strict=True):
        without = np.zeros((len(text.units), len(own)))
        for unit, sequence in enumerate(text.occluded):
            if len(sequence):
                logits = next(results).logits
                assert logits is not None
                without[unit] = to_scores(logits, activation)
        found.append((own - without).T.astype(np.float32))
    return found
