"""The varlen encoder, compared with the plain encoder."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from model.artifact.manifest import Pooling
from model.checkpoint import load_checkpoint
from model.encoder import Encoder
from model.export.cuda import (
    SequenceBounds,
    VarlenEncoder,
    packed_attention,
    part_names,
    pool_varlen,
    token_indices,
    varlen_signature,
)
from model.export.parity import pack_sequences, pack_varlen
from tests.model.varlen_inputs import FAMILIES, random_sequences

Publish = Callable[[str], Path]

LENGTHS = (7, 1, 29, 12)


@pytest.fixture(scope="module")
def encoder(published: Path) -> Encoder:
    return load_checkpoint(published).encoder


def make_cu_seqlens(*lengths: int) -> Tensor:
    return torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32)


def make_bounds(*lengths: int) -> SequenceBounds:
    return SequenceBounds(torch.zeros(len(lengths), max(lengths), dtype=torch.int32), make_cu_seqlens(*lengths))


def random_qkv(tokens: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return [torch.randn(tokens, 24, generator=generator) for _ in range(3)]


def run(module: VarlenEncoder, inputs: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int32]]]) -> list[Tensor]:
    with torch.inference_mode():
        return list(module(**{name: torch.from_numpy(values) for name, values in inputs.items()}))


def test_packed_attention_equals_torch_attention_per_sequence() -> None:
    query, key, value = random_qkv(21)
    context = packed_attention(query, key, value, make_bounds(8, 1, 12), num_heads=3)
    for start, end in ((0, 8), (8, 9), (9, 21)):
        q, k, v = (part[start:end].view(1, -1, 3, 8).transpose(1, 2) for part in (query, key, value))
        alone = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 24)
        torch.testing.assert_close(context[start:end], alone)


def test_packed_attention_is_nan_past_last_sequence() -> None:
    """Empty sequences must not affect the others."""
    query, key, value = random_qkv(13)
    context = packed_attention(query, key, value, make_bounds(4, 0, 6, 0), num_heads=3)
    assert torch.isnan(context[10:]).all()
    expected = packed_attention(query[:10], key[:10], value[:10], make_bounds(4, 6), num_heads=3)
    torch.testing.assert_close(context[:10], expected, rtol=0, atol=0)


def test_packed_attention_accumulates_float16_in_float32() -> None:
    query, key, value = (part.half() for part in random_qkv(40))
    context = packed_attention(query, key, value, make_bounds(40), num_heads=3)
    exact = packed_attention(query.float(), key.float(), value.float(), make_bounds(40), num_heads=3)
    assert context.dtype == torch.float16
    torch.testing.assert_close(context, exact.half(), rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_varlen_encoder_equals_encoder(publish: Publish, family: str) -> None:
    """All parts are float32, so rounding to float16 only happens in attention."""
    encoder = load_checkpoint(publish(family)).encoder
    sequences = random_sequences(encoder, LENGTHS)
    hidden, pooled = run(VarlenEncoder(encoder, "mean", part_names(encoder)), pack_varlen(sequences))
    with torch.inference_mode():
        packed = {name: torch.from_numpy(values) for name, values in pack_sequences(sequences).items()}
        expected = encoder(**packed)[0]
    scale = float(expected.abs().max())
    assert float((hidden - expected).abs().max()) < 2e-3 * scale
    means = torch.stack([part.mean(dim=0) for part in torch.split(expected, list(LENGTHS))])
    assert float((pooled - means).abs().max()) < 2e-3 * scale


def test_output_does_not_depend_on_batch_composition(encoder: Encoder) -> None:
    module = VarlenEncoder(encoder, "mean", part_names(encoder))
    first, second, third = random_sequences(encoder, (9, 17, 4))
    alone = run(module, pack_varlen([second]))
    inputs = pack_varlen([third, second, first])
    inputs["cu_seqlens"] = np.array([0, 4, 4, 21, 30, 30], dtype=np.int32)
    hidden, pooled = run(module, inputs)
    torch.testing.assert_close(hidden[4:21], alone[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(pooled[2], alone[1][0], rtol=1e-4, atol=1e-4)
    assert not pooled[[1, 4]].any()


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
