"""The choice between the two compiled models, and the release of memory. Stubs of the models control when runs end."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Semaphore
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model.artifact.files import Artifact
from model.artifact.packing import MAX_BATCH_TOKENS, BatchShape, Ints
from service.engine.backends.base import BackendChoice
from service.engine.backends.openvino import OpenVinoBackend, RequestPool

CHOICE = BackendChoice("openvino", "float32", "fast", 2, 1, 512, "test")


class CompiledStub:
    """A stub of a compiled model: it reports when a run starts, and lets it end when `finish` is released."""

    def __init__(self) -> None:
        self.started: Queue[int] = Queue()
        self.finish = Semaphore(0)
        self.releases = 0
        self.busy = False

    def create_infer_request(self) -> Any:
        output = SimpleNamespace(data=np.zeros((1, 1, 1), np.float32))
        return SimpleNamespace(infer=self._infer, get_output_tensor=lambda _: output)

    def _infer(self, inputs: dict[str, Ints]) -> None:
        self.started.put(inputs["input_ids"].size)
        assert self.finish.acquire(timeout=10)

    def release_memory(self) -> None:
        if self.busy:
            raise RuntimeError("busy")
        self.releases += 1


class TwoModels(OpenVinoBackend):
    """An OpenVINO backend over two stubs."""

    def reopen(self) -> None:
        self.models = CompiledStub(), CompiledStub()
        self._throughput, self._latency = RequestPool(self.models[0], self.workers), RequestPool(self.models[1], 1)


@pytest.mark.parametrize("tokens", [16, 512, 8192])
def test_batch_that_runs_alone_uses_all_threads(default_artifact: Path, tokens: int) -> None:
    backend = TwoModels(Artifact.open(default_artifact), CHOICE)
    throughput, latency = backend.models
    inputs = backend.full_batch(BatchShape(1, tokens))
    with ThreadPoolExecutor(2) as executor:
        first = executor.submit(backend.infer, inputs)
        assert latency.started.get(timeout=10) == tokens
        second = executor.submit(backend.infer, inputs)
        assert throughput.started.get(timeout=10) == tokens
        latency.finish.release()
        first.result()
        third = executor.submit(backend.infer, inputs)
        assert throughput.started.get(timeout=10) == tokens
        throughput.finish.release(2)
        second.result()
        third.result()
    # The first batch ended while another one was running, but on the other model.
    assert (throughput.releases, latency.releases) == ((1, 1) if tokens > MAX_BATCH_TOKENS else (0, 0))


def test_memory_is_released_once_no_batch_runs() -> None:
    compiled = CompiledStub()
    pool = RequestPool(compiled, 2)
    inputs = {"input_ids": np.zeros((1, MAX_BATCH_TOKENS + 1), np.int64)}
    compiled.finish.release(1)
    with pool.borrow():
        pool.infer(inputs)
        pool.release_memory()
        assert compiled.releases == 0
    compiled.busy = True
    pool.release_memory()
    compiled.busy = False
    pool.release_memory()
    pool.release_memory()
    assert compiled.releases == 1
