"""Training texts: files, shuffling, packed batches, masking and exact resumption."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from model.artifact.packing import BatchShape
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.train.config import MaskingOptions, TokenizerOptions, TrainError
from model.train.data import (
    Example,
    ExampleStream,
    Item,
    PackedBatches,
    fill,
    read_labeled_pairs,
    read_pairs,
    read_texts,
    token_range,
)
from model.train.objectives import IGNORED, Masking, predict_next
from model.train.tokenizers import MASK, SPECIAL_TOKENS, train_tokenizer
from tests.model.train.conftest import sentences

TEXTS = ["one", "two words", "drei Wörter hier"]


def write(path: Path, texts: list[str]) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(pa.table({"text": texts, "n": list(range(len(texts)))}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        path.write_text("\n".join([*texts, "", "  "]))
    return path


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".parquet"])
def test_every_file_type_has_the_same_texts(tmp_path: Path, suffix: str) -> None:
    assert list(read_texts(write(tmp_path / f"a{suffix}", TEXTS), "text")) == TEXTS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a \\ud800 b"}', "line 1: text: has a lone surrogate"),
        ("a.txt", b"good\n\xff\n", "line 2: not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1}\n', "line 2: text: not a string"),
        ("a.jsonl", b"{}\n", "line 1: text: missing"),
        ("a.jsonl", b"[]\n", "line 1: not a JSON object"),
        ("a.jsonl", b"[" * 100_000, "line 1: not a JSON object"),
        ("a.parquet", b"PAR1 no", "not a Parquet file"),
        ("a.csv", b"a", "unknown file type '.csv'"),
    ],
)
def test_unreadable_file_is_an_error(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TrainError) as raised:
        list(read_texts(path, "text"))
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)


def test_missing_file_and_missing_column_are_errors(tmp_path: Path) -> None:
    for suffix in ("txt", "jsonl", "parquet"):
        with pytest.raises(TrainError, match=r"cannot be read \(No such file"):
            list(read_texts(tmp_path / f"none.{suffix}", "text"))
    path = write(tmp_path / "a.parquet", TEXTS)
    with pytest.raises(TrainError, match=r"no column 'body'\. Its columns are text, n"):
        list(read_texts(path, "body"))
    with pytest.raises(TrainError, match="row 1: n: not a string"):
        list(read_texts(path, "n"))


def test_corpus_without_texts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="empty"):
        next(ExampleStream([write(tmp_path / "a.txt", [])], read_alone, 10, seed=0))


PAIRS = [("what is a river", "water that flows"), ("bank", "an institution", "a shore", "a bench")]
SPANS = ((0, 4), (0, 2), (2, 7), (2, 5))


def write_pairs(path: Path) -> Path:
    records = [{"query": query, "positive": positive, "negatives": negatives} for query, positive, *negatives in PAIRS]
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(records), path)
    else:
        del records[0]["negatives"]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_pairs_have_any_number_of_negatives(tmp_path: Path, suffix: str) -> None:
    assert list(read_pairs(write_pairs(tmp_path / f"a{suffix}"))) == [Example(texts) for texts in PAIRS]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_pairs_can_have_spans(tmp_path: Path, suffix: str) -> None:
    query, positive, *negatives = PAIRS[1]
    record = {"query": query, "positive": positive, "negatives": negatives, "spans": [list(span) for span in SPANS]}
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist([record]), path)
    else:
        path.write_text(json.dumps(record))
    assert list(read_pairs(path)) == [Example(PAIRS[1], SPANS)]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_labeled_pairs_have_one_document_each(tmp_path: Path, suffix: str) -> None:
    path = write_pairs(tmp_path / f"a{suffix}")
    expected = [
        Example((query, document), label=float(not number))
        for query, *documents in PAIRS
        for number, document in enumerate(documents)
    ]
    assert list(read_labeled_pairs(path)) == expected
    graded = [{"query": "a", "document": "b", "label": label} for label in (0, 0.25, 1)]
    if suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(graded), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in graded))
    assert list(read_labeled_pairs(path)) == [Example(("a", "b"), label=label) for label in (0, 0.25, 1)]


@pytest.mark.parametrize(
    ("read", "record", "message"),
    [
        (read_pairs, {"positive": "a"}, "line 1: query: missing"),
        (read_pairs, {"query": "a", "positive": ["b"]}, "line 1: positive: not a string"),
        (read_pairs, {"query": "a", "positive": "  "}, "line 1: positive: blank"),
        (read_pairs, {"query": "a", "positive": "b", "spans": [[0, 1]]}, "line 1: spans: 1 of 2 texts"),
        (read_pairs, {"query": "a", "positive": "b", "spans": 1}, "line 1: spans: not an array of 2 texts"),
        (
            read_pairs,
            {"query": "a", "positive": "b", "spans": [[0, 1], [0, 2]]},
            "line 1: spans[1]: outside of the text",
        ),
        (read_pairs, {"query": "a b", "positive": "b", "spans": [[1, 2], [0, 1]]}, "line 1: spans[0]: blank"),
        (read_pairs, {"query": "a", "positive": "b", "spans": [[0, 1], [1, 1]]}, "([1, 1], length 1)"),
        (read_pairs, {"query": "a", "positive": "b", "spans": [[0, 1], [0, True]]}, "line 1: spans[1]"),
        (read_pairs, {"query": "a", "positive": "b", "negatives": "c"}, "line 1: negatives: not an array"),
        (read_pairs, {"query": "a", "positive": "b", "negatives": ["c", 1]}, "line 1: negatives[1]: not a string"),
        (read_labeled_pairs, {"query": "a"}, "line 1: positive: missing"),
        (read_labeled_pairs, {"query": "a", "document": "b"}, "line 1: label: missing"),
        (read_labeled_pairs, {"query": "a", "document": "b", "label": True}, "line 1: label: not a number"),
        (read_labeled_pairs, {"query": "a", "document": "b", "label": 4}, "line 1: label: out of range (4)"),
        (
            read_labeled_pairs,
            {"query": "a", "document": "b", "label": 1, "negatives": ["c"]},
            "line 1: document: set together with",
        ),
    ],
)
def test_invalid_pair_is_an_error(
    tmp_path: Path, read: Callable[[Path], Iterator[Example]], record: dict[str, object], message: str
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    with pytest.raises(TrainError) as raised:
        list(read(tmp_path / "a.jsonl"))
    assert message in str(raised.value)


def test_pairs_in_a_text_file_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"unknown file type '.txt'\. Use .jsonl or .parquet"):
        list(read_pairs(tmp_path / "a.txt"))


def read_alone(path: Path) -> Iterator[Example]:
    return (Example((text,)) for text in read_texts(path, "text"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpus")
    return [write(folder / f"{part}.txt", [f"{part}{number}" for number in range(7 + part)]) for part in range(3)]


@given(buffer=st.integers(1, 40), seed=st.integers(0, 5))
def test_each_epoch_has_every_text_once(files: list[Path], buffer: int, seed: int) -> None:
    stream = ExampleStream(files, read_alone, buffer, seed)
    first, second = list(islice(stream, 24)), list(islice(stream, 24))
    assert Counter(first) == Counter(second)
    assert set(Counter(first).values()) == {1}


def test_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    for name, content in (("a.txt", "one\ntwo"), ("a.jsonl", '{"text": "one"}\n{"text": "two"}')):
        (tmp_path / name).write_text("\ufeff" + content, encoding="utf-8")
        assert list(read_texts(tmp_path / name, "text")) == ["one", "two"]


def test_shortened_data_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", TEXTS)
    stream = ExampleStream([path], read_alone, 2, seed=0)
    next(stream)
    state = stream.state_dict()
    write(path, TEXTS[:1])
    with pytest.raises(TrainError, match="fewer examples than before the interruption"):
        ExampleStream([path], read_alone, 2, seed=0).load_state_dict(state)


@given(buffer=st.integers(1, 40), taken=st.integers(0, 60), seed=st.integers(0, 5))
def test_stream_continues_from_its_state(files: list[Path], buffer: int, taken: int, seed: int) -> None:
    stream = ExampleStream(files, read_alone, buffer, seed)
    list(islice(stream, taken))
    continued = ExampleStream(files, read_alone, buffer, seed=99)
    continued.load_state_dict(stream.state_dict())
    assert list(islice(continued, 60)) == list(islice(stream, 60))


# Packed batches: whole, unmodified sequences, BERT's masking, and exact resumption.

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
