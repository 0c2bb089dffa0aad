"""Text streams: file types, shuffling, exact resumption, and errors that name the line."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from model.train.config import TrainError
from model.train.data import Example, ExampleStream, read_labeled_pairs, read_pairs, read_texts

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
