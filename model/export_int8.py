"""Export of the int8 graph for CPUs with VNNI: int8 weights of every linear layer, one scale per output channel.

Only weights are quantized. No calibration data is needed, and the result is the same on every machine. The backend
quantizes activations at run time per token and channel group, so embeddings do not depend on the batch composition.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from model.checkpoint import Checkpoint
from model.manifest import GraphRecord, GraphReport
from model.onnx_graph import save_graph
from model.parity import compare_outputs, pack_sequences

SOURCE, GRAPH, WEIGHTS = "fast.onnx", "int8.onnx", "int8.bin"
MAX_INT8 = 127
"""Symmetric quantization uses the range of int8 without -128."""
TOLERANCE = 0.25
"""Maximum relative difference of a token vector, as in parity.py. Quantization causes about 0.03."""

Progress = Callable[[str], None]


def write_int8(root: Path, checkpoint: Checkpoint, progress: Progress) -> tuple[GraphRecord, GraphReport]:
    """Write the int8 version of the float32 graph in `root`, and its weights."""
    model = onnx.load(root / SOURCE)
    count = quantize_weights(model)
    progress(f"quantized the weights of {count} linear layers to int8")
    save_graph(onnx_ir.from_proto(model), root / GRAPH, WEIGHTS)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(root / GRAPH, options, providers=["CPUExecutionProvider"])
    parity = compare_outputs(
        checkpoint.encoder,
        lambda sequences: session.run(None, pack_sequences(sequences))[0],
        checkpoint.max_input_tokens,
        TOLERANCE,
    )
    inputs = tuple(value.name for value in model.graph.input)
    outputs = tuple(value.name for value in model.graph.output)
    record = GraphRecord(file=GRAPH, weights=WEIGHTS, inputs=inputs, outputs=outputs, precision="int8")
    return record, GraphReport(parity=parity)


def quantize_weights(model: onnx.ModelProto) -> int:
    """Replace the constant weight (in, out) of each MatMul by int8 values and a `DequantizeLinear`.

    Return the number of replaced weights.
    """
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    names = dict.fromkeys(node.input[1] for node in graph.node if node.op_type == "MatMul" and node.input[1] in weights)
    for name in names:
        values, scales = quantize(numpy_helper.to_array(weights[name]))
        graph.initializer.remove(weights[name])
        graph.initializer.append(numpy_helper.from_array(values, f"{name}.int8"))
        graph.initializer.append(numpy_helper.from_array(scales, f"{name}.scale"))
        inputs = [f"{name}.int8", f"{name}.scale"]
        graph.node.insert(0, helper.make_node("DequantizeLinear", inputs, [name], f"{name}.dequantize", axis=1))
    return len(names)


def quantize(weight: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 values (in, out) and float32 scales (out,) of a weight (in, out): `weight ~ values * scales`."""
    scales = np.abs(weight).max(axis=0) / np.float32(MAX_INT8)
    scales[scales == 0] = 1
    values = np.clip(np.rint(weight / scales), -MAX_INT8, MAX_INT8).astype(np.int8)
    return values, scales.astype(np.float32)
