"""What float16 costs a model: rounding as a GPU rounds, and the parts that must stay in float32."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from model.accuracy import LEAST_COSINE, AccuracyError, Measure, RoundingToHalf, as_tokens, choose_kept, pool_texts
from model.artifact import Pooling
from model.checkpoint import load_checkpoint
from model.encoder import Block, Encoder
from model.flat import FlatEncoder, part_names
from model.parity import pack_flat
from model.tokenizer import Tokenizer
from tests.model.flat_texts import FAMILIES, random_texts

Publish = Callable[[str], Path]

LENGTHS = tuple(range(3, 39))


@pytest.fixture
def encoder(published: Path) -> Encoder:
    """A tiny BERT, the test's own."""
    return load_checkpoint(published).encoder


def overflow(encoder: Encoder, number: int) -> None:
    """Between the two maps of a block's feed-forward lie values past the largest float16; its output is ordinary."""
    block = encoder.blocks[number - 1]
    assert isinstance(block, Block)
    with torch.no_grad():
        block.feed_forward.inner.weight.mul_(20_000)
        block.feed_forward.inner.bias.mul_(20_000)
        block.feed_forward.outer.weight.div_(20_000)


def test_rounding_is_what_torchs_own_half_kernels_do(encoder: Encoder) -> None:
    """The same numbers up to the order of a sum, from kernels that share no code with ours."""
    module = FlatEncoder(encoder, "mean").eval()
    row = {name: torch.from_numpy(values) for name, values in pack_flat(random_texts(encoder, (7, 30))).items()}
    with torch.inference_mode():
        real = module(**row)
        with RoundingToHalf():  # type: ignore[no-untyped-call]
            ours = module(**row)
    assert [tensor.dtype for tensor in ours] == [torch.float16, torch.float32]
    np.testing.assert_allclose(ours[0].float().numpy(), real[0].float().numpy(), atol=0.02)


def test_rounding_overflows_where_half_does() -> None:
    """A product past 65,504 is infinite, though float32 holds it; float32 itself is left alone."""
    large = torch.tensor([[300.0]])
    with RoundingToHalf():  # type: ignore[no-untyped-call]
        assert torch.isinf(large.half() @ large.half())
        assert (large @ large).item() == 90_000
        assert large.half().float().dtype == torch.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_narrowed(publish: Publish, family: str) -> None:
    """Its vectors reach the bar, and the measured cosine is the one told."""
    encoder = load_checkpoint(publish(family)).encoder
    measure = Measure.of(encoder, "mean", random_texts(encoder, LENGTHS))
    found = choose_kept(measure)
    assert LEAST_COSINE <= found.min_cosine == measure.rounded(found.kept) < 1
    assert found.texts == len(LENGTHS)
    assert set(found.kept) <= set(part_names(encoder))


@pytest.mark.parametrize("number", [1, 2])
def test_the_block_that_overflows_is_kept(encoder: Encoder, number: int) -> None:
    """That one and no other."""
    texts = random_texts(encoder, LENGTHS)
    assert choose_kept(Measure.of(encoder, "mean", texts)).kept == ()
    overflow(encoder, number)
    measure = Measure.of(encoder, "mean", texts)
    assert measure.rounded(()) == -1
    found = choose_kept(measure)
    assert found.kept == (f"block {number}",)
    assert found.min_cosine >= LEAST_COSINE


def test_every_block_that_overflows_is_kept(encoder: Encoder) -> None:
    """Though keeping only one of them heals nothing."""
    overflow(encoder, 1)
    overflow(encoder, 2)
    assert choose_kept(Measure.of(encoder, "mean", random_texts(encoder, LENGTHS))).kept == ("block 1", "block 2")


def test_a_model_whose_attention_overflows_is_refused(encoder: Encoder) -> None:
    """Values past float16 inside attention cannot be helped: there is no kernel for them in float32."""
    block = encoder.blocks[0]
    assert isinstance(block, Block)
    with torch.no_grad():
        block.attention.value.bias.fill_(70_000)
        block.attention.output.bias.sub_(70_000 * block.attention.output.weight.sum(dim=1))
    with pytest.raises(AccuracyError, match="every part in float32 but attention"):
        choose_kept(Measure.of(encoder, "mean", random_texts(encoder, LENGTHS)))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_every_pooling_is_measured(encoder: Encoder, pooling: Pooling) -> None:
    """Whoever pools, the graph or the host."""
    texts = random_texts(encoder, (5, 9, 2))
    measure = Measure.of(encoder, pooling, texts)
    with torch.inference_mode():
        alone = [encoder(**{name: torch.from_numpy(values) for name, values in text.items()})[0] for text in texts]
    pools = {"mean": lambda part: part.mean(0), "cls": lambda part: part[0], "max": lambda part: part.amax(0)}
    np.testing.assert_allclose(measure.expected, torch.stack([pools[pooling](part) for part in alone]), atol=1e-5)
    assert LEAST_COSINE <= measure.rounded(()) < 1


def test_the_least_cosine_is_of_the_worst_text(encoder: Encoder) -> None:
    """In whichever row it is; what is not finite counts as worst."""
    texts = random_texts(encoder, (40,) * 30)
    measure = Measure.of(encoder, "mean", texts)
    assert len(measure.rows) > 2
    assert measure.few().texts <= measure.texts == 30
    vectors = iter([*measure.expected[:-1], -measure.expected[-1]])
    assert measure.least_cosine(lambda row: np.stack([next(vectors) for _ in row])) == pytest.approx(-1)
    assert measure.least_cosine(lambda row: np.full((len(row), 24), np.nan)) == -1
    known = iter(measure.expected * 3)
    assert measure.least_cosine(lambda row: np.stack([next(known) for _ in row])) == pytest.approx(1)


def test_texts_are_cut_to_what_the_model_takes(published: Path) -> None:
    """With their special tokens; a family of one type gets no other."""
    tokenizer = Tokenizer((published / "tokenizer.json").read_bytes())
    short, long = as_tokens(["money bank", "money bank " * 40], tokenizer, 11, types=1)
    assert (long["input_ids"].shape, short["input_ids"].shape[1] < 11) == ((1, 11), True)
    assert (long["input_ids"][0, 0], long["input_ids"][0, -1]) == (2, 3)
    assert not long["token_type_ids"].any()


def test_pooling_is_text_by_text() -> None:
    """Over a row of them."""
    hidden = np.arange(12.0).reshape(6, 2)
    texts = [{"input_ids": np.zeros((1, size))} for size in (1, 3, 2)]
    assert pool_texts(hidden, texts, "mean").tolist() == [[0, 1], [4, 5], [9, 10]]  # type: ignore[arg-type]
    assert pool_texts(hidden, texts, "cls").tolist() == [[0, 1], [2, 3], [8, 9]]  # type: ignore[arg-type]
    assert pool_texts(hidden, texts, "max").tolist() == [[0, 1], [6, 7], [10, 11]]  # type: ignore[arg-type]
