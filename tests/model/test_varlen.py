"""The varlen encoder, compared with the plain encoder."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from model.artifact.manifest import Pooling
from model.checkpoint import load_checkpoint
from model.encoder import DisentangledConfig, Encoder, EncoderConfig, LayerConfig, RelativeConfig, RotaryConfig
from model.export.cuda import (
    VarlenEncoder,
    packed_attention,
    part_names,
    pool_varlen,
    token_indices,
    varlen_signature,
)
from model.export.graphs import write_graph
from model.export.parity import open_reference_session, pack_varlen, run_varlen_graph
from tests.conftest import EXAMPLES
from tests.model.conftest import Publish, mark_slow
from tests.model.varlen_inputs import check_kernels, hide_last, random_sequences, run_alone, varlen_inputs

LENGTHS = (7, 1, 29, 12)
SCALE = 8**-0.5


@pytest.fixture(scope="module")
def encoder(published: Path) -> Encoder:
    return load_checkpoint(published).encoder


def test_packed_attention_adds_biases_to_joined_projections() -> None:
    parts, bias = random_qkv(9), torch.randn(3, 3, 8)
    context = packed_attention([torch.stack(parts, dim=2)], bias, varlen_inputs(9), SCALE)
    added = [part + of_part for part, of_part in zip(parts, bias, strict=True)]
    torch.testing.assert_close(context, packed_attention(added, None, varlen_inputs(9), SCALE))


def make_cu_seqlens(*lengths: int) -> Tensor:
    return torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32)


def random_qkv(tokens: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return [torch.randn(tokens, 3, 8, generator=generator) for _ in range(3)]


def run(module: VarlenEncoder, inputs: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int32]]]) -> list[Tensor]:
    with torch.inference_mode():
        return list(module(**{name: torch.from_numpy(values) for name, values in inputs.items()}))


def exact_varlen(encoder: Encoder, pooling: Pooling, *, has_unattended: bool = False) -> VarlenEncoder:
    """Return the varlen encoder in float32."""
    parts = part_names(encoder)
    return VarlenEncoder(encoder, pooling, parts, torch.float32, has_unattended=has_unattended).eval()


def test_packed_attention_equals_torch_attention_per_sequence() -> None:
    parts = random_qkv(21)
    context = packed_attention(parts, None, varlen_inputs(8, 1, 12), SCALE)
    for start, end in ((0, 8), (8, 9), (9, 21)):
        q, k, v = (part[start:end].transpose(0, 1).unsqueeze(0) for part in parts)
        alone = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 24)
        torch.testing.assert_close(context[start:end], alone)


def test_packed_attention_is_nan_past_last_sequence() -> None:
    """Empty sequences must not affect the others."""
    parts = random_qkv(13)
    context = packed_attention(parts, None, varlen_inputs(4, 0, 6, 0), SCALE)
    assert torch.isnan(context[10:]).all()
    expected = packed_attention([part[:10] for part in parts], None, varlen_inputs(4, 6), SCALE)
    torch.testing.assert_close(context[:10], expected, rtol=0, atol=0)


def test_packed_attention_accumulates_float16_in_float32() -> None:
    parts = [part.half() for part in random_qkv(40)]
    context = packed_attention(parts, None, varlen_inputs(40), SCALE)
    exact = packed_attention([part.float() for part in parts], None, varlen_inputs(40), SCALE)
    assert context.dtype == torch.float16
    torch.testing.assert_close(context, exact.half(), rtol=0, atol=0)


def test_token_indices_do_not_depend_on_input_ids() -> None:
    indices = token_indices(torch.tensor([7, 0, -3, 9], dtype=torch.int32))
    assert (indices.tolist(), indices.dtype) == ([0, 1, 2, 3], torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_mean_pooling_equals_mean_of_each_sequence(dtype: torch.dtype) -> None:
    """The weight 1/3 is inexact in float16. An empty sequence gives zeros."""
    lengths = (3, 0, 500, 1, 17)
    hidden = torch.randn(521, 24, generator=torch.Generator().manual_seed(3)).to(dtype) + 4
    pooled = pool_varlen(hidden, token_indices(hidden[:, 0].int()), make_cu_seqlens(*lengths), "mean")
    assert pooled.dtype == torch.float32
    for vector, part in zip(pooled, torch.split(hidden.float(), list(lengths)), strict=True):
        expected = part.mean(dim=0) if len(part) else torch.zeros(24)
        torch.testing.assert_close(vector, expected, rtol=1e-5 if dtype == torch.float32 else 6e-4, atol=0)


def test_mean_pooling_does_not_overflow_float16() -> None:
    """The sum of 512 values of 1000 exceeds the largest float16."""
    pooled = pool_varlen(
        torch.full((512, 8), 1000.0).half(), token_indices(torch.ones(512).int()), make_cu_seqlens(512), "mean"
    )
    torch.testing.assert_close(pooled, torch.full((1, 8), 1000.0), rtol=1e-3, atol=0)


def test_cls_pooling_returns_first_vector() -> None:
    """An empty sequence gives zeros, even if the batch ends there with NaN."""
    hidden = torch.randn(10, 24, generator=torch.Generator().manual_seed(3)).half()
    hidden[9] = torch.nan
    pooled = pool_varlen(hidden, token_indices(torch.ones(10).int()), make_cu_seqlens(4, 0, 6, 0), "cls")
    torch.testing.assert_close(pooled, torch.stack([hidden[0], hidden[0] * 0, hidden[4], hidden[0] * 0]).float())


@pytest.mark.parametrize(("pooling", "outputs"), [("mean", 2), ("cls", 2), ("max", 1)])
def test_max_pooling_is_not_part_of_graph(encoder: Encoder, pooling: Pooling, outputs: int) -> None:
    module = VarlenEncoder(encoder, pooling)
    assert (
        len(run(module, pack_varlen(random_sequences(encoder, (5,)))))
        == outputs
        == len(varlen_signature(module).outputs)
    )


def test_parts_are_float16_except_float32_parts(encoder: Encoder) -> None:
    assert part_names(encoder) == ("embeddings", "block 1", "block 2")
    module = VarlenEncoder(encoder, "mean", ("block 1",))
    parts = (module.embeddings, *module.blocks)
    dtypes = [{parameter.dtype for parameter in part.parameters()} for part in parts]
    assert dtypes == [{torch.float16}, {torch.float32}, {torch.float16}]


ROTARY = st.none() | st.builds(
    RotaryConfig, st.sampled_from([30.0, 100.0]), st.sampled_from([1.0, 2.0]), st.none() | st.just((2.0, 20))
)


RELATIVE = st.none() | st.builds(RelativeConfig, st.sampled_from([8, 32]), st.sampled_from([20, 128]))


DISTANCES = st.none() | st.builds(
    DisentangledConfig, st.sampled_from([6, 40]), st.sampled_from([0, 100]), *[st.booleans()] * 4
)


@st.composite
def encoders(draw: st.DrawFn) -> Encoder:
    """Draw the parts of an encoder, in any combination; each layer has its own positions and window."""
    layers = tuple(
        LayerConfig(draw(st.none() | st.integers(0, 90)), draw(ROTARY), draw(st.booleans())) for _ in range(3)
    )
    causal, relative = draw(st.booleans()), None
    if all(layer.window is None for layer in layers):
        relative = draw(RELATIVE)
    alibi = not causal and relative is None and all(layer.window is None for layer in layers) and draw(st.booleans())
    head_norm = draw(st.sampled_from(["none", "each", "joint"]))
    disentangled = draw(DISTANCES) if all(layer.window is None for layer in layers) and not alibi else None
    config = EncoderConfig(
        61, 32, 3, 4, 48, 200,
        type_vocab_size=draw(st.integers(0, 2)), norm_eps=1e-3,
        hidden_act=draw(st.sampled_from(["gelu", "silu"])),
        causal=causal, block=draw(st.sampled_from(["post", "double_post", "pre", "sandwich"])),
        norm=draw(st.sampled_from(["layer_norm", "layer_norm_without_bias", "rms_norm"])),
        position_table=draw(st.booleans()), embedding_norm=draw(st.booleans()),
        num_key_value_heads=4 if disentangled or head_norm == "joint" else draw(st.sampled_from([1, 2, 4])),
        head_size=draw(st.sampled_from([8, 10])),
        attention_scale=draw(st.sampled_from([0.0, 0.4])), attention_bias=draw(st.booleans()),
        attention_output_bias=draw(st.booleans()),
        query_key_norm=head_norm == "each", joint_query_key_norm=head_norm == "joint", gated=draw(st.booleans()),
        relative_bias=relative, alibi=alibi, disentangled=disentangled,
        layers=layers,
    )  # fmt: skip
    encoder = Encoder(config).eval()
    generator = torch.Generator().manual_seed(draw(st.integers(0, 3)))
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return encoder


BATCHES = st.lists(st.integers(1, 150), min_size=1, max_size=6)
UNATTENDED: st.SearchStrategy[list[int]] = st.just([]) | st.lists(st.integers(0, 20), min_size=6, max_size=6)
"""How many tokens at the end of each sequence no token attends to; empty for a model without such tokens."""


@pytest.fixture(autouse=True, scope="module")
def short_blocks() -> Iterator[None]:
    """Let some drawn windows be too long for blocks."""
    with mock.patch("model.export.cuda.MAX_BLOCK_REACH", 70):
        yield


@given(encoders(), BATCHES, UNATTENDED)
def test_any_encoder_equals_its_varlen_encoder(encoder: Encoder, lengths: list[int], unattended: list[int]) -> None:
    sequences = random_sequences(encoder, tuple(lengths))
    hide_last(encoder, sequences, unattended)
    module = exact_varlen(encoder, "mean", has_unattended=bool(unattended))
    hidden, _ = run(module, pack_varlen(sequences))
    expected = torch.cat(run_alone(encoder, sequences))
    torch.testing.assert_close(hidden, expected, rtol=0, atol=3e-5 * float(expected.abs().max()))


@pytest.mark.slow
@settings(max_examples=max(1, EXAMPLES // 10))  # an export takes seconds
@given(encoders(), st.lists(BATCHES, min_size=1, max_size=3), UNATTENDED)
def test_any_encoder_equals_its_graph(encoder: Encoder, batches: list[list[int]], unattended: list[int]) -> None:
    module = exact_varlen(encoder, "mean", has_unattended=bool(unattended))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "root" / "varlen.onnx"
        path.parent.mkdir()
        write_graph(module, path, "varlen.bin", varlen_signature(module))
        check_kernels(path)
        session = open_reference_session(path, "varlen.bin")
    for lengths in batches:
        sequences = random_sequences(encoder, tuple(lengths))
        hide_last(encoder, sequences, unattended)
        hidden, _ = run_varlen_graph(session, sequences, module.multiple)
        expected = torch.cat(run_alone(encoder, sequences)).numpy()
        np.testing.assert_allclose(hidden, expected, rtol=0, atol=3e-5 * np.abs(expected).max())


GRAPH_LENGTHS = ((7, 1, 29, 12), (150, 3, 70))
"""Both sides of windows, and more than one block of 64 tokens."""


@pytest.mark.parametrize("family", mark_slow("modernbert", "qwen3"))
def test_graph_equals_encoder(publish: Publish, family: str, tmp_path: Path) -> None:
    """In float32, with the operators of CUDA defined by standard ones."""
    checkpoint = load_checkpoint(publish(family))
    encoder, module = checkpoint.encoder, exact_varlen(checkpoint.encoder, "mean")
    (tmp_path / "root").mkdir()
    path = tmp_path / "root" / "varlen.onnx"
    write_graph(module, path, "varlen.bin", varlen_signature(module))
    check_kernels(path)
    session = open_reference_session(path, "varlen.bin")
    for lengths in GRAPH_LENGTHS:
        sequences = random_sequences(encoder, tuple(min(length, checkpoint.max_input_tokens) for length in lengths))
        hidden, pooled = run_varlen_graph(session, sequences, module.multiple)
        alone = run_alone(encoder, sequences)
        expected = torch.cat(alone).numpy()
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(hidden, expected, atol=2e-5 * scale)
        np.testing.assert_allclose(pooled, torch.stack([part.mean(0) for part in alone]), atol=2e-5 * scale)
