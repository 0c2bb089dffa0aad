"""Entities: labels of tokens, joined as the pipeline "token-classification" of transformers does.

The difference is what a word is: here it is the word of the text that a token overlaps, for every tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engine.encode.pooling import shortest
from service.engine.schema.encode import Token
from service.engine.schema.entities import Aggregation, Entity

OUTSIDE = "O"
"""The label of tokens that belong to no entity. It is not returned."""

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class _Part:
    """A token or a word with its label."""

    label: str
    score: float
    start: int
    end: int
    segment: int
    text: str


def find_entities(
    tokens: Sequence[Token],
    logits: NDArray[Any],
    labels: Sequence[str],
    texts: tuple[str, str],
    aggregation: Aggregation,
) -> list[Entity]:
    """Return the entities of an input.

    Args:
        tokens: its T tokens.
        logits: of the tokens, (T, C).
        labels: the C names of the labels.
        texts: the texts of the two segments.
        aggregation: "none" returns one entity per token; the others join neighbors with one tag, of tokens ("simple")
            or of words, whose label is that of the first token, of the mean of the scores, or of the highest score.
    """
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    scores: Scores = powers / powers.sum(axis=-1, keepdims=True)
    places = [place for place, token in enumerate(tokens) if not token.special]
    if aggregation in ("none", "simple"):
        groups = [[place] for place in places]
    else:
        words = groupby(places, key=lambda place: (tokens[place].segment, _word_of(tokens, place)))
        groups = [list(members) for _, members in words]
    parts = [_label(group, tokens, scores, labels, aggregation) for group in groups]
    if aggregation == "none":
        return [_entity(part.label, [part], texts) for part in parts if part.label != OUTSIDE]
    return [_entity(_split(group[0].label)[1], group, texts) for group in _join(parts) if group[0].label != OUTSIDE]


def _word_of(tokens: Sequence[Token], place: int) -> int:
    """Return the word of a token; a token outside of all words is one of its own."""
    word = tokens[place].word_index
    return -1 - place if word is None else word


def _label(
    group: Sequence[int], tokens: Sequence[Token], scores: Scores, labels: Sequence[str], aggregation: Aggregation
) -> _Part:
    """Return the label of the tokens of a group."""
    own = scores[list(group)]
    if aggregation == "average":
        row = own.mean(axis=0)
    else:
        row = own[own.max(axis=1).argmax()] if aggregation == "max" else own[0]
    best = int(row.argmax())
    first, last = tokens[group[0]], tokens[group[-1]]
    return _Part(labels[best], float(row[best]), first.start, last.end, first.segment, first.text)


def _join(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Join neighbors of one segment with one tag, unless the next one begins an entity ("B-")."""
    groups: list[list[_Part]] = []
    for part in parts:
        begins, tag = _split(part.label)
        previous = groups[-1][-1] if groups else None
        if previous is None or begins or previous.segment != part.segment or _split(previous.label)[1] != tag:
            groups.append([part])
        else:
            groups[-1].append(part)
    return groups


def _split(label: str) -> tuple[bool, str]:
    """Return whether a label begins an entity, and its tag. A label without "B-" or "I-" continues one."""
    prefix, separator, tag = label.partition("-")
    return (prefix == "B", tag) if separator and prefix in ("B", "I") else (False, label)


def _entity(label: str, group: Sequence[_Part], texts: tuple[str, str]) -> Entity:
    first, last = group[0], group[-1]
    text = texts[first.segment][first.start : last.end] or first.text  # token ids have no text
    score = shortest(float(np.mean([part.score for part in group])))
    return Entity(label, score, text, first.start, last.end, first.segment)
