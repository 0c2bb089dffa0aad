"""The packed operator as standard ones: what the graph for a GPU computes, run on the CPU provider."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from model.checkpoint import load_checkpoint
from model.flat import FlatEncoder, Packing, flat_signature, packed_attention
from model.graphs import write_graph
from model.parity import pack_flat
from model.reference import OPERATOR, open_reference, reference_of
from tests.model.flat_texts import random_texts

Floats = NDArray[Any]

WIDTH, HEADS = 24, 3


def lone_operator(precision: int) -> bytes:
    """A graph of nothing but the operator."""
    node = helper.make_node(
        OPERATOR, ["q", "k", "v", "", "offset", "bounds"], ["mixed"], domain="com.microsoft", num_heads=HEADS
    )
    inputs = [helper.make_tensor_value_info(name, precision, ["T", WIDTH]) for name in "qkv"]
    inputs += [
        helper.make_tensor_value_info("offset", TensorProto.INT32, ["B", "S"]),
        helper.make_tensor_value_info("bounds", TensorProto.INT32, ["bounds"]),
    ]
    outputs = [helper.make_tensor_value_info("mixed", precision, ["T", WIDTH])]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "lone", inputs, outputs)
    body: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return body


@pytest.mark.parametrize(("precision", "dtype"), [(TensorProto.FLOAT, np.float32), (TensorProto.FLOAT16, np.float16)])
@pytest.mark.parametrize("bounds", [(0, 10), (0, 3, 3, 10), (0, 1, 2, 9, 10, 10)])
def test_it_computes_what_the_encoders_own_does(bounds: tuple[int, ...], precision: int, dtype: type) -> None:
    """With empty segments and in both precisions."""
    session = onnxruntime.InferenceSession(reference_of(lone_operator(precision)), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(len(bounds))
    parts: dict[str, Floats] = {name: rng.standard_normal((10, WIDTH)).astype(dtype) for name in "qkv"}
    offset, ends = np.zeros((len(bounds) - 1, 10), np.int32), np.array(bounds, np.int32)
    (mixed,) = session.run(None, parts | {"offset": offset, "bounds": ends})
    packing = Packing(torch.from_numpy(offset), torch.from_numpy(ends))
    query, key, value = (torch.from_numpy(part) for part in parts.values())
    expected = packed_attention(query, key, value, packing, HEADS).numpy()
    assert mixed.dtype == dtype
    np.testing.assert_allclose(mixed, expected, atol=1e-6 if dtype is np.float32 else 1e-3)


def test_what_no_segment_covers_is_nan_and_stays_there() -> None:
    """As in the encoder's own: the rest is as if it were not there, even where it holds NaN itself."""
    body = reference_of(lone_operator(TensorProto.FLOAT))
    session = onnxruntime.InferenceSession(body, providers=["CPUExecutionProvider"])
    parts = {name: np.random.default_rng(1).standard_normal((10, WIDTH)).astype(np.float32) for name in "qkv"}
    bounds = {"offset": np.zeros((2, 10), np.int32), "bounds": np.array([0, 4, 7], np.int32)}
    (clean,) = session.run(None, {name: part[:7] for name, part in parts.items()} | bounds)
    for part in parts.values():
        part[7:] = np.nan
    (mixed,) = session.run(None, parts | bounds)
    assert np.isnan(mixed[7:]).all()
    np.testing.assert_allclose(mixed[:7], clean, atol=1e-6)


def test_only_the_operator_is_replaced(published: Path, tmp_path: Path) -> None:
    """The rest of an exported graph is byte for byte what the GPU runs, and nothing of its own is left unrun."""
    module = FlatEncoder(load_checkpoint(published).encoder, "mean").eval()
    (tmp_path / "root").mkdir()
    graph = tmp_path / "root" / "flat.onnx"
    write_graph(module, graph, "flat.bin", flat_signature(module))
    given, made = onnx.load(graph, load_external_data=False), onnx.load_from_string(reference_of(graph.read_bytes()))
    assert [node.op_type for node in given.graph.node] == [node.op_type for node in made.graph.node]
    others = [
        (left, right) for left, right in zip(given.graph.node, made.graph.node, strict=True) if left.op_type != OPERATOR
    ]
    assert all(left == right for left, right in others)
    assert len(given.graph.node) - len(others) == 2
    assert given.graph.initializer == made.graph.initializer
    texts = random_texts(load_checkpoint(published).encoder, (5, 9))
    hidden, pooled = open_reference(graph, "flat.bin").run(None, pack_flat(texts))
    assert (hidden.shape, pooled.shape) == ((14, WIDTH), (2, WIDTH))
