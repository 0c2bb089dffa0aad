"""The CUDA backend without a server: tokens per second, single-text latency, and cosine to float32."""

import itertools
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.files import Artifact
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from service.config import Provider
from service.engine.backends.base import Backend
from service.engine.backends.select import BackendOptions, Machine, open_backend, select_backend
from service.engine.tasks import EncodeTask, TextVectors

BatchBackend = Backend[EncodeTask, TextVectors]
WARM_UP_S = 1.0
SEED = 20_264


def open_on(artifact: Artifact, provider: Provider) -> BatchBackend:
    """Open the graph in float16 on a GPU, or in float32 on the CPU."""
    options = BackendOptions(provider, "float16" if provider == "cuda" else "float32")
    return open_backend(artifact, select_backend(options, artifact.manifest.graph_precisions, Machine.detect()))


def full_texts(tokenizer: Tokenizer, vocabulary: int, size: int, count: int) -> list[EncodeTask]:
    """Return `count` random texts of exactly `size` tokens."""
    rng = np.random.default_rng(SEED)
    special = len(tokenizer.encode([TokenizerInput(token_ids=())])[0])
    ids = rng.integers(5, vocabulary, (count, size - special)).tolist()
    sources = [TokenizerInput(token_ids=tuple(row)) for row in ids]
    return [EncodeTask(tokens, "mean", False) for tokens in tokenizer.encode(sources)]


def sentence_texts(tokenizer: Tokenizer, sentences: Sequence[str], max_tokens: int) -> list[EncodeTask]:
    """Return sentences, truncated to `max_tokens`."""
    encoded = tokenizer.encode([TokenizerInput(sentence) for sentence in sentences], offsets=False)
    return [EncodeTask(tokens.truncate(max_tokens, "right"), "mean", False) for tokens in encoded]


def fill_batches(backend: BatchBackend, texts: Sequence[EncodeTask]) -> list[list[EncodeTask]]:
    """Fill batches up to the backend's limits, in text order."""
    batches: list[list[EncodeTask]] = []
    remaining = 0
    for text in texts:
        if len(text.tokens) > remaining or len(batches[-1]) == backend.max_batch_size:
            batches.append([])
            remaining = backend.max_batch_tokens
        batches[-1].append(text)
        remaining -= len(text.tokens)
    return batches


def measure_throughput(backend: BatchBackend, texts: Sequence[EncodeTask], seconds: float) -> float:
    """Return tokens per second for full batches, with as many threads as the engine has workers."""
    # The last batch is usually not full.
    repeats = math.ceil(2 * backend.max_batch_tokens / sum(len(text.tokens) for text in texts))
    batches = fill_batches(backend, list(texts) * max(1, repeats))[:-1]
    turn, lock = itertools.cycle(batches), threading.Lock()
    begin = time.perf_counter() + WARM_UP_S
    end = begin + seconds

    def work(_: int) -> int:
        tokens = 0
        while time.perf_counter() < end:
            with lock:
                batch = next(turn)
            backend.run(batch)
            if begin <= time.perf_counter() < end:
                tokens += sum(len(text.tokens) for text in batch)
        return tokens

    with ThreadPoolExecutor(backend.workers) as pool:
        return sum(pool.map(work, range(backend.workers))) / seconds


def measure_latency_ms(backend: BatchBackend, texts: Sequence[EncodeTask], count: int) -> float:
    """Return the median time of a single-text batch in milliseconds."""
    times = []
    for text in itertools.islice(itertools.cycle(texts), count):
        started = time.perf_counter()
        backend.run([text])
        times.append(time.perf_counter() - started)
    return float(np.median(times)) * 1000


def measure_accuracy(backend: BatchBackend, artifact: Artifact, texts: Sequence[EncodeTask]) -> float:
    """Return the minimum cosine to the fast graph in float32, or NaN if any value is not finite."""
    vectors, reference = _vectors(backend, texts), _vectors(open_on(artifact, "cpu"), texts)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    cosines = (vectors * reference).sum(axis=1) / lengths
    return float(cosines.min()) if np.isfinite(cosines).all() else math.nan


def _vectors(backend: BatchBackend, texts: Sequence[EncodeTask]) -> NDArray[np.float64]:
    with ThreadPoolExecutor(backend.workers) as pool:
        results: list[Any] = list(pool.map(backend.run, fill_batches(backend, texts)))
    return np.array([vectors.pooled.ravel() for batch in results for vectors in batch], dtype=np.float64)
