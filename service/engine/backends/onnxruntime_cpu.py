"""ONNX Runtime on the CPU: float32 where OpenVINO is not installed, and the explain graph everywhere."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from model.artifact.files import Artifact
from model.artifact.packing import BatchFill, BatchShape, Ints, PaddedFill, TokenLimit, pack_batch
from model.artifact.tokenizer import TokenizedInput
from service.engine.backends.base import BackendChoice, Floats, PackedBackend, PackedShape, sequences_of
from service.engine.backends.sessions import open_cpu_session
from service.engine.tasks import ExplainTask, ModelParts
from service.errors import NonFiniteOutput

if TYPE_CHECKING:  # imported with the first session: it takes 19 MiB, and a server with OpenVINO may never need it
    import onnxruntime

EXPLAIN_TOKENS_PER_SECOND = 3000.0
"""Initial estimate for the explain lane, whose session opens with its first request. Measured speeds correct it."""


class OnnxRuntimeCpuBackend(PackedBackend):
    """One session, called concurrently by `workers` threads. Each run uses one thread.

    A session with two intra-op threads reaches 0.92 of this throughput (Intel with AVX-512, 128 tokens).
    """

    batch_shapes = tuple((1, length) for length in range(4, 257, 4))  # a new shape costs nothing here
    _session: "onnxruntime.InferenceSession"

    def reopen(self) -> None:
        self._session = open_cpu_session(self._artifact, self.choice.graph, self.choice.threads_per_stream)

    def infer(self, inputs: dict[str, Ints]) -> Floats:
        (hidden,) = self._session.run(None, inputs)
        return hidden  # type: ignore[no-any-return]

    def warm_up(self) -> None:
        """Run the longest packed batch twice: the second run allocates memory in one block and keeps it."""
        for _ in range(2):
            self.infer(self.full_batch(self.shapes.packed[-1]))
        self.fit_costs(self.infer)


class PaddedBackend(OnnxRuntimeCpuBackend):
    """One text per row, as an imported graph expects. Rows are padded to the longest text of the batch."""

    def full_batch_fill(self, max_seconds: float) -> BatchFill:
        del max_seconds  # batches are short
        return PaddedFill(self.max_batch_tokens)

    def partial_fill(self, tokens: int) -> BatchFill:
        return PaddedFill.partial(tokens, self.max_batch_tokens)

    def fit(self, sizes: Sequence[int]) -> PackedShape:
        longest = max(sizes)
        return PackedShape(BatchShape(len(sizes), longest), [row * longest for row in range(len(sizes))])

    def full_batch(self, shape: BatchShape) -> dict[str, Ints]:
        size = min(shape.length, self._max_input_tokens)
        return pack_batch([([0] * size, None)], BatchShape(1, size)).inputs


class ExplainBackend:
    """The explain graph. It returns `hidden_states`, float32, (L+1, T, D), for one sequence per run.

    The session opens with the first request, since many servers never need it.
    """

    workers = 1
    max_batch_size = 1
    gpu_memory_bytes = 0

    def __init__(self, artifact: Artifact, choice: BackendChoice, model: ModelParts) -> None:
        """Prepare to open lazily. `model` computes the tasks' results from hidden states."""
        self.choice = choice
        self._artifact = artifact
        self._model = model
        self.max_batch_tokens = artifact.manifest.longest_input_tokens
        self.length_buckets: tuple[int, ...] = ()
        self._segment_types = artifact.manifest.architecture.type_vocab_size

    @cached_property
    def _session(self) -> "onnxruntime.InferenceSession":
        """The session, opened on first use. Opening it also limits NumPy's BLAS to one thread.

        With more threads, products of matrices as small as attention maps are several times slower, and spinning
        threads take CPU time from the fast lane.
        """
        threadpool_limits(1, user_api="blas")
        return open_cpu_session(self._artifact, self.choice.graph, self.choice.threads_per_stream, arena=False)

    def full_batch_fill(self, max_seconds: float) -> BatchFill:
        del max_seconds  # one task per batch
        return TokenLimit(self.max_batch_tokens)

    def partial_fill(self, tokens: int) -> BatchFill:
        return TokenLimit(tokens)

    def fit(self, sizes: Sequence[int]) -> BatchShape:
        return BatchShape(1, sum(sizes))

    def run(self, tasks: Sequence[ExplainTask], fitted: BatchShape | None = None) -> list[Any]:
        del fitted  # each task is a separate run
        return [task.compute(self._hidden_states(task.tokens), self._model) for task in tasks]

    def seconds(self, size: int) -> float:
        return size / EXPLAIN_TOKENS_PER_SECOND

    def warm_up(self) -> None:
        """Do nothing: the session opens with the first request."""

    def probe(self) -> None:
        self._session.run(None, pack_batch([([0], None)], BatchShape(1, 1)).inputs)

    def reopen(self) -> None:
        self.__dict__.pop("_session", None)

    def _hidden_states(self, tokens: TokenizedInput) -> Floats:
        batch = pack_batch(sequences_of([tokens], self._segment_types), BatchShape(1, len(tokens)))
        (hidden_states,) = self._session.run(None, batch.inputs)
        if not np.isfinite(hidden_states.sum()):
            raise NonFiniteOutput
        return hidden_states[:, 0]  # type: ignore[no-any-return]
