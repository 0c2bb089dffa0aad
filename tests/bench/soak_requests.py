"""The requests of `make soak`: every combination of options, on texts of the corpus."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

from tests.bench.project import BASE64, attend_body, encode_body
from tests.bench.workloads import Corpus

SEED = 20_264
OUTPUTS = (("pooled",), ("words",), ("tokens",), ("pooled", "words", "static"))
COUNTS = (1, 1, 1, 4, 32)
KINDS = ("projection", "probs", "scores", "norm", "block_norm")
UNITS = ("word", "token")
DEPTHS: tuple[Mapping[str, object], ...] = ({"layers": [3]}, {"layers": "all", "layer_reduce": "mean"})
ATTEND_SHARE = 0.05
"""Maps cost more than vectors: this is the share that users' traffic is taken to have."""


def draw_requests(corpus: Corpus, count: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield `count` valid requests, each a path and a body.

    The one place to plug in another generator: it must yield requests that the server accepts.
    """
    rng = random.Random(SEED)
    texts = [text for text, _ in (*corpus.sentences, *corpus.passages)]
    encodings = list(itertools.product(OUTPUTS, COUNTS, ("float", "base64")))
    maps = list(itertools.product(KINDS, UNITS, DEPTHS, ({}, BASE64)))
    for _ in range(count):
        if rng.random() < ATTEND_SHARE:
            kind, unit, depth, encoding = rng.choice(maps)
            yield "/v1/attend", attend_body(rng.choice(corpus.sentences)[0], kind=kind, unit=unit, **depth, **encoding)
        else:
            outputs, size, spelled = rng.choice(encodings)
            yield "/v1/encode", encode_body(_sample(rng, texts, size), spelled, outputs)


def _sample(rng: random.Random, texts: Sequence[str], size: int) -> list[str]:
    return [rng.choice(texts) for _ in range(size)]
