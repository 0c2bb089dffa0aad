"""OpenVINO: an artifact's graph as a model, and a pool of inference requests."""

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np

from model.artifact.files import Artifact
from model.artifact.manifest import Precision
from model.artifact.packing import MAX_BATCH_TOKENS, Ints
from service.engine.backends.base import Floats, PackedBackend
from service.engine.backends.onnx_weights_pb2 import GraphProto
from service.engine.backends.sessions import map_weights, read_graph

TYPES = {1: "f32", 3: "i8", 6: "i32", 7: "i64", 10: "f16", 16: "bf16"}
"""OpenVINO element types by ONNX type number."""
FUSED = "fused_attention"
"""Graph constant that selects attention without loops, which OpenVINO fuses into one kernel per layer."""


def import_openvino() -> Any:
    """Import the package without its telemetry, which would send usage data to a third party.

    Telemetry also forks a child, which can hang a server with running threads.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None makes its import fail
    import openvino

    return openvino


def read_model(core: Any, artifact: Artifact, graph: str) -> Any:
    """Return a graph as an `openvino.Model`. The artifact must outlive every model compiled from it."""
    openvino, message = import_openvino(), read_graph(artifact, graph)
    weights = map_weights(artifact, message.graph)
    _turn_into_inputs(message.graph)
    model = core.read_model(message.SerializeToString())
    for parameter in model.get_parameters():
        name = parameter.get_friendly_name()
        if name == FUSED:
            constant = openvino.op.Constant(openvino.Type.boolean, openvino.Shape([]), [True])
        elif name in weights:
            values, dtype = weights[name].values, getattr(openvino.Type, TYPES[weights[name].data_type])
            constant = openvino.op.Constant(openvino.Tensor(values, openvino.Shape(values.shape), dtype), True)
        else:
            continue
        constant.set_friendly_name(name)
        parameter.output(0).replace(constant.output(0))
        model.remove_parameter(parameter)
    model.validate_nodes_and_infer_types()
    return model


def _turn_into_inputs(graph: GraphProto) -> None:
    """Replace `FUSED` and each weight stored in another file with an input of the same name, type and shape."""
    tensors = list(graph.initializer)
    del graph.initializer[:]
    for tensor in tensors:
        if not (tensor.external_data or tensor.name == FUSED):
            graph.initializer.append(tensor)
            continue
        value = graph.input.add(name=tensor.name)
        value.type.tensor_type.elem_type = tensor.data_type
        value.type.tensor_type.shape.SetInParent()  # a scalar has no dimensions, unlike a tensor of unknown rank
        for size in tensor.dims:
            value.type.tensor_type.shape.dim.add(dim_value=size)


HINTS: dict[Precision, str] = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""INFERENCE_PRECISION_HINT. int8: the linear layers are quantized at run time, everything else stays in float32."""
INT8_GROUP_SIZE = 32
"""Activations are quantized per token and group of this many channels.

This keeps embeddings independent of the batch composition.
"""
MAX_LATENCY_THREADS = 4
"""More threads do not speed up a batch of up to 128 tokens."""
LATENCY_WARM_UP_TOKENS = 128
"""The latency model compiles larger shapes on first use."""
WARM_UP_S = 1.0
"""The first run of a shape takes 3 to 25 ms longer than the next ones, so slow CPUs leave large shapes to requests."""


class OpenVinoBackend(PackedBackend):
    """Two compiled models: one stream per thread for throughput, and one stream over all threads for latency.

    A batch uses the latency model if no other batch runs: on two threads it is 1.5 to 1.9 times as fast (Xeon without
    AMX). Under load, one stream of two threads reaches only 0.8 of the throughput of two streams (bfloat16 with AMX).
    """

    # Each shape compiles on each stream (3 to 25 ms) and stays in memory, so there are few. All are multiples of 16
    # tokens: at 24 tokens, int8 uses a different kernel, and a text's embeddings in a batch and alone had a cosine of
    # only 0.99987.
    batch_shapes = (
        *((1, length) for length in (16, 32, 48, 64, 96, 128, 160, 192, 224, 256)),
        *((2, length) for length in (64, 96, 128, 160, 192, 224, 256)),
        *((3, length) for length in (96, 128, 160, 192, 224, 256)),
        *((4, length) for length in (64, 96, 128, 160, 192, 224)),
        *((5, length) for length in (64, 96, 128, 160)),
        *((rows, 64) for rows in (6, 7, 8, 10, 12)),
        *((rows, 96) for rows in (7, 8)),
        (6, 128),
    )
    _throughput: "RequestPool"
    _latency: "RequestPool | None"

    def reopen(self) -> None:
        core = import_openvino().Core()
        model = read_model(core, self._artifact, self.choice.graph)
        streams = self.choice.streams
        threads = min(streams, MAX_LATENCY_THREADS)
        with ThreadPoolExecutor(1) as executor:  # compilation uses one thread
            latency = executor.submit(self._compile, core, model, 1, threads, 1) if threads > 1 else None
            self._throughput = self._compile(core, model, streams, streams, self.workers)
            self._latency = latency.result() if latency is not None else None
        # The first call initializes static state of the bindings. Two threads that do so concurrently deadlock
        # (2026.4.1): one holds the GIL and waits for the initialization; the other holds the initialization lock and
        # waits for the GIL.
        self._throughput.infer(self.full_batch(self.shapes.shapes[0]))

    def infer(self, inputs: dict[str, Ints]) -> Floats:
        """Return the outputs. Inputs are copied.

        `share_inputs=True`, mixed with unshared calls on one request from two threads, corrupted the heap in 7 of 7
        runs (OpenVINO 2026.4.1).
        """
        with self._throughput.borrow() as request:
            if self._latency is not None and self._throughput.borrowed == 1:
                output = self._latency.infer(inputs)
            else:
                output = self._throughput.run(request, inputs)
        self._throughput.release_memory()
        if self._latency is not None:
            self._latency.release_memory()
        return output

    def warm_up(self) -> None:
        """Measure a few shapes on all streams concurrently, then run the other packed shapes, smallest first.

        Each stream compiles each shape separately. Longer shapes, and any not reached within `WARM_UP_S`, compile with
        their first request.
        """
        started = time.monotonic()
        with ThreadPoolExecutor(self.choice.streams) as executor:

            def run(inputs: dict[str, Ints]) -> None:
                list(executor.map(self._throughput.infer, [inputs] * self.choice.streams))

            self.fit_costs(run)
            for shape in self.shapes.packed:
                if time.monotonic() > started + WARM_UP_S:
                    break
                inputs = self.full_batch(shape)
                run(inputs)
                if self._latency is not None and shape.tokens <= LATENCY_WARM_UP_TOKENS:
                    self._latency.infer(inputs)

    def _compile(self, core: Any, model: Any, streams: int, threads: int, requests: int) -> "RequestPool":
        properties: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": HINTS[self.choice.precision],
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": threads,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": INT8_GROUP_SIZE if self.choice.precision == "int8" else 0,
            # Pinning does not change the speed, and would put all containers of a host on its first cores.
            "ENABLE_CPU_PINNING": False,
        }
        return RequestPool(core.compile_model(model, "CPU", properties), requests)


class RequestPool:
    """The infer requests of one compiled model. Each serves one call at a time."""

    def __init__(self, compiled: Any, size: int) -> None:
        self.borrowed = 0
        self._compiled = compiled
        self._release_due = False
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()
        for _ in range(size):
            self._requests.put(compiled.create_infer_request())

    def infer(self, inputs: dict[str, Ints]) -> Floats:
        """Run on the first free request."""
        with self.borrow() as request:
            return self.run(request, inputs)

    def run(self, request: Any, inputs: dict[str, Ints]) -> Floats:
        """Run on a borrowed request."""
        if inputs["input_ids"].size > MAX_BATCH_TOKENS:
            self._release_due = True
        request.infer(inputs)
        return np.array(request.get_output_tensor(0).data)

    @contextmanager
    def borrow(self) -> Iterator[Any]:
        """Wait for a free request. `borrowed` counts requests in use plus callers waiting for one."""
        with self._lock:
            self.borrowed += 1
        request = self._requests.get()
        try:
            yield request
        finally:
            self._requests.put(request)
            with self._lock:
                self.borrowed -= 1

    def release_memory(self) -> None:
        """After a batch of more than `MAX_BATCH_TOKENS`, release its memory, unless a batch is running.

        Otherwise each stream that has run such a batch keeps its memory: 560 MiB per stream for 8,192 tokens and a
        base-sized model. Releasing takes 10 ms; the next batch of each stream takes 60 ms to allocate memory again.
        """
        if not self._release_due or self.borrowed:
            return
        self._release_due = False  # cleared first, because a long batch that starts now sets it again
        try:
            self._compiled.release_memory()
        except RuntimeError:  # a batch has started meanwhile; the last one to finish releases the memory
            self._release_due = True
            return
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # glibc only: return freed memory to the OS
