"""A server whose fast lane runs on a simulated GPU, to measure only the server itself.

`python -m bench.simulated_device serve ...` takes the arguments of `attendant`. Tokenization, batching, rendering and
the Python of the CUDA backend are real. The device responds after the time that a batch takes on an H200, with vectors
that depend on the token ids. All servers with the same `BENCH_DEVICE` file share one device, where batches queue.
"""

import fcntl
import os
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np

from model.artifact.files import Artifact
from service.__main__ import main
from service.engine import model_loader
from service.engine.backends.base import BackendChoice
from service.engine.backends.cuda import HIDDEN, POOLED, CudaBackend, Floats
from service.engine.backends.select import GPU_BATCH_TOKENS, BackendOptions, Machine, explain_choice
from service.engine.backends.varlen import VarlenBatch
from service.supervisor import Supervisor

DEVICE_FILE = "BENCH_DEVICE"
BATCH_S = 0.4e-3
TOKEN_S = {"minilm": 0.15e-6, "bert-base": 0.5e-6}
"""Run time of a batch on an H200, measured with the engine alone: `BATCH_S` plus `TOKEN_S` per token."""
ROWS = 4096
"""Number of distinct vectors."""


class SimulatedDevice:
    """Responds after the time that a batch takes on the GPU, which runs one batch at a time."""

    def __init__(self, width: int, token_s: float) -> None:
        self._token_s = token_s
        self._vectors = np.random.default_rng(0).standard_normal((ROWS, width), dtype=np.float32)
        path = os.environ.get(DEVICE_FILE)
        self._lock = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT)

    def run(self, batch: VarlenBatch, hidden: bool) -> tuple[Floats, Floats]:
        """Return vectors of the sequences (N, D) and, if requested, of the tokens (T, D)."""
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        time.sleep(BATCH_S + self._token_s * batch.shape.tokens)
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        ids = batch.inputs["input_ids"][: batch.tokens]
        pooled = self._vectors[np.add.reduceat(ids, batch.starts) % ROWS]
        return pooled, self._vectors[ids % ROWS] if hidden else pooled[:0]


class SimulatedBackend(CudaBackend):
    """The CUDA backend on a simulated device."""

    def __init__(self, artifact: Artifact, choice: BackendChoice, token_s: float) -> None:
        super().__init__(artifact, choice, {choice.graph: _NoSession()}, "cpu")
        self._pooling = artifact.manifest.embedding.pooling
        self._device = SimulatedDevice(artifact.manifest.architecture.hidden_size, token_s)  # type: ignore[assignment]


class _NoSession:
    """A session with the outputs of a CUDA graph."""

    def get_outputs(self) -> list[Any]:
        return [_Output(HIDDEN), _Output(POOLED)]


class _Output:
    type = "tensor(float)"

    def __init__(self, name: str) -> None:
        self.name = name


def open_simulated(
    self: model_loader.BackendOpener, options: BackendOptions, machine: Machine, reason: str = ""
) -> model_loader.OpenedBackend:
    """Open the simulated backend in place of the selected one."""
    choice = replace(
        explain_choice("fast", 1), precision="float16", max_batch_tokens=GPU_BATCH_TOKENS, reason="simulated"
    )
    backend = SimulatedBackend(self.artifact, choice, TOKEN_S[os.environ.get("BENCH_DEVICE_MODEL", "minilm")])
    backend.warm_up()
    return model_loader.OpenedBackend(backend, {})


def run() -> int:
    """Run `attendant` with the simulated device and return its exit status."""
    Supervisor.module = "bench.simulated_device"
    model_loader.BackendOpener.open = open_simulated  # type: ignore[method-assign]
    return main()


if __name__ == "__main__":
    sys.exit(run())
