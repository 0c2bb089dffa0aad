"""The GPU in the engine, without a server: tokens a second, the time of one text, and how near float32 it comes."""

import asyncio
import itertools
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from service.engine.lane import Lane

from model.artifact import Artifact
from model.tokenizer import Source, Tokenizer
from service.engine.backends.cuda import FlatRuntime
from service.engine.backends.onnxruntime_cpu import Runtime
from service.engine.backends.select import choose_provider
from service.engine.schema.encode import EncodeTask, TextVectors
from service.metrics import Metrics

ROWS_IN_FLIGHT = 4
WARM_UP_S = 1.0
NO_LIMIT = 10**9
SEED = 20_264


def full_texts(tokenizer: Tokenizer, vocabulary: int, size: int, count: int) -> list[EncodeTask]:
    """`count` random texts of exactly `size` tokens."""
    rng = np.random.default_rng(SEED)
    frame = len(tokenizer.encode([Source(token_ids=())])[0])
    ids = rng.integers(5, vocabulary, (count, size - frame)).tolist()
    return [
        EncodeTask(tokens, "mean", False) for tokens in tokenizer.encode([Source(token_ids=tuple(one)) for one in ids])
    ]


def sentence_texts(tokenizer: Tokenizer, sentences: Sequence[str], max_tokens: int) -> list[EncodeTask]:
    """Sentences as they are."""
    found = tokenizer.encode([Source(sentence) for sentence in sentences], offsets=False)
    return [EncodeTask(tokens.truncate(max_tokens, "right"), "mean", False) for tokens in found]


def measure_throughput(runtime: FlatRuntime, texts: Sequence[EncodeTask], seconds: float) -> float:
    """Tokens a second through a lane that always has rows waiting; the texts take turns."""
    turn = itertools.cycle(texts)

    def next_job() -> list[EncodeTask]:
        job, room = [], runtime.row_lengths.shared
        while (text := next(turn)) and len(text.tokens) <= room:
            job.append(text)
            room -= len(text.tokens)
        return job

    async def run() -> float:
        lane = _lane(runtime)
        done, counting_from, until = 0, time.perf_counter() + WARM_UP_S, time.perf_counter() + WARM_UP_S + seconds

        async def caller() -> None:
            nonlocal done
            while time.perf_counter() < until:
                job = next_job()
                await lane.submit(job, math.inf)
                if counting_from <= time.perf_counter() < until:
                    done += sum(len(text.tokens) for text in job)

        await asyncio.gather(*(caller() for _ in range(ROWS_IN_FLIGHT)))
        await lane.batcher.close()
        return done / seconds

    return asyncio.run(run())


def measure_latency_ms(runtime: FlatRuntime, texts: Sequence[EncodeTask], count: int) -> float:
    """The median time of one text alone, from the event loop and back to it."""

    async def run() -> float:
        lane, times = _lane(runtime), []
        for text in itertools.islice(itertools.cycle(texts), count):
            started = time.perf_counter()
            await lane.submit([text], math.inf)
            times.append(time.perf_counter() - started)
        await lane.batcher.close()
        return float(np.median(times)) * 1000

    return asyncio.run(run())


def measure_accuracy(runtime: FlatRuntime, artifact: Artifact, texts: Sequence[EncodeTask]) -> float:
    """The smallest cosine of a text's vector to that of the fast graph in float32; NaN where one is not finite."""
    exact = Runtime(artifact, choose_provider("cpu", "float32"))

    def in_rows(run: FlatRuntime | Runtime) -> list[list[EncodeTask]]:
        waiting, rows = list(texts), []
        while waiting:
            chosen = set(run.choose([len(text.tokens) for text in waiting[: run.provider.window]], 1))
            rows.append([text for at, text in enumerate(waiting) if at in chosen])
            waiting = [text for at, text in enumerate(waiting) if at not in chosen]
        return rows

    def by_text(rows: list[list[EncodeTask]], found: Sequence[list[TextVectors]]) -> dict[int, NDArray[np.float64]]:
        pairs = itertools.chain.from_iterable(
            zip(row, vectors, strict=True) for row, vectors in zip(rows, found, strict=True)
        )
        return {id(text): np.asarray(one.pooled, dtype=np.float64).ravel() for text, one in pairs}

    gpu_rows, cpu_rows = in_rows(runtime), in_rows(exact)
    ours = by_text(gpu_rows, [runtime.run(row) for row in gpu_rows])
    with ThreadPoolExecutor(exact.provider.workers) as pool:
        theirs = by_text(cpu_rows, list(pool.map(exact.run, cpu_rows)))
    cosines = [
        float(ours[key] @ theirs[key] / (np.linalg.norm(ours[key]) * np.linalg.norm(theirs[key]))) for key in ours
    ]
    return min(cosines) if np.isfinite(cosines).all() else math.nan


def _lane(runtime: FlatRuntime) -> Lane[EncodeTask, TextVectors]:
    return Lane("fast", runtime, NO_LIMIT, Metrics(CollectorRegistry()))
