"""Packed batches: whole, unmodified sequences, BERT's masking, and exact resumption."""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.packing import BatchShape
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.train.config import MaskingOptions, TokenizerOptions, TrainError
from model.train.data import Example, ExampleStream, Item, PackedBatches, fill, read_texts, token_range
from model.train.objectives import IGNORED, Masking, predict_next
from model.train.tokenizers import MASK, SPECIAL_TOKENS, train_tokenizer
from tests.model.train.conftest import sentences

SHAPE = BatchShape(4, 24)
MASK_ID = SPECIAL_TOKENS.index(MASK)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    trained = train_tokenizer(TokenizerOptions(vocab_size=60), lambda: sentences(200))
    return Tokenizer(trained.to_str().encode())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(sentences(200)))
    return path


def batches(corpus: Path, tokenizer: Tokenizer, seed: int = 0) -> PackedBatches:
    examples = ExampleStream([corpus], read_alone, 20, seed)
    return PackedBatches(examples, tokenizer, SHAPE, Masking(MaskingOptions(), tokenizer.vocab_size), seed)


def read_alone(path: Path) -> Iterator[Example]:
    return (Example((text,)) for text in read_texts(path, "text"))


@given(sizes=st.lists(st.lists(st.integers(1, 24), min_size=1, max_size=4), max_size=40))
def test_fill_places_whole_items_without_overlap(sizes: list[list[int]]) -> None:
    pool = [Item([[number] * size for size in item], (str(number),)) for number, item in enumerate(sizes)]
    chosen, starts, rest = fill(pool, SHAPE)
    assert sorted(chosen + rest, key=lambda item: int(item.texts[0])) == pool
    used = np.zeros(SHAPE.tokens, dtype=int)
    for ids, start in zip([ids for item in chosen for ids in item.sequences], starts, strict=True):
        assert start // SHAPE.length == (start + len(ids) - 1) // SHAPE.length  # within one row
        used[start : start + len(ids)] += 1
    assert used.max(initial=0) <= 1
    free = SHAPE.length - used.reshape(SHAPE.rows, -1).sum(axis=1)
    assert all(len(item.sequences[0]) > free.max() for item in rest if len(item.sequences) == 1)


@pytest.mark.parametrize(
    ("span", "expected"), [((0, 5), "river"), ((6, 10), "bank"), ((0, 10), "riverbank"), ((11, 16), "")]
)
def test_span_is_the_tokens_that_it_overlaps(tokenizer: Tokenizer, span: tuple[int, int], expected: str) -> None:
    """The last span is truncated."""
    (tokens,) = tokenizer.encode([TokenizerInput("river bank money")])
    size = next(index for index, (start, _) in enumerate(tokens.offsets) if start == 11)
    kept = tokens.truncate(size + 1, "right")
    first, last = token_range(kept, span)
    assert "".join(tokenizer.token_texts(kept)[first:last]) == expected


def test_item_larger_than_a_batch_is_an_error(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("river bank money water boat check teller mud loan fish rain vault\n")
    examples = ExampleStream([tmp_path / "a.txt"], lambda path: iter([Example((path.read_text(),) * 9)]), 1, 0)
    batches = PackedBatches(examples, tokenizer, SHAPE, predict_next, seed=0)
    with pytest.raises(TrainError, match=r"run\.rows_per_batch: an example needs more than 4 rows"):
        next(batches)


def test_batches_restore_to_the_texts(corpus: Path, tokenizer: Tokenizer) -> None:
    """Without masking, each sequence contains the tokens of a text, with positions from 0."""
    sources = [TokenizerInput(text) for text in corpus.read_text().splitlines()]
    known = {tuple(item.truncate(24, "right").input_ids) for item in tokenizer.encode(sources)}
    for batch in islice(batches(corpus, tokenizer), 20):
        names = ("input_ids", "sequence_ids", "position_ids")
        ids, owners, positions = (batch.inputs[name].numpy().ravel() for name in names)
        labels = batch.targets["labels"].numpy().ravel()
        original = np.where(labels == IGNORED, ids, labels)
        for number in range(1, owners.max() + 1):
            assert tuple(original[owners == number]) in known
            assert list(positions[owners == number]) == list(range((owners == number).sum()))
            assert (labels[owners == number] != IGNORED).any()
        assert batch.tokens == (owners > 0).sum()
        assert (labels[owners == 0] == IGNORED).all()


def test_rows_are_nearly_full(corpus: Path, tokenizer: Tokenizer) -> None:
    filled = sum(batch.tokens for batch in islice(batches(corpus, tokenizer), 50)) / (50 * SHAPE.tokens)
    assert filled > 0.9


def test_masks_have_the_shares_of_bert() -> None:
    ids = [2, *range(5, 55), 3]
    masking, draw, kinds, count = Masking(MaskingOptions(), 1000), random.Random(0), np.zeros(3), 0
    for _ in range(2000):
        masked, labels = masking.mask(ids, draw)
        assert labels[0] == labels[-1] == IGNORED
        for token, new, label in zip(ids, masked, labels, strict=True):
            if label == IGNORED:
                assert new == token
            else:
                assert label == token
                kinds[0 if new == MASK_ID else 2 if new == token else 1] += 1
        count += len(ids) - 2
    assert kinds.sum() / count == pytest.approx(0.15, abs=0.005)
    assert kinds / kinds.sum() == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


@given(taken=st.integers(0, 12))
def test_batches_continue_from_their_state(
    taken: int, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    corpus = tmp_path_factory.mktemp("corpus") / "a.txt"
    corpus.write_text("\n".join(sentences(60)))
    stream, continued = batches(corpus, tokenizer), batches(corpus, tokenizer, seed=9)
    list(islice(stream, taken))
    continued.load_state_dict(stream.state_dict())
    for expected, actual in islice(zip(stream, continued, strict=False), 12):
        assert all((expected.inputs[name] == actual.inputs[name]).all() for name in expected.inputs)
        assert (expected.targets["labels"] == actual.targets["labels"]).all()


def test_texts_without_tokens_are_an_error(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A control character is text, but produces no token."""
    path = tmp_path / "a.txt"
    path.write_text("\u200b\n" * 5)
    with pytest.raises(TrainError, match=r"a\.txt: no text has a token"):
        next(batches(path, tokenizer))
