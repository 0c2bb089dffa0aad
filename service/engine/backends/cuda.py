"""ONNX Runtime on a CUDA GPU: float16 varlen batches, pooled in the graph. Small batches replay CUDA graphs.

Models with windows have a second graph, without them, for batches of texts that every window covers.

Worker threads prepare batches; one thread runs them all, because a CUDA graph belongs to the thread that captured it.
"""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from model.artifact.files import Artifact
from model.artifact.manifest import CombinedPooling
from model.artifact.names import CUDA, CUDA_SHORT, PADDED_ROWS
from model.artifact.packing import BatchFill, PaddedFill, TokenLimit
from service.config import ConfigError
from service.engine.backends.base import BackendChoice, segment_types
from service.engine.backends.cuda_memory import GpuMemory
from service.engine.backends.cuda_session import is_out_of_memory, open_session
from service.engine.backends.heads import Heads
from service.engine.backends.sessions import add_weights, session_options
from service.engine.backends.varlen import PADDED_TOKENS, Shape, ShapeBuckets, VarlenBatch, pack_varlen
from service.engine.tasks import EncodeTask, TextVectors
from service.process import clear_frames

HIDDEN, POOLED = "last_hidden_state", "sentence_embedding"
DTYPES: dict[str, type] = {"tensor(float16)": np.float16, "tensor(float)": np.float32}
CAPTURED_TOKENS = 4096
"""Batches up to this length run as a captured CUDA graph; in longer ones, kernel launch time is negligible."""

ITEM_BYTES = np.dtype(np.int32).itemsize

log = logging.getLogger("attendant.gpu")

Floats = NDArray[Any]
Device = Literal["cuda", "cpu"]


class CudaBackend:
    """The varlen graphs on one device.

    `device="cpu"` with CPU sessions, by the name of their graph, is for tests of everything but the GPU.
    """

    workers = 2  # one worker prepares a batch while the other's batch runs

    def __init__(
        self,
        artifact: Artifact,
        choice: BackendChoice,
        sessions: Mapping[str, onnxruntime.InferenceSession] | None = None,
        device: Device = "cuda",
    ) -> None:
        manifest = artifact.manifest
        graph = manifest.graphs[choice.graph]
        short = manifest.graphs.get(CUDA_SHORT) if choice.graph == CUDA else None
        self.choice = choice
        self._padded = any(value.name == "token_offset" and value.shape[0] == PADDED_ROWS for value in graph.inputs)
        limit = choice.max_batch_tokens
        self.max_batch_tokens = min(limit, PADDED_TOKENS) if self._padded else limit
        self._short = (short and short.longest) or 0
        self.shapes = ShapeBuckets.up_to(
            manifest.longest_input_tokens, self.max_batch_tokens, padded=self._padded, short=self._short
        )
        self.max_batch_size = self.shapes.max_sequences
        self.length_buckets = self.shapes.lengths
        self._artifact = artifact
        self._segment_types = manifest.architecture.type_vocab_size
        self._heads = Heads(artifact)
        self._token_seconds = 1e-6  # replaced by the measured value after warm-up
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="attendant-gpu")
        pools = any(output.name == POOLED for output in graph.outputs)
        self._pooling: CombinedPooling | None = manifest.embedding.pooling if pools else None
        self.memory = self._take_memory(sum(manifest.files[name].size for name in graph.weights))
        with self._within_memory(by_batches=False):
            self._device = self._use(sessions or self._open(), device)

    def _take_memory(self, weights: int) -> GpuMemory:
        """Take the memory of all sessions, which do not share their weights, or if it is short, of the first one."""
        gpu, buffers = self.choice.gpu, self.shapes.offset_bytes
        if self._short:
            with contextlib.suppress(ConfigError):
                return GpuMemory(gpu, 2 * weights + buffers)
            log.warning("graph of short texts unused: not enough GPU memory max_tokens=%d", self._short)
            self._short = 0
        return GpuMemory(gpu, weights + buffers)

    @property
    def _graphs(self) -> tuple[str, ...]:
        return (self.choice.graph, CUDA_SHORT) if self._short else (self.choice.graph,)

    def _open(self) -> dict[str, onnxruntime.InferenceSession]:
        sessions = {}
        for name in self._graphs:
            options = session_options(1)
            add_weights(options, self._artifact, name)
            graph = self._artifact.read(self._artifact.manifest.graphs[name].file)
            sessions[name] = open_session(graph, options, self.memory.gpu)
        return sessions

    def _use(self, sessions: Mapping[str, onnxruntime.InferenceSession], device: Device) -> "_Device":
        width = self._artifact.manifest.architecture.hidden_size
        ordered = [sessions[name] for name in self._graphs]
        return _Device(ordered, self._short, device, self.choice.gpu.device, width, self.shapes)

    @property
    def gpu_memory_bytes(self) -> int:
        return self.memory.bytes

    def reopen(self) -> None:
        """Open another session in the same process. Fails if the CUDA context itself is broken."""
        device = self._use(self._open(), "cuda")
        self._device = self._thread.submit(lambda: device).result()

    def full_batch_fill(self, max_seconds: float) -> BatchFill:
        limit = int(min(self.max_batch_tokens, max_seconds / self._token_seconds))
        return PaddedFill(limit) if self._padded else TokenLimit(limit)

    def partial_fill(self, tokens: int) -> BatchFill:
        return PaddedFill.partial(tokens, self.max_batch_tokens) if self._padded else TokenLimit(tokens)

    def seconds(self, size: int) -> float:
        return size * self._token_seconds

    def fit(self, sizes: Sequence[int]) -> Shape:
        return self.shapes.fit(sizes)

    @contextlib.contextmanager
    def _within_memory(self, *, by_batches: bool) -> Iterator[None]:
        """Raise `ConfigError` if the block exceeds the memory of the GPU. `by_batches`: whether it runs batches."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            clear_frames(error)
            self.__dict__.pop("_device", None)  # the session
            self.memory.release()
            raise self.memory.exceeded(by_batches=by_batches) from None

    def warm_up(self) -> None:
        """Run every shape, so that no request has to capture one, and measure the largest."""
        with self._within_memory(by_batches=True):
            for shape in self.shapes.shapes:
                self._infer(pack_varlen([([0], None)], shape), hidden=False)
        self.memory.measure()
        started = time.perf_counter()
        self._infer(pack_varlen([([0], None)], self.shapes.shapes[-1]), hidden=False)
        self._token_seconds = (time.perf_counter() - started) / self.shapes.shapes[-1].tokens

    def probe(self) -> None:
        self._infer(pack_varlen([([0], None)], self.shapes.shapes[0]), hidden=False)

    def run(self, tasks: Sequence[EncodeTask], fitted: Shape | None = None) -> list[TextVectors]:
        shape = fitted or self.fit([len(task.tokens) for task in tasks])
        sequences = [(task.tokens.input_ids, segment_types(task.tokens, self._segment_types)) for task in tasks]
        batch = pack_varlen(sequences, shape, [task.tokens.unattended for task in tasks])
        modes: set[CombinedPooling] = {task.pooling for task in tasks if task.pooling is not None}
        skips = any(task.pool_from for task in tasks)
        in_graph: set[CombinedPooling] = set() if self._pooling is None or skips else {self._pooling}
        needs_hidden = not modes <= in_graph or any(task.hidden or task.heads for task in tasks)
        pooled, hidden = self._infer(batch, hidden=needs_hidden)
        hidden = hidden.astype(np.float32, copy=False)
        return self._heads.finish(tasks, hidden, batch.starts, batch.sizes, dict.fromkeys(modes & in_graph, pooled))

    def _infer(self, batch: VarlenBatch, *, hidden: bool) -> tuple[Floats, Floats]:
        """Return pooled (N, D), empty if the graph does not pool, and hidden (T, D), empty if not requested."""
        return self._thread.submit(self._device.run, batch, hidden).result()


class _Device:
    """The sessions and their device memory, used by one thread: CUDA graphs belong to the thread that captured them.

    The last session runs shapes whose sequences have at most `short` tokens, the first one all others.
    """

    def __init__(
        self,
        sessions: Sequence[onnxruntime.InferenceSession],
        short: int,
        device: Device,
        number: int,
        width: int,
        shapes: ShapeBuckets,
    ) -> None:
        self._sessions = sessions
        self._short = short
        self._offsets = shapes.offset_bytes // ITEM_BYTES
        self._device = device
        self._number = number
        self._width = width
        self._outputs = {output.name: DTYPES[output.type] for output in sessions[0].get_outputs()}
        self._bound: dict[Shape, _Bound] = {}
        self._memory: dict[tuple[str, tuple[int, ...]], onnxruntime.OrtValue] = {}

    def run(self, batch: VarlenBatch, hidden: bool) -> tuple[Floats, Floats]:
        bound = self._bound.get(batch.shape) or self._bind(batch.shape)
        bound.values.update_inplace(batch.values)  # one copy to the device, not one per input
        bound.session.run_with_iobinding(bound.binding, bound.options)
        nothing = np.zeros((0, self._width), dtype=np.float32)
        return (
            self._read(bound.outputs[POOLED], len(batch.sizes)) if POOLED in bound.outputs else nothing,
            self._read(bound.outputs[HIDDEN], batch.tokens) if hidden else nothing,
        )

    def _read(self, value: onnxruntime.OrtValue, count: int) -> Floats:
        """Return a copy of the first rows: `numpy` copies them from a GPU, but returns a view on a CPU."""
        rows: Floats = value.numpy()[:count]
        return rows if self._device == "cuda" else rows.copy()

    def _bind(self, shape: Shape) -> "_Bound":
        """Bind inputs and outputs at fixed addresses, as a captured graph requires."""
        session = self._sessions[-1 if shape.longest <= self._short else 0]
        binding = session.io_binding()
        rows = {HIDDEN: shape.tokens, POOLED: shape.slots}
        outputs = {name: self._place(name, (rows[name], self._width), dtype) for name, dtype in self._outputs.items()}
        values = self._place("inputs", (shape.input_size,), np.int32)

        def bind_input(name: str, size: tuple[int, ...], address: int) -> None:
            binding.bind_input(name, self._device, self._number, np.int32, size, address)

        for name, (start, end) in shape.input_ranges.items():
            bind_input(name, (end - start,), values.data_ptr() + ITEM_BYTES * start)
        # Only the shape matters, so all batch shapes can share one buffer: 67 MB for texts of 8,192 tokens.
        offsets = self._place("token_offset", (self._offsets,), np.int32)
        bind_input("token_offset", (shape.slots, shape.longest), offsets.data_ptr())
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        options = onnxruntime.RunOptions()
        if self._device == "cuda":
            number = len(self._bound) + 1 if shape.tokens <= CAPTURED_TOKENS else -1
            options.add_run_config_entry("gpu_graph_id", str(number))
        self._bound[shape] = _Bound(session, binding, options, values, outputs)
        return self._bound[shape]

    def _place(self, name: str, size: tuple[int, ...], dtype: type) -> onnxruntime.OrtValue:
        """Return device memory. Shapes share tensors of the same size, because only one shape runs at a time."""
        if (name, size) not in self._memory:
            zeros: Floats = np.zeros(size, dtype=dtype)
            value = onnxruntime.OrtValue.ortvalue_from_numpy(zeros, self._device, self._number)
            self._memory[name, size] = value
        return self._memory[name, size]


@dataclass(frozen=True)
class _Bound:
    """Everything a shape needs to run repeatedly."""

    session: onnxruntime.InferenceSession
    binding: Any
    options: onnxruntime.RunOptions
    values: onnxruntime.OrtValue
    outputs: dict[str, onnxruntime.OrtValue]
