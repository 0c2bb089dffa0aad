"""Attention in eager torch, ONNX Runtime and OpenVINO against one naive masked softmax."""

from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from model.encoder.attention import BLOCK_TOKENS, MAX_DENSE_TOKENS, attend, build_mask
from model.export.graphs import FUSED, GraphSignature, write_graph
from service.engine.backends.openvino import import_openvino, read_model

HEADS, HEAD_SIZE, SCALE = 3, 8, 0.31
NAMES = ("q", "k", "v", "position_ids", "sequence_ids")
ALIBI = -1
"""Stands for attention with linear biases, in place of a radius."""
KINDS = [(None, False), (None, True), (16, False), (16, True), (1300, False), (ALIBI, False)]
SLOPES = torch.tensor([0.5, 0.07, 0.01]).view(-1, 1, 1)

Inputs = dict[str, Tensor]
Rows = tuple[tuple[int, ...], ...]
"""The lengths of the sequences in each row."""


class Attention(nn.Module):
    def __init__(self, radius: int | None, causal: bool) -> None:
        super().__init__()
        self.radius, self.causal = radius, causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, position_ids: Tensor, sequence_ids: Tensor) -> Tensor:
        radius, slopes = (None, SLOPES.clone()) if self.radius == ALIBI else (self.radius, None)
        mask = build_mask(position_ids, sequence_ids, radius, causal=self.causal, slopes=slopes)
        return attend(q, k, v, mask, SCALE)


@cache
def expected(rows: Rows, tokens: int, radius: int | None, causal: bool) -> Tensor:
    inputs = make_inputs(rows, tokens)
    q, k, v, positions, ids = (inputs[name] for name in NAMES)
    scores = (q.double() @ k.double().transpose(-2, -1)) * SCALE
    distance = positions[:, :, None] - positions[:, None, :]
    if radius == ALIBI:
        radius, scores = None, scores - SLOPES * distance[:, None].abs()
    attends = (ids[:, :, None] == ids[:, None, :]) & (distance.abs() <= (1e9 if radius is None else radius))
    if causal:
        attends &= distance >= 0
    probs = scores.masked_fill(~attends[:, None], -torch.inf).softmax(dim=-1)
    return probs @ v.double()


def make_inputs(rows: Rows, tokens: int) -> Inputs:
    """Return random inputs, with padding after the sequences of each row."""
    generator = torch.Generator().manual_seed(tokens)
    shape = (len(rows), HEADS, tokens, HEAD_SIZE)
    inputs = {name: torch.randn(shape, generator=generator) for name in ("q", "k", "v")}
    positions = torch.zeros(len(rows), tokens, dtype=torch.int64)
    ids = torch.zeros_like(positions)
    for row, lengths in enumerate(rows):
        for number, (start, stop) in enumerate(pairwise(np.cumsum([0, *lengths])), start=1):
            positions[row, start:stop] = torch.arange(stop - start)
            ids[row, start:stop] = number
    return inputs | {"position_ids": positions, "sequence_ids": ids}


CASES: list[tuple[Rows, int]] = [
    (((16,),), 16),
    (((7, 1, 20), (40,), (3, 30, 7)), 48),
    (((100, 300, 90),), 512),
    (((MAX_DENSE_TOKENS,),), MAX_DENSE_TOKENS),
    (((MAX_DENSE_TOKENS + 1,),), MAX_DENSE_TOKENS + BLOCK_TOKENS),
    (((MAX_DENSE_TOKENS + BLOCK_TOKENS,),), MAX_DENSE_TOKENS + BLOCK_TOKENS),
    (((1500,),), 1664),
]
RAGGED: list[tuple[Rows, int]] = [(((MAX_DENSE_TOKENS + 1,),), MAX_DENSE_TOKENS + 1), (((1100,),), 1115)]
"""Long rows that are no multiple of a block."""


def max_error(output: Any, rows: Rows, tokens: int, radius: int | None, causal: bool) -> float:
    """Return the largest difference in tokens of sequences. Padding must be finite."""
    output = torch.as_tensor(output)
    assert torch.isfinite(output).all()
    difference = (output - expected(rows, tokens, radius, causal)).abs().transpose(1, 2)  # (R, T, H, d)
    return float(difference[make_inputs(rows, tokens)["sequence_ids"] > 0].max())


@cache
def graph(directory: Path, radius: int | None, causal: bool) -> Path:
    path = directory / f"{radius}-{causal}" / "attention.onnx"
    path.parent.mkdir()
    examples = {name: value.clone() for name, value in make_inputs(((16,), (16,)), 16).items()}
    axes = {name: {0: "R", 1: "T"} if name.endswith("ids") else {0: "R", 2: "T"} for name in NAMES}
    write_graph(Attention(radius, causal), path, "attention.bin", GraphSignature(examples, axes, ("output",)))
    return path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attention")


@pytest.mark.parametrize(("radius", "causal"), KINDS)
@pytest.mark.parametrize(("rows", "tokens"), [*CASES, *RAGGED])
def test_attend_matches_masked_softmax(rows: Rows, tokens: int, radius: int | None, causal: bool) -> None:
    inputs = make_inputs(rows, tokens)
    assert max_error(Attention(radius, causal)(**inputs), rows, tokens, radius, causal) < 2e-5


@pytest.mark.parametrize(("radius", "causal"), KINDS)
def test_exported_attention_matches_masked_softmax_in_onnxruntime(
    directory: Path, radius: int | None, causal: bool
) -> None:
    session = onnxruntime.InferenceSession(graph(directory, radius, causal), providers=["CPUExecutionProvider"])
    for rows, tokens in [*CASES, *RAGGED]:
        inputs = make_inputs(rows, tokens)
        (output,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        assert max_error(output, rows, tokens, radius, causal) < 2e-5, (rows, tokens)


@pytest.mark.parametrize(("precision", "tolerance"), [("f32", 2e-5), ("bf16", 0.05)])
@pytest.mark.parametrize(("radius", "causal"), KINDS)
def test_fused_attention_matches_masked_softmax_in_openvino(
    directory: Path, radius: int | None, causal: bool, precision: str, tolerance: float
) -> None:
    compiled = compile_fused(graph(directory, radius, causal), precision)
    for rows, tokens in CASES:
        inputs = make_inputs(rows, tokens)
        used = {port.any_name for port in compiled.inputs}  # without the positions, if there is neither limit
        output = compiled({name: value.numpy() for name, value in inputs.items() if name in used})[0]
        assert max_error(output, rows, tokens, radius, causal) < tolerance, (rows, tokens)


@pytest.mark.parametrize(("radius", "causal"), KINDS)
def test_fused_attention_is_one_kernel_without_scores(directory: Path, radius: int | None, causal: bool) -> None:
    compiled = compile_fused(graph(directory, radius, causal), "f32")
    kinds = [operation.get_rt_info()["layerType"].value for operation in compiled.get_runtime_model().get_ops()]
    assert "Subgraph" in kinds
    assert not {"If", "Loop", "TensorIterator", "Softmax", "MatMul"} & set(kinds)


def test_define_attention_leaves_standard_operators_only(directory: Path) -> None:
    model = onnx_ir.load(graph(directory, 16, False))
    assert {node.domain for node in model.graph.all_nodes()} == {""}
    assert not model.functions
    value = model.graph.initializers[FUSED].const_value
    assert value is not None
    assert not value.numpy()


def compile_fused(path: Path, precision: str) -> Any:
    """Compile like the OpenVINO backend, which sets the constant `FUSED`."""
    graphs = {"fast": SimpleNamespace(file=path)}
    artifact: Any = SimpleNamespace(manifest=SimpleNamespace(graphs=graphs), read=Path.read_bytes)
    core = import_openvino().Core()
    return core.compile_model(read_model(core, artifact, "fast"), "CPU", {"INFERENCE_PRECISION_HINT": precision})
