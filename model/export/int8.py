"""Export of the int8 graph for CPUs with VNNI: int8 weights of every linear layer, one scale per output channel.

Only weights are quantized. No calibration data is needed, and the result is the same on every machine. The backend
quantizes activations at run time per token and channel group, so embeddings do not depend on the batch composition.
"""

from typing import Any

import numpy as np
import onnx_ir
from numpy.typing import NDArray

from model.artifact.names import FAST
from model.checkpoint import Checkpoint
from model.export.graphs import GraphSet, compute_weight, save_graph, stored_weight
from model.export.parity import measure_parity

WEIGHTS = "int8.bin"
MAX_INT8 = 127
"""Symmetric quantization uses the range of int8 without -128."""
TOLERANCE = 0.25
"""Maximum relative difference of a token vector, as in parity.py. Quantization causes about 0.03."""


def write_int8(graphs: GraphSet, checkpoint: Checkpoint) -> None:
    """Write the int8 version of the float32 graph, and its weights."""
    model = onnx_ir.load(graphs.path(FAST))
    count = quantize_weights(model)
    graphs.progress(f"quantized the weights of {count} linear layers to int8")
    save_graph(model, graphs.path("int8"), WEIGHTS)
    parity = measure_parity(
        checkpoint.encoder, graphs.path("int8"), checkpoint.max_input_tokens, TOLERANCE, copies_weights=True
    )
    graphs.add("int8", parity, WEIGHTS, "int8")


MATRIX = 2


def quantize_weights(model: onnx_ir.Model) -> int:
    """Replace the constant weight (in, out) of each MatMul with int8 values and a `DequantizeLinear`.

    Return the number of replaced weights. A weight is an initializer or a Cast of an initializer.
    """
    graph = model.graph
    operands = [node.inputs[1] for node in graph if node.op_type == "MatMul"]
    weights = {}
    for value in operands:
        if value is None or not stored_weight(value).is_initializer():
            continue
        tensor = stored_weight(value).const_value
        assert tensor is not None
        if len(tensor.shape) == MATRIX:  # the exporter folds DeBERTa's distance keys to constants, (1, H, d, 2 span)
            weights[value] = tensor
    for weight, tensor in weights.items():
        values, scales = quantize(tensor.numpy().astype(np.float32))
        int8 = onnx_ir.tensor(values, name=f"{weight.name}.int8")
        scale = onnx_ir.tensor(scales, name=f"{weight.name}.scale")
        compute_weight(graph, weight, "DequantizeLinear", [int8, scale], {"axis": 1})
    return len(weights)


def quantize(weight: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 values (in, out) and float32 scales (out,) of a weight (in, out): `weight ~ values * scales`."""
    scales = np.abs(weight).max(axis=0) / np.float32(MAX_INT8)
    scales[scales == 0] = 1
    values = np.clip(np.rint(weight / scales), -MAX_INT8, MAX_INT8).astype(np.int8)
    return values, scales.astype(np.float32)
