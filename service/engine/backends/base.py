"""The backend protocol, and the code shared by all packed-batch backends."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from attendant_client.types import Provider
from numpy.typing import NDArray

from model.artifact.files import Artifact
from model.artifact.manifest import Precision
from model.artifact.packing import BatchFill, BatchShape, BatchShapes, CostModel, Ints, RowFill, TokenLimit, pack_batch
from service.engine.backends.heads import Heads
from service.engine.tasks import EncodeTask, ModelInput, TextVectors, has_types_of, ids_of, tokens_of, unattended_of

Floats = NDArray[np.float32]

MEASURED_SHAPES = 6
"""Number of packed shapes that warm-up measures."""
SLOW_RUN_S = 0.02
"""If the smallest shape runs for longer, only the two smallest and the largest shapes are measured."""
LONG_RUN_S = 0.2
"""Shapes that run for longer are measured only once: their run times vary less, and repeats would take seconds."""
LONG_SHAPE_S = 0.75
"""Warm-up measures one row longer than packed rows if it runs within this time, to learn the cost of attention."""


@dataclass(frozen=True)
class Gpu:
    """A CUDA device and its memory limit in bytes (0: no limit)."""

    device: int = 0
    memory_limit_bytes: int = 0


DEFAULT_GPU = Gpu()


@dataclass(frozen=True)
class BackendChoice:
    """A backend to open: provider, precision, artifact graph, and the reason for the choice.

    `streams` batches execute at the same time, each on `threads_per_stream` threads.
    """

    provider: Provider
    precision: Precision
    graph: str
    streams: int
    threads_per_stream: int
    max_batch_tokens: int
    reason: str
    gpu: Gpu = DEFAULT_GPU


class Task(Protocol):
    """One unit of scheduled work: a sequence and the requested results."""

    @property
    def tokens(self) -> ModelInput: ...


Task_contra = TypeVar("Task_contra", bound=Task, contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class FittedBatch(Protocol):
    """The shape of a batch."""

    @property
    def tokens(self) -> int:
        """The batch length in tokens, including padding."""


class Backend(Protocol[Task_contra, Result_co]):
    """Runs one graph. Up to `workers` threads may call the methods concurrently."""

    @property
    def choice(self) -> BackendChoice: ...

    @property
    def workers(self) -> int:
        """Number of worker threads."""

    @property
    def max_batch_tokens(self) -> int:
        """Maximum number of tokens in a batch of several tasks. A longer task runs in a separate batch."""

    @property
    def max_batch_size(self) -> int:
        """Maximum number of tasks per batch."""

    @property
    def length_buckets(self) -> tuple[int, ...]:
        """Allowed batch sizes in tokens, ascending."""

    @property
    def gpu_memory_bytes(self) -> int:
        """GPU memory that the model uses, in bytes."""

    def full_batch_fill(self, max_seconds: float, /) -> BatchFill:
        """Return an empty fill with room for `max_batch_tokens`, limited to `max_seconds` of run time.

        A longer task runs in a separate batch.
        """

    def partial_fill(self, tokens: int, /) -> BatchFill:
        """Return an empty fill for part of the queue: at most `tokens`, plus the padding that the backend allows.

        `tokens` is at most `max_batch_tokens`.
        """

    def seconds(self, size: int, /) -> float:
        """Return the estimated time that a sequence of this size adds to a full batch on one stream."""

    def fit(self, sizes: Sequence[int], /) -> FittedBatch:
        """Return the shape of a batch of sequences of these sizes, for `run`."""

    def run(self, tasks: Sequence[Task_contra], fitted: Any = None, /) -> Sequence[Result_co]:
        """Run one batch and return one result per task. Raises `NonFiniteOutput`, or the runtime's exceptions.

        `fitted` is what `fit` returned for the tasks; without it, `run` calls `fit`.
        """

    def warm_up(self) -> None:
        """Run each shape that is slow on first use, and measure the run times that `seconds` is based on."""

    def probe(self) -> None:
        """Run a tiny valid batch. Raises the runtime's exception if the session or its device is broken."""

    def reopen(self) -> None:
        """Replace the session with a new one. Raises the runtime's exceptions."""


@runtime_checkable
class SeveralGraphs(Protocol):
    """A backend that selects one of several graphs by the shape of a batch."""

    def each_graph(self) -> Iterator[None]:
        """Yield once per graph, which meanwhile runs all batches that it can."""


class PackedBackend(ABC):
    """Base class of the CPU backends for packed batches. The graph returns `last_hidden_state`, float32, (R, T, D)."""

    gpu_memory_bytes = 0
    batch_shapes: tuple[tuple[int, int], ...]
    """Allowed batch shapes, (rows, length)."""

    def __init__(self, artifact: Artifact, choice: BackendChoice) -> None:
        manifest = artifact.manifest
        self.choice = choice
        self.workers = choice.streams + 1  # one worker per stream, and one to prepare the next batch
        self.shapes = BatchShapes(manifest.longest_input_tokens, choice.max_batch_tokens, self.batch_shapes)
        self.max_batch_tokens = self.max_batch_size = self.shapes.max_batch_tokens
        self.length_buckets = self.shapes.lengths
        self._artifact = artifact
        self._max_input_tokens = manifest.longest_input_tokens
        self._segment_types = manifest.architecture.type_vocab_size
        self._heads = Heads(artifact)
        self.reopen()

    @abstractmethod
    def reopen(self) -> None:
        """Replace the session with a new one, opened from the artifact's verified bytes."""

    @abstractmethod
    def infer(self, inputs: dict[str, Ints]) -> Floats:
        """Return `last_hidden_state` (R, T, D), an array owned by the caller."""

    def full_batch_fill(self, max_seconds: float) -> BatchFill:
        return RowFill(self.shapes, max_seconds)

    def partial_fill(self, tokens: int) -> BatchFill:
        return TokenLimit(tokens)

    def seconds(self, size: int) -> float:
        return self.shapes.sequence_seconds(size)

    def fit(self, sizes: Sequence[int]) -> "PackedShape":
        return PackedShape(*self.shapes.fit(sizes))

    def run(self, tasks: Sequence[EncodeTask], fitted: "PackedShape | None" = None) -> Sequence[TextVectors]:
        inputs = [*map(tokens_of, tasks)]
        fitted = fitted or self.fit([*map(len, inputs)])
        batch = pack_batch(sequences_of(inputs, self._segment_types), fitted.shape, fitted.starts)
        sequence_ids = batch.inputs["sequence_ids"].reshape(-1)
        if any(unattended := [*map(unattended_of, inputs)]):
            for count, start, size in zip(unattended, batch.starts, batch.sizes, strict=True):
                if count:
                    sequence_ids[start + size - count : start + size] *= -1
        last_hidden_state = self.infer(batch.inputs)
        hidden = last_hidden_state.reshape(-1, last_hidden_state.shape[-1])
        return self._heads.finish(tasks, hidden, batch.starts, batch.sizes)

    def probe(self) -> None:
        self.infer(self.full_batch(self.shapes.shapes[0]))

    def full_batch(self, shape: BatchShape) -> dict[str, Ints]:
        """Return the inputs of a batch without padding, with sequences as long as the model allows."""
        longest = min(shape.length, self._max_input_tokens)
        full, rest = divmod(shape.length, longest) if shape in self.shapes.packed else (1, 0)
        row = [longest] * full + [rest] * (rest > 0)
        return pack_batch([([0] * size, None) for size in row * shape.rows], shape).inputs

    def fit_costs(self, run: Callable[[dict[str, Ints]], Any]) -> None:
        """Measure a few shapes with `run`, and fit a cost model for all shapes.

        `run` executes a batch on one stream, or on all streams concurrently.

        At most one shape longer than packed shapes is measured. The others compile on first use.
        """

        def measure(shape: BatchShape) -> tuple[BatchShape, float]:
            inputs = self.full_batch(shape)
            seconds = _timed(run, inputs)
            return shape, min(seconds, _timed(run, inputs)) if seconds < LONG_RUN_S else seconds

        smallest, *shapes = self.shapes.sample(MEASURED_SHAPES)
        measured = [measure(smallest)]
        if measured[0][1] > SLOW_RUN_S:
            shapes = shapes[:: max(1, len(shapes) - 1)]  # the first and the last
        measured += [measure(shape) for shape in shapes]
        self.shapes.use(CostModel.fit(measured))
        long_shape = self.shapes.longest_within(LONG_SHAPE_S)
        if long_shape is not None:
            self.shapes.use(CostModel.fit([*measured, measure(long_shape)]))


@dataclass(frozen=True, slots=True)
class PackedShape:
    """The shape of a packed batch, and the index of each sequence's first token."""

    shape: BatchShape
    starts: list[int]

    @property
    def tokens(self) -> int:
        return self.shape.tokens


def sequences_of(inputs: Sequence[ModelInput], type_vocab_size: int) -> list[tuple[list[int], list[int] | None]]:
    """Return each input's `input_ids` and `token_type_ids`; None if all are 0, as in single texts of most families."""
    if type_vocab_size <= 1 or not any(map(has_types_of, inputs)):
        return [*zip(map(ids_of, inputs), repeat(None, len(inputs)), strict=True)]
    sequences = []
    for tokens in inputs:
        types = tokens.token_type_ids if tokens.has_types else None
        sequences.append((tokens.input_ids, types if types is not None and any(types) else None))
    return sequences


def _timed(run: Callable[[dict[str, Ints]], Any], inputs: dict[str, Ints]) -> float:
    started = time.perf_counter()
    run(inputs)
    return time.perf_counter() - started
