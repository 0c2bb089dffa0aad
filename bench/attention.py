"""Attention workload A1 (C7): word maps of one sentence, all layers, mean over heads, alone and alongside embeddings.

The reference is transformers in this process, in eager mode with `output_attentions`.
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

from bench.load import GZIP, Load, bodies_file, run_wrk
from bench.project import BASE64, attend_body, checkpoint_directory, encode_body
from bench.targets import Verdict, judge
from tests.conftest import RunningServer

A1 = {"unit": "word", "head_reduce": "mean"}
NORM_TOKENS = 128
TEXTS = 200


@dataclass(frozen=True)
class AttentionFigures:
    """Medians; times are in milliseconds, rates in requests per second."""

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
            judge("a1_single", self.served_ms / self.eager_ms),
            judge("a1_tail", beside),
            judge("a1_rate", self.a1_rate_beside / self.a1_rate_alone),
            judge("norm", self.norm_ms / self.probs_ms),
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
    """Alternate the compared loads, so that machine drift affects both equally."""
    served, eager = _alone(server, sentences[:TEXTS])
    probs, norm = _kinds(server, passage)
    with (
        bodies_file([encode_body([text]) for text in sentences]) as w1,
        bodies_file([attend_body(text, **A1) for text in sentences]) as a1,
    ):
        encode = Load(f"{server.rest}/v1/encode", 16, w1, GZIP)
        attend = Load(f"{server.rest}/v1/attend", 8, a1, GZIP)
        rounds_of: list[tuple[float, ...]] = []
        for _ in range(rounds):
            alone, rate = run_wrk(encode, seconds), run_wrk(attend, seconds)
            with ThreadPoolExecutor(2) as pool:
                beside, slowed = pool.map(run_wrk, (encode, attend), (seconds, seconds))
            rounds_of.append((alone.p99_ms, beside.p99_ms, rate.per_second, slowed.per_second))
    p99_alone, p99_beside, rate_alone, rate_beside = np.median(rounds_of, axis=0).tolist()
    return AttentionFigures(served, eager, p99_alone, p99_beside, rate_alone, rate_beside, probs, norm)


def _alone(server: RunningServer, texts: Sequence[str]) -> tuple[float, float]:
    """Return medians in ms for one connection to the server and for transformers in this process, alternating per
    text.
    """
    directory = str(checkpoint_directory())
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    encoder: Any = AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    served, eager = [], []
    with httpx.Client(base_url=server.rest, timeout=60) as client, torch.inference_mode():
        client.post("/v1/attend", json=attend_body(texts[0], **A1)).raise_for_status()
        for text in texts:
            started = time.perf_counter()
            client.post("/v1/attend", json=attend_body(text, **A1)).raise_for_status()
            served.append(time.perf_counter() - started)
            started = time.perf_counter()
            encoder(**tokenizer([text], return_tensors="pt"), output_attentions=True)
            eager.append(time.perf_counter() - started)
    return float(np.median(served)) * 1000, float(np.median(eager)) * 1000


def _kinds(server: RunningServer, passage: str) -> tuple[float, float]:
    """Return the median times in ms of probs and of norm, for all layers of a text of 128 tokens."""
    times: dict[str, list[float]] = {"probs": [], "norm": []}
    # No gzip, which would take longer than both.
    with httpx.Client(base_url=server.rest, timeout=60, headers={"accept-encoding": "identity"}) as client:
        (result,) = client.post("/v1/tokenize", json={"inputs": passage}).json()["results"]
        end = result["tokens"][min(NORM_TOKENS, result["token_count"]) - 2]["end"]
        for _ in range(30):
            for kind, spent in times.items():
                body = attend_body(passage[:end], kind=kind, **BASE64)
                started = time.perf_counter()
                client.post("/v1/attend", json=body).raise_for_status()
                spent.append(time.perf_counter() - started)
    return float(np.median(times["probs"])) * 1000, float(np.median(times["norm"])) * 1000
