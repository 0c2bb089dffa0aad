"""OpenVINO on x86 CPUs of any vendor: bfloat16 with AMX or AVX512-BF16, int8 with VNNI, and float32."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np

from model.artifact import Artifact
from model.packing import Ints, pack_batch
from service.engine.backends import onnx_weights_pb2
from service.engine.backends.base import Floats, PackedBackend, Precision

HINTS: dict[Precision, str] = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""INFERENCE_PRECISION_HINT. int8: the linear layers are quantized at run time, everything else stays in float32."""
INT8_GROUP_SIZE = 32
"""Activations are quantized per token and group of this many channels: an embedding never depends on its batch."""
MAX_PROTOBUF_BYTES = 2**31 - 1


class OpenVinoBackend(PackedBackend):
    """One compiled model; each call of `infer` borrows one of its infer requests.

    Inputs are copied. `share_inputs=True`, mixed with unshared calls on one request from two threads, corrupted the
    heap in 7 of 7 runs (OpenVINO 2026.4.1).
    """

    # Each length compiles on each stream (3 to 25 ms) and stays in memory, so there are few.
    bucket_lengths = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
    _requests: "SimpleQueue[Any]"

    def reopen(self) -> None:
        core = import_openvino().Core()
        model = core.read_model(inline_weights(self._artifact, self.choice.graph))
        model.reshape({port: [1, -1] for port in model.inputs})
        properties: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": HINTS[self.choice.precision],
            "NUM_STREAMS": self.choice.streams,
            "INFERENCE_NUM_THREADS": self.choice.streams * self.choice.threads_per_stream,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": INT8_GROUP_SIZE if self.choice.precision == "int8" else 0,
            "ENABLE_CPU_PINNING": False,
        }
        compiled = core.compile_model(model, "CPU", properties)
        requests: SimpleQueue[Any] = SimpleQueue()
        for _ in range(self.workers):
            requests.put(compiled.create_infer_request())
        self._requests = requests

    def infer(self, inputs: dict[str, Ints]) -> Floats:
        with self._borrow() as request:
            request.infer(inputs)
            return np.array(request.get_output_tensor(0).data)

    def warm_up(self) -> float:
        """Run every bucket on every stream: each stream compiles each shape for itself."""
        for length in self.buckets.lengths:
            inputs = pack_batch([([0] * length, None)], length).inputs
            threads = [threading.Thread(target=self.infer, args=(inputs,)) for _ in range(self.choice.streams)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return self.measure_rate()

    @contextmanager
    def _borrow(self) -> Iterator[Any]:
        requests = self._requests
        request = requests.get()
        try:
            yield request
        finally:
            requests.put(request)


def import_openvino() -> Any:
    """Import the package without its telemetry, which would send usage data to a third party.

    It does so from a forked child, and a fork of a process with running threads can also hang the server.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None makes its import fail
    import openvino

    return openvino


def inline_weights(artifact: Artifact, graph: str) -> bytes:
    """Return the graph as one ONNX message with its weights inside.

    OpenVINO reads external weights only from a path. These are the bytes that were verified.
    """
    record = artifact.manifest.graphs[graph]
    weights = memoryview(artifact.read(record.weights))
    model = onnx_weights_pb2.ModelProto.FromString(artifact.read(record.file))
    for tensor in model.graph.initializer:
        if not tensor.external_data:
            continue
        location = {entry.key: entry.value for entry in tensor.external_data}
        start = int(location.get("offset", 0))
        tensor.raw_data = bytes(weights[start : start + int(location["length"])])
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    body: bytes = model.SerializeToString()
    return body
