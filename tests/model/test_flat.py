"""The flat encoder: the same vectors as the encoder's, whatever else is in the row."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from model.artifact import Pooling
from model.checkpoint import load_checkpoint
from model.encoder import Encoder
from model.flat import FlatEncoder, Packing, count, flat_signature, packed_attention, part_names, pool
from model.parity import pack, pack_flat
from tests.model.flat_texts import FAMILIES, random_texts

Publish = Callable[[str], Path]

LENGTHS = (7, 1, 29, 12)


@pytest.fixture(scope="module")
def encoder(published: Path) -> Encoder:
    """A tiny BERT."""
    return load_checkpoint(published).encoder


def bounds_of(*lengths: int) -> Tensor:
    return torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32)


def packing_of(*lengths: int) -> Packing:
    return Packing(torch.zeros(len(lengths), max(lengths), dtype=torch.int32), bounds_of(*lengths))


def random_parts(tokens: int, width: int = 24) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return [torch.randn(tokens, width, generator=generator) for _ in range(3)]


def run(module: FlatEncoder, row: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int32]]]) -> list[Tensor]:
    with torch.inference_mode():
        return list(module(**{name: torch.from_numpy(values) for name, values in row.items()}))


def test_packed_attention_is_torchs_own_of_each_text() -> None:
    """Segment by segment, each as if it were alone."""
    query, key, value = random_parts(21)
    mixed = packed_attention(query, key, value, packing_of(8, 1, 12), heads=3)
    for start, end in ((0, 8), (8, 9), (9, 21)):
        q, k, v = (part[start:end].view(1, -1, 3, 8).transpose(1, 2) for part in (query, key, value))
        alone = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 24)
        torch.testing.assert_close(mixed[start:end], alone)


def test_packed_attention_leaves_what_no_segment_covers() -> None:
    """As NaN, which no one can take for a number; empty segments between others change nothing."""
    query, key, value = random_parts(13)
    mixed = packed_attention(query, key, value, packing_of(4, 0, 6, 0), heads=3)
    assert torch.isnan(mixed[10:]).all()
    expected = packed_attention(query[:10], key[:10], value[:10], packing_of(4, 6), heads=3)
    torch.testing.assert_close(mixed[:10], expected, rtol=0, atol=0)


def test_packed_attention_sums_in_float32() -> None:
    """Half in, half out, and no more lost than rounding both takes."""
    query, key, value = (part.half() for part in random_parts(40))
    mixed = packed_attention(query, key, value, packing_of(40), heads=3)
    exact = packed_attention(query.float(), key.float(), value.float(), packing_of(40), heads=3)
    assert mixed.dtype == torch.float16
    torch.testing.assert_close(mixed, exact.half(), rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_encoders_vectors(publish: Publish, family: str) -> None:
    """With every part in float32 only attention rounds."""
    encoder = load_checkpoint(publish(family)).encoder
    texts = random_texts(encoder, LENGTHS)
    hidden, pooled = run(FlatEncoder(encoder, "mean", part_names(encoder)), pack_flat(texts))
    with torch.inference_mode():
        packed = {name: torch.from_numpy(values) for name, values in pack(texts).items()}
        expected = encoder(**packed)[0]
    scale = float(expected.abs().max())
    assert float((hidden - expected).abs().max()) < 2e-3 * scale
    means = torch.stack([part.mean(dim=0) for part in torch.split(expected, list(LENGTHS))])
    assert float((pooled - means).abs().max()) < 2e-3 * scale


def test_a_text_gives_the_same_vectors_in_any_company(encoder: Encoder) -> None:
    """Before or after others, and beside empty segments."""
    module = FlatEncoder(encoder, "mean", part_names(encoder))
    first, second, third = random_texts(encoder, (9, 17, 4))
    alone = run(module, pack_flat([second]))
    row = pack_flat([third, second, first])
    row["cu_seqlens"] = np.array([0, 4, 4, 21, 30, 30], dtype=np.int32)
    hidden, pooled = run(module, row)
    torch.testing.assert_close(hidden[4:21], alone[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(pooled[2], alone[1][0], rtol=1e-4, atol=1e-4)
    assert not pooled[[1, 4]].any()


def test_counting_knows_no_size() -> None:
    """Whatever the numbers are that it counts."""
    counted = count(torch.tensor([7, 0, -3, 9], dtype=torch.int32))
    assert (counted.tolist(), counted.dtype) == ([0, 1, 2, 3], torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_mean_is_the_mean(dtype: torch.dtype) -> None:
    """Of long texts and short ones, no matter how a share of 1/3 rounds; of none it is zero."""
    lengths = (3, 0, 500, 1, 17)
    hidden = torch.randn(521, 24, generator=torch.Generator().manual_seed(3)).to(dtype) + 4
    pooled = pool(hidden, count(hidden[:, 0].int()), bounds_of(*lengths), "mean")
    assert pooled.dtype == torch.float32
    for vector, part in zip(pooled, torch.split(hidden.float(), list(lengths)), strict=True):
        expected = part.mean(dim=0) if len(part) else torch.zeros(24)
        torch.testing.assert_close(vector, expected, rtol=1e-5 if dtype == torch.float32 else 6e-4, atol=0)


def test_the_mean_of_many_large_vectors_does_not_overflow() -> None:
    """Their sum would: 512 times 1000 is past the largest float16."""
    pooled = pool(torch.full((512, 8), 1000.0).half(), count(torch.ones(512).int()), bounds_of(512), "mean")
    torch.testing.assert_close(pooled, torch.full((1, 8), 1000.0), rtol=1e-3, atol=0)


def test_cls_is_the_first_vector() -> None:
    """Of each segment, zeros for an empty one, even where the row ends before it and ends in NaN."""
    hidden = torch.randn(10, 24, generator=torch.Generator().manual_seed(3)).half()
    hidden[9] = torch.nan
    pooled = pool(hidden, count(torch.ones(10).int()), bounds_of(4, 0, 6, 0), "cls")
    torch.testing.assert_close(pooled, torch.stack([hidden[0], hidden[0] * 0, hidden[4], hidden[0] * 0]).float())


@pytest.mark.parametrize(("pooling", "outputs"), [("mean", 2), ("cls", 2), ("max", 1)])
def test_max_pooling_is_left_to_the_host(encoder: Encoder, pooling: Pooling, outputs: int) -> None:
    """There is one output then, and the signature says so."""
    module = FlatEncoder(encoder, pooling)
    assert len(run(module, pack_flat(random_texts(encoder, (5,))))) == outputs == len(flat_signature(module).outputs)


def test_the_encoder_is_left_as_it_was(encoder: Encoder) -> None:
    """Narrowing works on a copy."""
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    FlatEncoder(encoder, "mean")
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    assert encoder.state_dict().keys() == before.keys()


def test_parts_are_narrow_but_for_those_that_are_kept(encoder: Encoder) -> None:
    """By name; the first gives layer 0."""
    assert part_names(encoder) == ("embeddings", "block 1", "block 2")
    module = FlatEncoder(encoder, "mean", ("block 1",))
    parts = (module.embeddings, *module.blocks)
    found = [{parameter.dtype for parameter in part.parameters()} for part in parts]
    assert found == [{torch.float16}, {torch.float32}, {torch.float16}]
