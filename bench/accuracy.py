"""C11: cosine between the server's vectors and float32, for single texts, packed batches and another order."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
from numpy.typing import NDArray

from bench.project import encode_body
from bench.targets import Verdict, judge

GROUP, CLIENTS = 32, 4
SEED = 20_263

Vectors = NDArray[np.float64]


def measure_accuracy(rest: str, texts: Sequence[str], reference: Vectors) -> dict[str, float]:
    """Return the minimum cosine between `texts` and `reference`, (N, D), for each way of sending the texts."""
    shuffled = list(range(len(texts)))
    random.Random(SEED).shuffle(shuffled)
    return {
        "alone": min_cosine(encode(rest, texts, group=1, clients=1), reference),
        "packed": min_cosine(encode(rest, texts), reference),
        "in another order": min_cosine(encode(rest, texts, order=shuffled), reference),
    }


def judge_accuracy(cosines: dict[str, float], precision: str, count: int) -> list[Verdict]:
    return [judge(precision, cosine, f"{count} texts {how}") for how, cosine in cosines.items()]


def encode(
    rest: str, texts: Sequence[str], order: Sequence[int] | None = None, group: int = GROUP, clients: int = CLIENTS
) -> Vectors:
    """Return the vectors of `texts`, sent in `order` by concurrent clients, `group` texts per request."""
    order = range(len(texts)) if order is None else order
    groups = [order[at : at + group] for at in range(0, len(order), group)]
    vectors: list[list[float]] = [[] for _ in texts]
    with httpx.Client(timeout=60) as client, ThreadPoolExecutor(clients) as pool:

        def send(numbers: Sequence[int]) -> None:
            body = encode_body([texts[number] for number in numbers])
            results = client.post(f"{rest}/v1/encode", json=body).raise_for_status().json()["results"]
            for number, result in zip(numbers, results, strict=True):
                vectors[number] = result["pooled"]

        list(pool.map(send, groups))
    return np.array(vectors)


def min_cosine(vectors: Vectors, reference: Vectors) -> float:
    """Return the minimum cosine between rows, or NaN if the shapes differ or a value is NaN."""
    if vectors.shape != reference.shape:
        return float("nan")
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    return float(((vectors * reference).sum(axis=1) / lengths).min())
