"""ONNX Runtime on a CUDA GPU: float16 varlen batches, pooled in the graph. Small batches replay CUDA graphs.

Models with windows have a second graph, without them, for batches of texts that every window covers. Sparse heads have
a graph that projects the hidden states of a batch onto the vocabulary before they leave the GPU.

Worker threads prepare batches; one thread runs them all, because a CUDA graph belongs to the thread that captured it.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import onnxruntime
from attendant_client.types import required
from numpy.typing import NDArray

from model.artifact.files import Artifact
from model.artifact.manifest import CombinedPooling
from model.artifact.names import CUDA, CUDA_SHORT, CUDA_SPARSE, PADDED_ROWS
from model.artifact.packing import BatchFill, PaddedFill, TokenLimit
from service.engine.backends.base import BackendChoice, Gpu, sequences_of
from service.engine.backends.cuda_memory import GpuMemory
from service.engine.backends.cuda_session import is_out_of_memory, open_session
from service.engine.backends.heads import Heads
from service.engine.backends.sessions import add_weights, session_options
from service.engine.backends.varlen import (
    PADDED_TOKENS,
    Ints,
    Shape,
    ShapeBuckets,
    VarlenBatch,
    pack_varlen,
    split_segments,
)
from service.engine.tasks import (
    EncodeTask,
    HeadName,
    SparseEntries,
    TextVectors,
    heads_of,
    hidden_of,
    pool_from_of,
    pooling_of,
    tokens_of,
    unattended_of,
)
from service.process import clear_frames

HIDDEN, POOLED = "last_hidden_state", "sentence_embedding"
DTYPES: dict[str, type] = {"tensor(float16)": np.float16, "tensor(float)": np.float32}
FEW_SEGMENTS, MAX_SEGMENTS = 8, 512
"""Batch sizes of the sparse graph besides 1, in segments. The larger one is limited by `LOGIT_BYTES`."""
CAPTURED_TOKENS = 4096
"""Batches up to this length run as a captured CUDA graph; in longer ones, kernel launch time is negligible."""

ITEM_BYTES = np.dtype(np.int32).itemsize
LOGIT_BYTES = 2**27
"""Maximum size of the float16 logits of a run of the sparse graph, in bytes. Their halves take as much again."""

log = logging.getLogger("attendant.gpu")

Floats = NDArray[Any]
Device = Literal["cuda", "cpu"]
Weigh = Callable[[onnxruntime.OrtValue], list[SparseEntries]]


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
        self._short = 0 if short is None or short.longest is None else short.longest
        self.shapes = ShapeBuckets.up_to(
            manifest.longest_input_tokens, self.max_batch_tokens, padded=self._padded, short=self._short
        )
        self.max_batch_size = self.shapes.max_sequences
        self.length_buckets = self.shapes.lengths
        self._artifact = artifact
        self._segment_types = manifest.architecture.type_vocab_size
        self._heads = Heads(artifact)
        self._token_seconds = 1e-6  # until warm-up measures it
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="attendant-gpu")
        pools = any(output.name == POOLED for output in graph.outputs)
        self._pooling: CombinedPooling | None = manifest.embedding.pooling if pools else None
        self._sessions, self._device_kind = sessions, device
        self._weights = sum(manifest.files[name].size for name in graph.weights)
        self.memory = GpuMemory(choice.gpu, self._weights + self.shapes.offset_bytes)
        self._gpus: dict[str, Gpu] = {}
        """The memory limits of the optional graphs in use, by name."""
        self._tensors: dict[tuple[str, tuple[int, ...]], onnxruntime.OrtValue] = {}
        with self._within_memory(by_batches=False):
            self._device = self._make_device(choice.graph, self.memory.gpu)
        self._short_device: _Device | None = None
        self._sparse_device: _SparseDevice | None = None

    def _open(self, name: str, gpu: Gpu) -> onnxruntime.InferenceSession:
        if self._sessions is not None:
            return self._sessions[name]
        options = session_options(1)
        add_weights(options, self._artifact, name)
        return open_session(self._artifact.read(self._artifact.manifest.graphs[name].file), options, gpu)

    def _make_device(self, name: str, gpu: Gpu) -> "_Device":
        width = self._artifact.manifest.architecture.hidden_size
        number = self.choice.gpu.device
        return _Device(self._open(name, gpu), self._device_kind, number, width, self.shapes, self._tensors)

    def _open_optional(self, name: str, gpu: Gpu) -> None:
        if name == CUDA_SHORT:
            self._short_device = self._make_device(name, gpu)
        else:
            self._sparse_device = _SparseDevice(self._open(name, gpu), self._device_kind, self.choice.gpu.device)

    @property
    def gpu_memory_bytes(self) -> int:
        return self.memory.bytes

    def reopen(self) -> None:
        """Open other sessions in the same process. Fails if the CUDA context itself is broken."""
        self._short_device = self._sparse_device = None  # to have room for the first session
        self._tensors = {}
        device = self._make_device(self.choice.graph, self.memory.gpu)
        self._device = self._thread.submit(lambda: device).result()
        for name, gpu in [*self._gpus.items()]:
            with self._optional(name):
                self._open_optional(name, gpu)

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
            self._short_device = self._sparse_device = None
            self.memory.release()
            raise self.memory.exceeded(by_batches=by_batches) from None

    def warm_up(self) -> None:
        """Run every shape, so that no request has to capture one, and measure the largest."""
        with self._within_memory(by_batches=True):
            self._run_shapes(shape for shape in self.shapes.shapes if shape.longest > self._short)
        self.memory.measure()
        if self._short:
            shapes = [shape for shape in self.shapes.shapes if shape.longest <= self._short]
            self._add(CUDA_SHORT, self._weights, lambda: self._run_shapes(shapes))  # sessions do not share weights
            if self._short_device is None:
                with self._within_memory(by_batches=True):
                    self._run_shapes(shapes)
        if CUDA_SPARSE in self._artifact.manifest.graphs:
            self._add(CUDA_SPARSE, self._sparse_bytes(), self._run_sparse)
        started = time.perf_counter()
        self._infer(pack_varlen([([0], None)], self.shapes.shapes[-1]), hidden=False)
        self._token_seconds = (time.perf_counter() - started) / self.shapes.shapes[-1].tokens

    def _run_shapes(self, shapes: Iterable[Shape]) -> None:
        for shape in shapes:
            self._infer(pack_varlen([([0], None)], shape), hidden=False)

    def _run_sparse(self) -> None:
        batch = pack_varlen([([0], None)], self.shapes.shapes[0])
        self._infer(batch, hidden=False, weigh=required(self._sparse_device).warm_up)

    def _sparse_bytes(self) -> int:
        """Return the size of the sparse graph's table and logits."""
        sparse = required(self._artifact.manifest.sparse)
        return 2 * math.prod(required(sparse.decoder).shape) + 2 * LOGIT_BYTES

    def _add(self, name: str, size: int, run: Callable[[], None]) -> None:
        """Open an optional graph with the memory that is left, if that is enough, and run it for the first time."""
        gpu = self.memory.extend(size)
        if gpu is None:
            self._leave_out(name)
            return
        with self._optional(name, size):
            self._gpus[name] = gpu
            self._open_optional(name, gpu)
            run()
            self.memory.measure()

    @contextlib.contextmanager
    def _optional(self, name: str, size: int = 0) -> Iterator[None]:
        """Leave out a graph, for which `size` bytes have been reserved, if the block exceeds the memory of the GPU."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            clear_frames(error)
            self.memory.bytes -= size
            self._leave_out(name)

    def _leave_out(self, name: str) -> None:
        """Run all batches in the first graph, or the sparse head on the CPU."""
        if name == CUDA_SHORT:
            self._short_device = None
        else:
            self._sparse_device = None
        self._gpus.pop(name, None)
        log.warning("graph unused: not enough GPU memory graph=%s", name)

    def each_graph(self) -> Iterator[None]:
        """Yield once per graph, which meanwhile runs all batches that it can."""
        yield
        short, self._short_device = self._short_device, None
        if short is not None:
            try:
                yield
            finally:
                self._short_device = short

    def probe(self) -> None:
        first = self.shapes.shapes[0]
        long = next((shape for shape in self.shapes.shapes if shape.longest > self._short), first)
        self._run_shapes({first, long})  # in each session

    def run(self, tasks: Sequence[EncodeTask], fitted: Shape | None = None) -> Sequence[TextVectors]:
        inputs = [*map(tokens_of, tasks)]
        shape = fitted or self.fit([*map(len, inputs)])
        batch = pack_varlen(sequences_of(inputs, self._segment_types), shape, [*map(unattended_of, inputs)])
        modes: set[CombinedPooling] = {*map(pooling_of, tasks)} - {None}
        skips = any(map(pool_from_of, tasks))
        in_graph: set[CombinedPooling] = set() if self._pooling is None or skips else {self._pooling}
        heads: set[HeadName] = {*chain.from_iterable(map(heads_of, tasks))}
        weigh = None
        if self._sparse_device is not None and "sparse" in heads:
            heads.discard("sparse")
            weigh = self._weigh(tasks, batch, self._sparse_device)
        needs_hidden = not modes <= in_graph or any(map(hidden_of, tasks)) or bool(heads)
        pooled, hidden, sparse = self._infer(batch, needs_hidden, weigh)
        hidden = hidden.astype(np.float32, copy=False)
        vectors = dict.fromkeys(modes & in_graph, pooled)
        return self._heads.finish(tasks, hidden, batch.starts, batch.sizes, vectors, sparse)

    def _weigh(self, tasks: Sequence[EncodeTask], batch: VarlenBatch, device: "_SparseDevice") -> Weigh:
        """Return a function from the hidden states on the device to the sparse vectors that depend on them."""
        head = required(self._heads.sparse)
        texts = [index for index, task in enumerate(tasks) if "sparse" in task.heads and head.reads_hidden(task)]
        starts, sizes = ([values[index] for index in texts] for values in (batch.starts, batch.sizes))
        return lambda hidden: [*map(head.select, device.largest_logits(hidden, starts, sizes))] if texts else []

    def _infer(
        self, batch: VarlenBatch, hidden: bool, weigh: Weigh | None = None
    ) -> tuple[Floats, Floats, list[SparseEntries] | None]:
        """Run a batch and return pooled (N, D), hidden (T, D), both empty if not computed, and the sparse vectors."""
        device = self._device if batch.shape.longest > self._short else self._short_device or self._device

        def run() -> tuple[Floats, Floats, list[SparseEntries] | None]:
            return *device.run(batch, hidden), None if weigh is None else weigh(device.hidden(batch.shape))

        return self._thread.submit(run).result()


class _Device:
    """A session and its device memory, used by one thread: CUDA graphs belong to the thread that captured them.

    Sessions of the same thread share `memory`: tensors by name and size.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        device: Device,
        number: int,
        width: int,
        shapes: ShapeBuckets,
        memory: dict[tuple[str, tuple[int, ...]], onnxruntime.OrtValue],
    ) -> None:
        self._session = session
        self._offsets = shapes.offset_bytes // ITEM_BYTES
        self._device = device
        self._number = number
        self._width = width
        self._outputs = {output.name: DTYPES[output.type] for output in session.get_outputs()}
        self._bound: dict[Shape, _Bound] = {}
        self._memory = memory

    def run(self, batch: VarlenBatch, hidden: bool) -> tuple[Floats, Floats]:
        bound = self._bound.get(batch.shape) or self._bind(batch.shape)
        bound.values.update_inplace(batch.values)  # one copy to the device, not one per input
        self._session.run_with_iobinding(bound.binding, bound.options)
        nothing = np.zeros((0, self._width), dtype=np.float32)
        return (
            self._read(bound.outputs[POOLED], len(batch.sizes)) if POOLED in bound.outputs else nothing,
            self._read(bound.outputs[HIDDEN], batch.tokens) if hidden else nothing,
        )

    def hidden(self, shape: Shape) -> onnxruntime.OrtValue:
        """Return the hidden states of the latest batch of a shape, on the device."""
        return self._bound[shape].outputs[HIDDEN]

    def _read(self, value: onnxruntime.OrtValue, count: int) -> Floats:
        """Return a copy of the first rows: `numpy` copies them from a GPU, but returns a view on a CPU."""
        rows: Floats = value.numpy()[:count]
        return rows if self._device == "cuda" else rows.copy()

    def _bind(self, shape: Shape) -> "_Bound":
        """Bind inputs and outputs at fixed addresses, as a captured graph requires."""
        binding = self._session.io_binding()
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
        self._bound[shape] = _Bound(binding, options, values, outputs)
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

    binding: Any
    options: onnxruntime.RunOptions
    values: onnxruntime.OrtValue
    outputs: dict[str, onnxruntime.OrtValue]


class _SparseDevice:
    """A session of the sparse graph, and its device memory, used by the thread that runs the batches.

    The graph computes the largest logit of each vocabulary entry over the tokens of a segment: (N, V) for N segments.
    """

    def __init__(self, session: onnxruntime.InferenceSession, device: Device, number: int) -> None:
        self._session = session
        (_, positions), (logits,) = session.get_inputs(), session.get_outputs()
        self._length, entries = positions.shape[1], logits.shape[1]
        fitting = max(1, LOGIT_BYTES // (2 * self._length * entries))
        most = min(MAX_SEGMENTS, 1 << fitting.bit_length() - 1)
        place = onnxruntime.OrtValue.ortvalue_from_numpy
        self._bound = {
            count: (
                place(np.zeros((count, self._length), dtype=np.int32), device, number),
                place(np.zeros((count, entries), dtype=np.float32), device, number),
            )
            for count in sorted({1, min(FEW_SEGMENTS, most), most})
        }
        self._options = onnxruntime.RunOptions()
        if device == "cuda":  # a graph would need hidden states at a fixed address
            self._options.add_run_config_entry("gpu_graph_id", "-1")

    def warm_up(self, hidden: onnxruntime.OrtValue) -> list[SparseEntries]:
        """Run every number of segments, the largest first, so that all use the same memory. Returns no vectors."""
        for count in reversed(self._bound):
            self._run(hidden, np.zeros((count, self._length), np.int32))
        return []

    def largest_logits(
        self, hidden: onnxruntime.OrtValue, starts: Sequence[int], sizes: Sequence[int]
    ) -> Iterator[Floats]:
        """Yield the largest logits (V) over the tokens of each text, valid until the next one.

        `hidden`: the hidden states of a batch. `starts` and `sizes`: start and length of each text.
        """
        positions, is_last = split_segments(starts, sizes, self._length)
        most, largest = max(self._bound), None
        for start in range(0, len(positions), most):
            rows = self._run(hidden, positions[start : start + most])
            for row, ends in zip(rows, is_last[start : start + most], strict=False):
                largest = row if largest is None else np.maximum(largest, row)
                if ends:
                    yield largest
                    largest = None
            largest = None if largest is None else largest.copy()

    def _run(self, hidden: onnxruntime.OrtValue, positions: Ints) -> Floats:
        count = next(count for count in self._bound if count >= len(positions))
        padded = np.zeros((count, self._length), np.int32)
        padded[: len(positions)] = positions
        values, logits = self._bound[count]
        values.update_inplace(padded)
        binding = self._session.io_binding()
        for name, value in (("hidden", hidden), ("positions", values)):
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("logits", logits)
        self._session.run_with_iobinding(binding, self._options)
        rows: Floats = logits.numpy()[: len(positions)]
        return rows
