"""Cosine between the server's vectors and float32 (C11), and the speed and accuracy of the int8 variant (C12)."""

import random
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray

from bench.closed_loop import BY_NAME, System, send
from bench.load import bodies_file, progress
from bench.project import encode_body, export_int8
from bench.targets import Verdict, judge
from tests.conftest import serving

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


W32 = BY_NAME["W32"]


@dataclass(frozen=True)
class Int8Figures:
    """`digest` identifies the exported artifact and must be the same on all machines."""

    export_s: float
    digest: str
    rate: float
    float32_rate: float
    min_cosine: float
    min_cosine_alone: float
    texts: int

    def verdicts(self) -> list[Verdict]:
        return [
            judge("int8_rate", self.rate / self.float32_rate),
            judge("int8", self.min_cosine, f"{self.texts} texts"),
            judge("int8_alone", self.min_cosine_alone, f"{self.texts} texts"),
            judge("int8_export", self.export_s),
        ]

    def describe(self) -> str:
        return (
            f"int8: exported in {self.export_s:.0f} s, digest {self.digest[:16]}; W32 {self.rate:.0f} texts/s, "
            f"float32 {self.float32_rate:.0f}; smallest cosine {self.min_cosine:.5f}"
        )


def measure_int8(texts: Sequence[str], reference: Vectors, seconds: float, rounds: int) -> Int8Figures:
    """Export, serve int8 and float32, alternate W32 between them, and compare vectors with `reference`, (N, D)."""
    progress("exporting with int8")
    with tempfile.TemporaryDirectory(prefix="bench-int8-") as scratch:
        directory = Path(scratch) / "artifact"
        export_s = export_int8(directory)
        digest = (directory / "manifest.sha256").read_text().strip()
        groups = [texts[at : at + W32.texts] for at in range(0, len(texts) - W32.texts + 1, W32.texts)]
        rates: list[list[float]] = [[], []]
        with (
            serving(model_dir=directory, precision="int8") as int8,
            serving(model_dir=directory, precision="float32") as float32,
            bodies_file([encode_body(group) for group in groups]) as bodies,
        ):
            for _ in range(rounds):
                for place, server in enumerate((int8, float32)):
                    rates[place].append(send(W32, System.attendant(server), bodies, seconds).per_second * W32.texts)
            packed = encode(int8.rest, texts)
            alone = encode(int8.rest, texts, group=1, clients=1)
    rate, float32_rate = np.median(rates, axis=1).tolist()
    return Int8Figures(
        export_s, digest, rate, float32_rate, min_cosine(packed, reference), min_cosine(alone, packed), len(texts)
    )
