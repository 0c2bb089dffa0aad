"""Parity of graphs and encoder, and the reference of attention on the CPU."""

from itertools import pairwise
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
from model.encoder import Encoder
from model.export.cuda import VarlenEncoder, packed_attention, varlen_signature
from model.export.graphs import write_graph
from model.export.parity import (
    PACKED,
    make_sequence,
    measure_parity,
    open_reference_session,
    pack_sequences,
    pack_varlen,
    to_reference_graph,
)
from tests.model.conftest import Publish
from tests.model.varlen_inputs import random_sequences, varlen_inputs


@pytest.fixture
def encoder(published: Path) -> Encoder:
    """Return a tiny BERT that the test may modify."""
    return load_checkpoint(published).encoder


@pytest.fixture(scope="session")
def graph(graphs: Publish) -> Path:
    return graphs("bert")


def test_graph_accepts_several_rows(encoder: Encoder, graph: Path) -> None:
    first, second = random_sequences(encoder, (13, 13))
    rows = [first, second | {"sequence_ids": np.array([[1] * 6 + [0] * 7])}]
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    stacked = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    (batched,) = session.run(None, stacked)
    alone = [session.run(None, row)[0] for row in rows]
    assert batched.shape == (2, 13, 24)
    assert np.allclose(batched, np.concatenate(alone), atol=1e-5)


@pytest.mark.parametrize(
    "part",
    [
        "blocks.1.feed_forward.outer.weight",
        "blocks.0.attention.query.weight",
        "embeddings.norm.bias",
        "blocks.1.feed_forward_norm.weight",
    ],
)
def test_parity_detects_one_changed_weight(encoder: Encoder, graph: Path, part: str) -> None:
    with torch.no_grad():
        encoder.get_parameter(part).view(-1)[7] += 3.0
    parity = measure_parity(encoder, graph, 41)
    assert parity.max_abs_difference > parity.tolerance


def test_parity_detects_missing_sequence_ids(encoder: Encoder, graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "model.export.parity.pack_sequences",
        lambda sequences: {**pack_sequences(sequences), "sequence_ids": pack_sequences(sequences)["sequence_ids"] * 0},
    )
    parity = measure_parity(encoder, graph, 41)
    assert parity.max_abs_difference > parity.tolerance


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_parity_detects_nonfinite_values(encoder: Encoder, graph: Path, value: float) -> None:
    with torch.no_grad():
        encoder.get_parameter("blocks.1.feed_forward_norm.bias")[7] = value
    parity = measure_parity(encoder, graph, 41)
    assert not parity.max_abs_difference <= parity.tolerance


def test_parity_works_for_max_input_tokens_5(encoder: Encoder, graph: Path) -> None:
    """This leaves batches of lengths 1, 2 and the maximum."""
    assert measure_parity(encoder, graph, 5).batches == 3


def test_pack_varlen_equals_pack_sequences_with_cu_seqlens() -> None:
    sequences = [make_sequence([5, 6, 7], [0, 0, 1]), make_sequence([8, 9], [1, 1])]
    varlen, packed = pack_varlen(sequences), pack_sequences(sequences)
    for name in ("input_ids", "position_ids", "token_type_ids"):
        assert varlen[name].tolist() == packed[name][0].tolist()
    assert varlen["cu_seqlens"].tolist() == [0, 3, 5]
    assert varlen["token_offset"].shape == (2, 3)
    assert {values.dtype for values in varlen.values()} == {np.dtype(np.int32)}


# The CPU reference implementation of PackedMultiHeadAttention.

Floats = NDArray[Any]

HIDDEN_SIZE, HEADS, SCALE = 24, 3, 0.4


def single_operator_graph(precision: int, form: str = "separate") -> bytes:
    """Return a graph that consists of this operator only."""
    operands = {"separate": ["q", "k", "v", ""], "joined": ["qkv", "", "", ""], "biased": ["qkv", "", "", "bias"]}[form]
    node = helper.make_node(
        PACKED,
        [*operands, "token_offset", "cu_seqlens"],
        ["context"],
        domain="com.microsoft",
        num_heads=HEADS,
        scale=SCALE,
    )
    shapes: dict[str, list[str | int]] = {"qkv": ["T", HEADS, 3, HIDDEN_SIZE // HEADS], "bias": [3 * HIDDEN_SIZE]}
    inputs = [
        helper.make_tensor_value_info(name, precision, shapes.get(name, ["T", HIDDEN_SIZE]))
        for name in operands
        if name
    ]
    inputs += [
        helper.make_tensor_value_info("token_offset", TensorProto.INT32, ["B", "S"]),
        helper.make_tensor_value_info("cu_seqlens", TensorProto.INT32, ["bounds"]),
    ]
    outputs = [helper.make_tensor_value_info("context", precision, ["T", HIDDEN_SIZE])]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "operator", inputs, outputs)
    body: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return body


@pytest.mark.parametrize(("precision", "dtype"), [(TensorProto.FLOAT, np.float32), (TensorProto.FLOAT16, np.float16)])
@pytest.mark.parametrize("bounds", [(0, 10), (0, 3, 3, 10), (0, 1, 2, 9, 10, 10)])
@pytest.mark.parametrize("form", ["separate", "joined", "biased"])
def test_reference_equals_packed_attention(bounds: tuple[int, ...], precision: int, dtype: type, form: str) -> None:
    """Includes empty sequences, in float32 and float16."""
    session = onnxruntime.InferenceSession(
        to_reference_graph(single_operator_graph(precision, form)), providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(len(bounds))
    size = HIDDEN_SIZE // HEADS
    parts: list[Floats] = [rng.standard_normal((10, HEADS, size)).astype(dtype) for _ in range(3)]
    bias: Floats = rng.standard_normal((3, HEADS, size)).astype(dtype)
    inputs: dict[str, Floats] = {name: part.reshape(10, -1) for name, part in zip("qkv", parts, strict=True)}
    if form != "separate":
        parts = [np.stack(parts, axis=2)]
        inputs = {"qkv": parts[0], "bias": bias.ravel()} if form == "biased" else {"qkv": parts[0]}
    token_offset, cu_seqlens = np.zeros((len(bounds) - 1, 10), np.int32), np.array(bounds, np.int32)
    (context,) = session.run(None, inputs | {"token_offset": token_offset, "cu_seqlens": cu_seqlens})
    lengths = [end - start for start, end in pairwise(bounds)]
    added = torch.from_numpy(bias) if form == "biased" else None
    expected = packed_attention([torch.from_numpy(part) for part in parts], added, varlen_inputs(*lengths), SCALE)
    assert context.dtype == dtype
    tolerance = 1e-6 if dtype is np.float32 else 1e-3
    np.testing.assert_allclose(context, expected.numpy(), rtol=tolerance, atol=tolerance)


def test_tokens_past_last_sequence_are_nan_and_do_not_affect_others() -> None:
    """This must hold even if their inputs are NaN."""
    body = to_reference_graph(single_operator_graph(TensorProto.FLOAT))
    session = onnxruntime.InferenceSession(body, providers=["CPUExecutionProvider"])
    parts = {name: np.random.default_rng(1).standard_normal((10, HIDDEN_SIZE)).astype(np.float32) for name in "qkv"}
    bounds = {"token_offset": np.zeros((2, 10), np.int32), "cu_seqlens": np.array([0, 4, 7], np.int32)}
    (expected,) = session.run(None, {name: part[:7] for name, part in parts.items()} | bounds)
    for part in parts.values():
        part[7:] = np.nan
    (context,) = session.run(None, parts | bounds)
    assert np.isnan(context[7:]).all()
    np.testing.assert_allclose(context[:7], expected, atol=1e-6)


def test_reference_graph_replaces_only_the_operator(published: Path, tmp_path: Path) -> None:
    module = VarlenEncoder(load_checkpoint(published).encoder, "mean").eval()
    (tmp_path / "root").mkdir()
    graph = tmp_path / "root" / "varlen.onnx"
    write_graph(module, graph, "varlen.bin", varlen_signature(module))
    original = onnx.load(graph, load_external_data=False)
    reference = onnx.load_from_string(to_reference_graph(graph.read_bytes()))
    others = [
        (left, right)
        for left, right in zip(original.graph.node, reference.graph.node, strict=True)
        if left.op_type != PACKED
    ]
    assert all(left == right for left, right in others)
    assert len(original.graph.node) - len(others) == 2
    assert original.graph.initializer == reference.graph.initializer
    sequences = random_sequences(load_checkpoint(published).encoder, (5, 9))
    hidden, pooled = open_reference_session(graph, "varlen.bin").run(None, pack_varlen(sequences))
    assert (hidden.shape, pooled.shape) == ((14, HIDDEN_SIZE), (2, HIDDEN_SIZE))
