"""Export of the int8 graph for CPUs with VNNI: int8 weights of every linear layer, one scale per output channel.

Only weights are quantized. No calibration data is needed, and the result is the same on every machine. The backend
quantizes activations at run time per token and channel group, so embeddings do not depend on the batch composition.
"""

from typing import Any

import numpy as np
import onnx_ir
from numpy.typing import NDArray

from model.checkpoint import Checkpoint
from model.export.graphs import GraphSet, save_graph
from model.export.parity import measure_parity

WEIGHTS = "int8.bin"
MAX_INT8 = 127
"""Symmetric quantization uses the range of int8 without -128."""
TOLERANCE = 0.25
"""Maximum relative difference of a token vector, as in parity.py. Quantization causes about 0.03."""


def write_int8(graphs: GraphSet, checkpoint: Checkpoint) -> None:
    """Write the int8 version of the float32 graph `fast`, and its weights."""
    model = onnx_ir.load(graphs.path("fast"))
    count = quantize_weights(model)
    graphs.progress(f"quantized the weights of {count} linear layers to int8")
    save_graph(model, graphs.path("int8"), WEIGHTS)
    parity = measure_parity(checkpoint.encoder, graphs.path("int8"), checkpoint.max_input_tokens, TOLERANCE)
    graphs.add("int8", parity, WEIGHTS, "int8")


def quantize_weights(model: onnx_ir.Model) -> int:
    """Replace the constant weight (in, out) of each MatMul by int8 values and a `DequantizeLinear`.

    Return the number of replaced weights. A weight is an initializer, or a Cast of one.
    """
    graph = model.graph
    operands = [node.inputs[1] for node in graph if node.op_type == "MatMul"]
    weights = dict.fromkeys(value for value in operands if value is not None and _stored(value).is_initializer())
    for weight in weights:
        tensor, name, cast = _stored(weight).const_value, weight.name, weight.producer()
        assert tensor is not None
        values, scales = quantize(tensor.numpy().astype(np.float32))
        tensors = onnx_ir.tensor(values, name=f"{name}.int8"), onnx_ir.tensor(scales, name=f"{name}.scale")
        inputs = [onnx_ir.val(tensor.name, const_value=tensor) for tensor in tensors]
        for value in inputs:
            graph.register_initializer(value)
        dequantize = onnx_ir.node("DequantizeLinear", inputs, {"axis": 1}, name=f"{name}.dequantize")
        dequantize.outputs[0].type, dequantize.outputs[0].shape = weight.type, weight.shape
        stored = _stored(weight).name
        assert stored is not None
        weight.replace_all_uses_with(dequantize.outputs[0])
        if cast is not None:
            graph.remove(cast, safe=True)
        del graph.initializers[stored]
        dequantize.outputs[0].name = name
        graph.insert_before(graph[0], dequantize)
    return len(weights)


def _stored(value: onnx_ir.Value) -> onnx_ir.Value:
    """Return the operand of the Cast that computes `value`, else `value`."""
    node = value.producer()
    operand = node.inputs[0] if node is not None and node.op_type == "Cast" else None
    return value if operand is None else operand


def quantize(weight: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 values (in, out) and float32 scales (out,) of a weight (in, out): `weight ~ values * scales`."""
    scales = np.abs(weight).max(axis=0) / np.float32(MAX_INT8)
    scales[scales == 0] = 1
    values = np.clip(np.rint(weight / scales), -MAX_INT8, MAX_INT8).astype(np.int8)
    return values, scales.astype(np.float32)
