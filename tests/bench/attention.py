"""The attention workload A1: maps of one sentence, words, all layers, head mean; alone, and beside embedding.

Its reference is transformers in this process, eager, with `output_attentions`: what people do without a server.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from model.source import locate
from tests.bench.bars import Verdict, at_least, at_most
from tests.bench.load import Load, bodies_file, run_wrk
from tests.conftest import RunningServer

A1 = {"unit": "word", "head_reduce": "mean"}
ALONE_BAR, BESIDE_P99_BAR, BESIDE_RATE_BAR, NORM_BAR = 2.0, 1.5, 0.2, 3.0
NORM_TOKENS = 128
TEXTS = 200


@dataclass(frozen=True)
class AttentionFigures:
    """Medians. Times in ms, rates in requests a second."""

    served_ms: float
    eager_ms: float
    w1_p99_alone_ms: float
    w1_p99_beside_ms: float
    a1_rate_alone: float
    a1_rate_beside: float
    probs_ms: float
    norm_ms: float

    def verdicts(self) -> list[Verdict]:
        beside = self.w1_p99_beside_ms / self.w1_p99_alone_ms
        return [
            at_most("C7", "A1 c=1", self.served_ms / self.eager_ms, ALONE_BAR, "x transformers eager in process"),
            at_most("C7", "p99 of W1 c=16 beside A1 c=8", beside, BESIDE_P99_BAR, "x alone"),
            at_least("C7", "rate of A1 beside W1", self.a1_rate_beside / self.a1_rate_alone, BESIDE_RATE_BAR, "alone"),
            at_most("", "norm of 128 tokens", self.norm_ms / self.probs_ms, NORM_BAR, "x its probs"),
        ]

    def describe(self) -> str:
        return (
            f"A1 c=1 p50 {self.served_ms:.1f} ms, transformers eager {self.eager_ms:.1f} ms; "
            f"A1 c=8 {self.a1_rate_alone:.0f}/s, beside W1 {self.a1_rate_beside:.0f}/s; "
            f"W1 c=16 p99 {self.w1_p99_alone_ms:.0f} ms, beside A1 {self.w1_p99_beside_ms:.0f} ms"
        )


def measure_attention(
    server: RunningServer, sentences: Sequence[str], passage: str, seconds: float, rounds: int
) -> AttentionFigures:
    """Alternates what is compared, so that the machine's drift falls on both."""
    served, eager = _alone(server, sentences[:TEXTS])
    probs, norm = _kinds(server, passage)
    with (
        bodies_file([{"inputs": text} for text in sentences]) as w1,
        bodies_file([{"inputs": text, **A1} for text in sentences]) as a1,
    ):
        encode = Load(f"{server.rest}/v1/encode", 16, w1)
        attend = Load(f"{server.rest}/v1/attend", 8, a1)
        found: list[tuple[float, ...]] = []
        for _ in range(rounds):
            alone, rate = run_wrk(encode, seconds), run_wrk(attend, seconds)
            with ThreadPoolExecutor(2) as pool:
                beside, slowed = pool.map(run_wrk, (encode, attend), (seconds, seconds))
            found.append((alone.p99_ms, beside.p99_ms, rate.per_second, slowed.per_second))
    p99_alone, p99_beside, rate_alone, rate_beside = np.median(found, axis=0).tolist()
    return AttentionFigures(served, eager, p99_alone, p99_beside, rate_alone, rate_beside, probs, norm)


def _alone(server: RunningServer, texts: Sequence[str]) -> tuple[float, float]:
    """Medians in ms: served over one connection, and transformers in this process, text by text in turn."""
    directory = str(locate("default").directory)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    encoder: Any = AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    served, eager = [], []
    with httpx.Client(base_url=server.rest, timeout=60) as client, torch.inference_mode():
        client.post("/v1/attend", json={"inputs": texts[0], **A1}).raise_for_status()
        for text in texts:
            started = time.perf_counter()
            client.post("/v1/attend", json={"inputs": text, **A1}).raise_for_status()
            served.append(time.perf_counter() - started)
            started = time.perf_counter()
            encoder(**tokenizer([text], return_tensors="pt"), output_attentions=True)
            eager.append(time.perf_counter() - started)
    return float(np.median(served)) * 1000, float(np.median(eager)) * 1000


def _kinds(server: RunningServer, passage: str) -> tuple[float, float]:
    """Medians in ms of all layers' probs, and of their norms, for a text of 128 tokens."""
    times: dict[str, list[float]] = {"probs": [], "norm": []}
    # Not gzipped: that costs the same for both, and more than either.
    with httpx.Client(base_url=server.rest, timeout=60, headers={"accept-encoding": "identity"}) as client:
        (found,) = client.post("/v1/tokenize", json={"inputs": passage}).json()["results"]
        end = found["tokens"][min(NORM_TOKENS, found["token_count"]) - 2]["end"]
        for _ in range(30):
            for kind, spent in times.items():
                body = {"inputs": passage[:end], "kind": kind, "encoding": "base64"}
                started = time.perf_counter()
                client.post("/v1/attend", json=body).raise_for_status()
                spent.append(time.perf_counter() - started)
    return float(np.median(times["probs"])) * 1000, float(np.median(times["norm"])) * 1000
