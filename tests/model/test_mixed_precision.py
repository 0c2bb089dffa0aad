"""Float16 emulation, and selecting the parts that need float32."""

from pathlib import Path

import numpy as np
import pytest
import torch

from model.artifact.manifest import Pooling
from model.artifact.tokenizer import Tokenizer
from model.checkpoint import load_checkpoint
from model.encoder import Block, Encoder
from model.export.cuda import (
    MIN_COSINE,
    AccuracyError,
    AccuracyTest,
    EmulatedFloat16,
    VarlenEncoder,
    choose_float32_parts,
    part_names,
    tokenize_texts,
)
from model.export.parity import pack_varlen
from tests.model.conftest import Publish, mark_slow
from tests.model.varlen_inputs import FAMILIES, random_sequences, run_alone

LENGTHS = tuple(range(3, 39))


@pytest.fixture
def encoder(published: Path) -> Encoder:
    """Return a tiny BERT that the test may modify."""
    return load_checkpoint(published).encoder


def make_block_overflow(encoder: Encoder, number: int) -> None:
    """Scale the feed-forward layers so that intermediate values exceed float16 without changing the output."""
    block = encoder.blocks[number - 1]
    assert isinstance(block, Block)
    with torch.no_grad():
        block.feed_forward.inner.weight.mul_(20_000)
        block.feed_forward.inner.bias.mul_(20_000)
        block.feed_forward.outer.weight.div_(20_000)


def test_emulated_float16_equals_torch_float16(encoder: Encoder) -> None:
    """The kernels share no code with the emulation, so the results are only equal up to summation order."""
    module = VarlenEncoder(encoder, "mean").eval()
    inputs = {
        name: torch.from_numpy(values) for name, values in pack_varlen(random_sequences(encoder, (7, 30))).items()
    }
    with torch.inference_mode():
        expected = module(**inputs)
        with EmulatedFloat16():  # type: ignore[no-untyped-call]
            emulated = module(**inputs)
    assert [tensor.dtype for tensor in emulated] == [torch.float16, torch.float32]
    np.testing.assert_allclose(emulated[0].float().numpy(), expected[0].float().numpy(), atol=0.02)


def test_emulated_float16_overflows_above_65504() -> None:
    large = torch.tensor([[300.0]])
    with EmulatedFloat16():  # type: ignore[no-untyped-call]
        assert torch.isinf(large.half() @ large.half())
        assert (large @ large).item() == 90_000
        assert large.half().float().dtype == torch.float32


@pytest.mark.parametrize("family", mark_slow(*FAMILIES, fast=("bert", "modernbert", "deberta-v2")))
def test_float16_reaches_min_cosine_for_every_family(publish: Publish, family: str) -> None:
    encoder = load_checkpoint(publish(family)).encoder
    test = AccuracyTest.from_sequences(encoder, "mean", random_sequences(encoder, LENGTHS))
    record = choose_float32_parts(test)
    assert MIN_COSINE <= record.min_cosine == test.min_cosine_float16(record.float32_parts) < 1
    assert record.texts == len(LENGTHS)
    assert set(record.float32_parts) <= set(part_names(encoder))


@pytest.mark.parametrize("numbers", [(1,), (2,), (1, 2)])
def test_overflowing_blocks_stay_in_float32(encoder: Encoder, numbers: tuple[int, ...]) -> None:
    """If there are several, moving only one of them to float32 does not help."""
    sequences = random_sequences(encoder, LENGTHS)
    assert choose_float32_parts(AccuracyTest.from_sequences(encoder, "mean", sequences)).float32_parts == ()
    for number in numbers:
        make_block_overflow(encoder, number)
    test = AccuracyTest.from_sequences(encoder, "mean", sequences)
    assert test.min_cosine_float16(()) == -1
    record = choose_float32_parts(test)
    assert record.float32_parts == tuple(f"block {number}" for number in numbers)
    assert record.min_cosine >= MIN_COSINE


def test_overflow_in_attention_is_rejected(encoder: Encoder) -> None:
    """Attention has no float32 kernel."""
    block = encoder.blocks[0]
    assert isinstance(block, Block)
    with torch.no_grad():
        block.attention.value.bias.fill_(70_000)
        block.attention.output.bias.sub_(70_000 * block.attention.output.weight.sum(dim=1))
    with pytest.raises(AccuracyError, match="all supported parts in float32"):
        choose_float32_parts(AccuracyTest.from_sequences(encoder, "mean", random_sequences(encoder, LENGTHS)))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_accuracy_is_measured_for_every_pooling(encoder: Encoder, pooling: Pooling) -> None:
    sequences = random_sequences(encoder, (5, 9, 2))
    test = AccuracyTest.from_sequences(encoder, pooling, sequences)
    alone = run_alone(encoder, sequences)
    functions = {"mean": lambda part: part.mean(0), "cls": lambda part: part[0], "max": lambda part: part.amax(0)}
    np.testing.assert_allclose(test.expected, torch.stack([functions[pooling](part) for part in alone]), atol=1e-5)
    assert MIN_COSINE <= test.min_cosine_float16(()) < 1


def test_min_cosine_comes_from_the_worst_text(encoder: Encoder) -> None:
    """The result must not depend on batching. If a value is not finite, it is -1."""
    sequences = random_sequences(encoder, (40,) * 30)
    test = AccuracyTest.from_sequences(encoder, "mean", sequences)
    assert len(test.batches) > 2
    assert test.head().texts <= test.texts == 30
    vectors = iter([*test.expected[:-1], -test.expected[-1]])
    assert test.min_cosine(lambda batch: np.stack([next(vectors) for _ in batch])) == pytest.approx(-1)
    assert test.min_cosine(lambda batch: np.full((len(batch), 24), np.nan)) == -1
    expected = iter(test.expected * 3)
    assert test.min_cosine(lambda batch: np.stack([next(expected) for _ in batch])) == pytest.approx(1)


def test_tokenize_texts_truncates_to_max_input_tokens(published: Path) -> None:
    tokenizer = Tokenizer((published / "tokenizer.json").read_bytes())
    short, long = tokenize_texts(["money bank", "money bank " * 40], tokenizer, 11, type_vocab_size=1)
    assert (long["input_ids"].shape, short["input_ids"].shape[1] < 11) == ((1, 11), True)
    assert (long["input_ids"][0, 0], long["input_ids"][0, -1]) == (2, 3)
    assert not long["token_type_ids"].any()
