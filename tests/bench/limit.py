"""The ceiling: the session the server uses, fed full dense rows by as many threads, with no server round it."""

import threading
import time
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from model.artifact import Artifact
from model.packing import lay_out
from model.tokenizer import Source, Tokenizer
from service.engine.backends.select import Provider, choose_provider

SHAPES = tuple((rows, tokens) for tokens in (128, 256) for rows in (1, 2, 4))

Inputs = dict[str, NDArray[np.int64]]


class Bare:
    """The fast graph without a server."""

    def __init__(self, artifact: Artifact, provider: Provider) -> None:
        self._workers = provider.workers
        graph = artifact.manifest.graphs["fast"]
        self._vocabulary = artifact.manifest.vocab_size
        self._session = provider.open(artifact, graph)
        self._lone_session = provider.open(artifact, graph, wide=True) if provider.wide_threads > 1 else self._session
        self._reference = choose_provider("cpu", "float32").open(artifact, graph)
        self._tokenizer = Tokenizer(artifact.read("tokenizer.json"))

    def tokens_per_second(self, seconds: float) -> float:
        """The best of the shapes, each run for a share of `seconds`."""
        return max(self._rate(rows, tokens, seconds / len(SHAPES)) for rows, tokens in SHAPES)

    def median_run_ms(self, texts: list[str]) -> float:
        """The median time of one run, tokenising included, of each text alone in a row of its own length."""
        times = []
        for text in texts:
            started = time.perf_counter()
            (tokens,) = self._tokenizer.encode([Source(text)], offsets=False)
            row = lay_out([(tokens.ids, None)], len(tokens))
            self._lone_session.run(None, row.inputs)
            times.append(time.perf_counter() - started)
        return float(np.median(times)) * 1000

    def reference(self, texts: list[str]) -> NDArray[np.float32]:
        """The mean-pooled, normalised vectors of texts run alone in float32, `(N, D)`."""
        vectors = []
        for tokens in self._tokenizer.encode([Source(text) for text in texts], offsets=False):
            (hidden,) = self._reference.run(None, lay_out([(tokens.ids, None)], len(tokens)).inputs)
            vectors.append(hidden[0].mean(axis=0))
        found = np.stack(vectors)
        normalised: NDArray[np.float32] = found / np.linalg.norm(found, axis=1, keepdims=True)
        return normalised

    def _rate(self, rows: int, tokens: int, seconds: float) -> float:
        inputs = self._dense(rows, tokens)
        self._session.run(None, inputs)
        counts = [0] * self._workers
        started = time.perf_counter()

        def work(number: int) -> None:
            while time.perf_counter() - started < seconds:
                self._session.run(None, inputs)
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(self._workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) * rows * tokens / (time.perf_counter() - started)

    def _dense(self, rows: int, tokens: int) -> Inputs:
        rng = np.random.default_rng(rows * tokens)
        return {
            "ids": rng.integers(0, self._vocabulary, (rows, tokens)),
            "positions": np.tile(np.arange(tokens), (rows, 1)),
            "types": np.zeros((rows, tokens), dtype=np.int64),
            "segments": np.ones((rows, tokens), dtype=np.int64),
        }


def describe_machine(provider: Provider) -> str:
    """The processor, the versions and the precision: what a figure means nothing without."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "unknown processor")
    runtime = f"onnxruntime {onnxruntime.__version__}"
    return f"{processor}, {provider.workers} threads, {provider.name} {provider.precision}, {runtime}"
