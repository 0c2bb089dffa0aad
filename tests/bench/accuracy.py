"""C11: what the server answers beside float32 alone, for each text alone, packed with mates, and in another order."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
from numpy.typing import NDArray

from tests.bench.bars import Verdict, at_most
from tests.bench.ceiling import Bare

GROUP = 32
CALLERS = 4
SEED = 20_263
DISTANCE = {"bfloat16": 1e-4, "float16": 1e-4, "float32": 1e-6}
"""What 1 - cosine may be."""


def measure_accuracy(url: str, texts: Sequence[str], bare: Bare) -> dict[str, float]:
    """The largest 1 - cosine over `texts`, by the way they were sent."""
    reference = bare.reference(list(texts)).astype(np.float64)
    order = list(range(len(texts)))
    other = order.copy()
    random.Random(SEED).shuffle(other)
    return {
        "alone": _distance(_encode(url, texts, order, 1, 1), reference),
        "packed with mates": _distance(_encode(url, texts, order, GROUP, CALLERS), reference),
        "in another order": _distance(_encode(url, texts, other, GROUP, CALLERS), reference),
    }


def judge(found: dict[str, float], precision: str, count: int) -> list[Verdict]:
    return [
        at_most("C11", f"1 - cosine, {precision}, {count} texts {how}", distance, DISTANCE[precision])
        for how, distance in found.items()
    ]


def _encode(url: str, texts: Sequence[str], order: Sequence[int], group: int, callers: int) -> NDArray[np.float64]:
    """The vectors of `texts`, sent in `order`, so many a request and so many requests at a time."""
    groups = [order[at : at + group] for at in range(0, len(order), group)]
    vectors: list[list[float]] = [[] for _ in texts]
    with httpx.Client(timeout=60) as client, ThreadPoolExecutor(callers) as pool:

        def ask(numbers: Sequence[int]) -> None:
            body = {"inputs": [texts[number] for number in numbers]}
            results = client.post(url, json=body).raise_for_status().json()["results"]
            for number, result in zip(numbers, results, strict=True):
                vectors[number] = result["pooled"]

        list(pool.map(ask, groups))
    return np.array(vectors)


def _distance(found: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(reference, axis=1)
    return float(1 - ((found * reference).sum(axis=1) / lengths).min())
