"""English sentences of mixed lengths from the documentation of installed packages, in a reproducible order.

Sentence lengths have the token quantiles 5/25/50/75/95% = 8/13/18/30/53. Passages have 96 to 256 tokens.
"""

import random
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from bench.project import Tokenizer, read_sentences

SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
LENGTHS = (5, 8, 13, 18, 30, 53, 100)
"""Quantiles of sentence lengths, in tokens."""
SEED = 20_261


@dataclass(frozen=True)
class Corpus:
    """Sentences and passages, with their token counts."""

    sentences: list[tuple[str, int]]
    passages: list[tuple[str, int]]

    def describe(self) -> str:
        lengths = [size for _, size in self.sentences]
        quantiles = "/".join(f"{q:.0f}" for q in np.quantile(lengths, (0.05, 0.25, 0.5, 0.75, 0.95)))
        return (
            f"{len(lengths)} sentences, mean {np.mean(lengths):.1f} tokens, quantiles 5/25/50/75/95% {quantiles}; "
            f"{len(self.passages)} passages, mean {np.mean([size for _, size in self.passages]):.0f}"
        )


def read_corpus(tokenizer: Tokenizer, count: int = 4000) -> Corpus:
    """Return `count` distinct sentences with these lengths, and `count // 10` passages."""
    rng = random.Random(SEED)
    texts = list(read_sentences())
    rng.shuffle(texts)
    by_length = sorted(zip(tokenizer.lengths(texts), texts, strict=True))
    sentences = []
    for _ in range(count):
        target = float(np.interp(rng.random(), SHARES, LENGTHS))
        at = min(bisect_left(by_length, (round(target), "")), len(by_length) - 1)
        length, text = by_length.pop(at)
        sentences.append((text, length))
    return Corpus(sentences, _passages(tokenizer, [text for _, text in by_length] or texts, count // 10, rng))


def texts_of_length(length: int, long: str, tokenizer: Tokenizer, count: int) -> list[str]:
    """Return at most `count` distinct slices of a long text with exactly `length` tokens."""
    offsets = tokenizer.offsets(long)
    words = length - 2  # the two special tokens
    step = max(1, (len(offsets) - words) // (4 * count))
    parts = [long[offsets[at][0] : offsets[at + words - 1][1]] for at in range(0, len(offsets) - words, step)]
    exact = [part for part, size in zip(parts, tokenizer.lengths(parts), strict=True) if size == length]
    return exact[:count]


def _passages(tokenizer: Tokenizer, sentences: list[str], count: int, rng: random.Random) -> list[tuple[str, int]]:
    passages: list[tuple[str, int]] = []
    while len(passages) < count:
        target, parts, size = rng.randint(96, 250), [rng.choice(sentences)], 0
        while size < target - 10:
            parts.append(rng.choice(sentences))
            (size,) = tokenizer.lengths([" ".join(parts)])
        if 96 <= size <= 256:
            passages.append((" ".join(parts), size))
    return passages
