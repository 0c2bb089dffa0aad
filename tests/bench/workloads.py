"""Workloads: real English sentences of mixed lengths, seeded, taken at run time from what is installed anyway.

`s` is sentences with token quantiles 5/25/50/75/95 % = 8/13/18/30/53; `p` is passages of 96 to 256 tokens.
"""

import random
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from model.corpus import find_sentences
from model.tokenizer import Source, Tokenizer

SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
LENGTHS = (5, 8, 13, 18, 30, 53, 100)
"""The sentences' quantiles, in tokens."""
SEED = 20_261


@dataclass(frozen=True)
class Corpus:
    """`sentences` and `passages`, each a text and its number of tokens."""

    sentences: list[tuple[str, int]]
    passages: list[tuple[str, int]]


def read_corpus(tokenizer: Tokenizer, count: int = 4000) -> Corpus:
    """`count` different sentences of the lengths above, and a tenth as many passages."""
    rng = random.Random(SEED)
    found = list(find_sentences())
    rng.shuffle(found)
    lengths = [len(tokens) for tokens in tokenizer.encode([Source(text) for text in found], offsets=False)]
    by_length = sorted(zip(lengths, found, strict=True))
    sentences = []
    for _ in range(count):
        share = rng.random()
        wanted = float(np.interp(share, SHARES, LENGTHS))
        at = min(bisect_left(by_length, (round(wanted), "")), len(by_length) - 1)
        length, text = by_length.pop(at)
        sentences.append((text, length))
    return Corpus(sentences, _passages(tokenizer, [text for _, text in by_length] or found, count // 10, rng))


def _passages(tokenizer: Tokenizer, sentences: list[str], count: int, rng: random.Random) -> list[tuple[str, int]]:
    passages: list[tuple[str, int]] = []
    while len(passages) < count:
        wanted, parts, size = rng.randint(96, 250), [rng.choice(sentences)], 0
        while size < wanted - 10:
            parts.append(rng.choice(sentences))
            size = len(tokenizer.encode([Source(" ".join(parts))], offsets=False)[0])
        if 96 <= size <= 256:
            passages.append((" ".join(parts), size))
    return passages
