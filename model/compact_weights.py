"""Lossless storage of float32 weights in 16 bits: checkpoints that were published in 16 bits keep their size."""

from typing import Any

import numpy as np
import onnx_ir
from numpy.typing import NDArray

TYPES = (onnx_ir.DataType.BFLOAT16, onnx_ir.DataType.FLOAT16)
CHUNK = 2**20
"""Values that are compared at once. Most float32 matrices are rejected after the first chunk."""


def compact_weights(model: onnx_ir.Model) -> None:
    """Store each float32 matrix in bfloat16 or float16 if all its values fit exactly, with a Cast to float32.

    Vectors stay in float32: they are small.
    """
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != onnx_ir.DataType.FLOAT or len(tensor.shape) < 2:
            continue
        values = tensor.numpy()
        fitting = next((dtype for dtype in TYPES if is_lossless(values, dtype.numpy())), None)
        if fitting is not None:
            _store(model.graph, value, values, fitting)


def is_lossless(values: NDArray[np.float32], dtype: np.dtype[Any]) -> bool:
    """Return whether every value is the same in a 16-bit type, bit for bit."""
    flat = values.reshape(-1)
    with np.errstate(over="ignore"):
        return all(
            np.array_equal(chunk.astype(dtype).astype(np.float32).view(np.uint32), chunk.view(np.uint32))
            for chunk in (flat[start : start + CHUNK] for start in range(0, len(flat), CHUNK))
        )


def _store(graph: onnx_ir.Graph, value: onnx_ir.Value, values: NDArray[np.float32], dtype: onnx_ir.DataType) -> None:
    """Replace an initializer by the same values in `dtype` and a Cast."""
    name = value.name
    assert name is not None
    stored = onnx_ir.Value(
        name=f"{name}.{dtype.name.lower()}",
        shape=value.shape,
        type=onnx_ir.TensorType(dtype),
        const_value=onnx_ir.tensor(values.astype(dtype.numpy())),
    )
    cast = onnx_ir.node("Cast", [stored], {"to": onnx_ir.DataType.FLOAT.value}, name=f"{name}.cast")
    value.replace_all_uses_with(cast.outputs[0])
    del graph.initializers[name]
    graph.register_initializer(stored)
    cast.outputs[0].name, cast.outputs[0].type, cast.outputs[0].shape = name, value.type, value.shape
    graph.insert_before(graph[0], cast)
