"""The limit: the fastest correct backend on this CPU, running full dense batches without a server.

Candidates are ONNX Runtime in float32 and OpenVINO in bfloat16, each with one stream per core and with one stream over
all cores. A candidate is correct if the cosine between its vectors and float32 is at least 0.9999.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from bench.load import progress
from bench.project import Model
from service.engine.backends.openvino import HINTS, import_openvino

SHAPES = tuple((rows, tokens) for tokens in (128, 256) for rows in (1, 2, 4))
MIN_COSINE = 0.9999
REMEASURED = 3
"""How many of the best configurations each later measurement runs again."""

Inputs = dict[str, NDArray[np.int64]]
Run = Callable[[Inputs], NDArray[np.float32]]


@dataclass(frozen=True)
class Backend:
    """A way to run the graph. `runs` contains one function per thread, which may run concurrently."""

    name: str
    precision: str
    names: tuple[str, ...]
    runs: tuple[Run, ...]

    def dense(self, ids: NDArray[np.int64]) -> Inputs:
        """Return graph inputs for a dense batch of ids, (rows, tokens)."""
        return {name: _input(name, ids) for name in self.names}

    def tokens_per_second(self, rows: int, tokens: int, seconds: float, vocab_size: int) -> float:
        rng = np.random.default_rng(rows * tokens)
        inputs = self.dense(rng.integers(0, vocab_size, (rows, tokens)))
        counts = [0] * len(self.runs)
        for run in self.runs:
            run(inputs)
        started = time.perf_counter()

        def work(number: int) -> None:
            while time.perf_counter() - started < seconds:
                self.runs[number](inputs)
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(self.runs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) * rows * tokens / (time.perf_counter() - started)

    def vector(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the normalized mean of a text's last hidden states, (D,)."""
        hidden = self.runs[0](self.dense(np.array([ids], dtype=np.int64)))[0].astype(np.float64)
        mean = hidden.mean(axis=0)
        unit: NDArray[np.float64] = mean / np.linalg.norm(mean)
        return unit


@dataclass(frozen=True)
class LimitFigure:
    """Tokens per second of the fastest backend, and of ONNX Runtime in float32 in the same minute."""

    tokens_per_second: float
    float32_tokens_per_second: float
    backend: str


class Limit:
    """Backends of this machine, calibrated once."""

    def __init__(self, model: Model, cores: int, bfloat16: bool) -> None:
        self._tokenizer = model.tokenizer()
        self._vocabulary_size = model.vocab_size
        self._single = [onnxruntime_backend(model, cores, streams=1)]
        # The threads of a single stream spin while waiting. On a busy machine, independent streams are much faster.
        self._independent = onnxruntime_backend(model, cores, streams=cores) if cores > 1 else self._single[0]
        backends = list(dict.fromkeys([*self._single, self._independent]))
        self.skipped = ""
        if bfloat16:
            try:
                openvino = [openvino_backend(model, cores, streams=streams) for streams in dict.fromkeys((1, cores))]
            except Exception as error:  # noqa: BLE001 - a missing or broken package skips this candidate
                self.skipped = f"OpenVINO bfloat16: {type(error).__name__}: {error}"
                progress(f"limit: skipped: {self.skipped}")
            else:
                self._single.append(openvino[0])
                backends += openvino
        self._backends = backends
        self._best: list[tuple[Backend, int, int]] = []
        self._float32: list[tuple[Backend, int, int]] = []
        self.cosines: dict[str, float] = {}

    @property
    def backend(self) -> Backend:
        """The fastest correct backend."""
        return self._best[0][0]

    def calibrate(self, texts: Sequence[str], seconds: float) -> None:
        """Measure each backend on each shape for `seconds`, and its minimum cosine over `texts`."""
        reference = self.reference(texts)
        correct, rates = [], {}
        for backend in self._backends:
            vectors = np.stack([backend.vector(ids) for ids in self._tokenizer.ids(texts)])
            self.cosines[backend.name] = float((vectors * reference).sum(axis=1).min())
            if self.cosines[backend.name] >= MIN_COSINE:
                correct.append(backend)
            for rows, tokens in SHAPES:
                rate = backend.tokens_per_second(rows, tokens, seconds, self._vocabulary_size)
                rates[backend.name, rows, tokens] = rate
            best = max(SHAPES, key=lambda shape: rates[backend.name, *shape])
            progress(f"limit: {backend.name}: {rates[backend.name, *best]:.0f} tokens/s at {best[0]} x {best[1]}, "
                f"smallest cosine {self.cosines[backend.name]:.7f}")  # fmt: skip
        ranked = [(backend, rows, tokens) for backend in correct for rows, tokens in SHAPES]
        ranked.sort(key=lambda item: -rates[item[0].name, item[1], item[2]])
        self._best = ranked[:REMEASURED]
        self._float32 = [item for item in ranked if item[0].precision == "float32"][:1]

    def measure(self, seconds: float) -> LimitFigure:
        """Measure the best configurations again under the machine's current load."""
        configurations = list({id(item): item for item in (*self._best, *self._float32)}.values())
        duration = seconds / len(configurations)
        rates = [
            (backend.tokens_per_second(rows, tokens, duration, self._vocabulary_size), backend)
            for backend, rows, tokens in configurations
        ]
        rate, backend = max(rates, key=lambda item: item[0])
        float32 = max(rate for rate, backend in rates if backend.precision == "float32")
        return LimitFigure(rate, float32, backend.name)

    def median_run_ms(self, texts: Sequence[str]) -> float:
        """Return the median time to tokenize and encode one text on all cores, in milliseconds."""
        precision = self.backend.precision
        backend = next(backend for backend in self._single if backend.precision == precision)
        for ids in {len(ids): ids for ids in self._tokenizer.ids(texts)}.values():
            backend.vector(ids)  # warm-up, because the first run of a shape takes longer
        times = []
        for text in texts:
            started = time.perf_counter()
            backend.vector(self._tokenizer.ids([text])[0])
            times.append(time.perf_counter() - started)
        return float(np.median(times)) * 1000

    def reference(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return normalized vectors of single texts computed by ONNX Runtime in float32, (N, D)."""
        with ThreadPoolExecutor(len(self._independent.runs)) as pool:
            return np.stack(list(pool.map(self._independent.vector, self._tokenizer.ids(texts))))


def _input(name: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a graph input by name, for a dense batch with one sequence per row."""
    if "position" in name:
        return np.tile(np.arange(ids.shape[1]), (ids.shape[0], 1))
    if "type" in name:
        return np.zeros_like(ids)
    return np.ones_like(ids) if "segment" in name or "sequence" in name else ids


def onnxruntime_backend(model: Model, cores: int, streams: int) -> Backend:
    """Return ONNX Runtime in float32 with this many streams over the cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores // streams
    session = onnxruntime.InferenceSession(model.graph, options, providers=["CPUExecutionProvider"])

    def run(inputs: Inputs) -> NDArray[np.float32]:
        hidden: NDArray[np.float32] = session.run(None, inputs)[0]
        return hidden

    names = tuple(node.name for node in session.get_inputs())
    return Backend(f"ONNX Runtime float32, {_describe(streams)}", "float32", names, (run,) * streams)


def openvino_backend(model: Model, cores: int, streams: int) -> Backend:
    """Return OpenVINO in bfloat16 with this many streams over the cores."""
    core: Any = import_openvino().Core()
    settings = {"INFERENCE_PRECISION_HINT": HINTS["bfloat16"], "INFERENCE_NUM_THREADS": cores, "NUM_STREAMS": streams}
    # OpenVINO resolves external weights relative to the model path.
    compiled: Any = core.compile_model(core.read_model(model.graph), "CPU", settings)

    def make(request: Any) -> Run:
        def run(inputs: Inputs) -> NDArray[np.float32]:
            # Copy inputs: share_inputs=True corrupts the heap if several threads use it.
            hidden: NDArray[np.float32] = request.infer(inputs, share_inputs=False)[compiled.output(0)]
            return hidden

        return run

    names = tuple(port.get_any_name() for port in compiled.inputs)
    runs = tuple(make(compiled.create_infer_request()) for _ in range(streams))
    return Backend(f"OpenVINO bfloat16, {_describe(streams)}", "bfloat16", names, runs)


def _describe(streams: int) -> str:
    return "one stream over all cores" if streams == 1 else "one stream per core"
