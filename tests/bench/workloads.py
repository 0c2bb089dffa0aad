"""Workloads: real English sentences of mixed lengths, seeded, taken at run time from text that is installed anyway.

`s` is sentences with token quantiles 5/25/50/75/95 % = 8/13/18/30/53; `p` is passages of 96 to 256 tokens.
"""

import importlib.metadata
import random
import re
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

import numpy as np

from model.tokenizer import Source, Tokenizer

SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
LENGTHS = (5, 8, 13, 18, 30, 53, 100)
"""The sentences' quantiles, in tokens."""
SEED = 20_261
SENTENCE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'\"()-]{15,400}[.!?](?=\s|$)")


@dataclass(frozen=True)
class Corpus:
    """`sentences` and `passages`, each a text and its number of tokens."""

    sentences: list[tuple[str, int]]
    passages: list[tuple[str, int]]


def read_corpus(tokenizer: Tokenizer, count: int = 4000) -> Corpus:
    """`count` different sentences of the lengths above, and a tenth as many passages."""
    rng = random.Random(SEED)
    found = sorted(_sentences())
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


def _sentences() -> set[str]:
    texts = [*topics.topics.values()]
    for distribution in importlib.metadata.distributions():
        metadata = distribution.read_text("METADATA")
        texts.append(metadata or "")
    library = Path(random.__file__).parent
    texts += [path.read_text(encoding="utf-8", errors="ignore") for path in sorted(library.rglob("*.py"))[:1500]]
    found = set()
    for text in texts:
        for match in SENTENCE.finditer(re.sub(r"\s+", " ", text)):
            words = match.group().split()
            if len(words) >= 3 and sum(word.isalpha() for word in words) > 0.6 * len(words):
                found.add(match.group())
    return found


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
