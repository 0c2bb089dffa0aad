"""Streams of texts: file types, shuffling, exact continuation, and errors that name the line."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from model.train.config import TrainError
from model.train.corpus import TextStream, read_texts

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
        ("a.txt", b"good\n\xff\n", "line 2 is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1}\n', "line 2 has no string 'text'"),
        ("a.jsonl", b"{}\n", "line 1 has no string 'text'"),
        ("a.jsonl", b"[]\n", "line 1 has no string 'text'"),
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
    with pytest.raises(TrainError, match="no such file"):
        read_texts(tmp_path / "a.txt", "text")
    path = write(tmp_path / "a.parquet", TEXTS)
    with pytest.raises(TrainError, match="no column 'body'"):
        list(read_texts(path, "body"))
    with pytest.raises(TrainError, match="values that are not strings"):
        list(read_texts(path, "n"))


def test_corpus_without_texts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="no texts"):
        next(TextStream([write(tmp_path / "a.txt", [])], "text", 10, seed=0))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpus")
    return [write(folder / f"{part}.txt", [f"{part}{number}" for number in range(7 + part)]) for part in range(3)]


@given(buffer=st.integers(1, 40), seed=st.integers(0, 5))
def test_each_epoch_has_every_text_once(files: list[Path], buffer: int, seed: int) -> None:
    stream = TextStream(files, "text", buffer, seed)
    first, second = list(islice(stream, 24)), list(islice(stream, 24))
    assert Counter(first) == Counter(second)
    assert set(Counter(first).values()) == {1}


@given(buffer=st.integers(1, 40), taken=st.integers(0, 60), seed=st.integers(0, 5))
def test_stream_continues_from_its_state(files: list[Path], buffer: int, taken: int, seed: int) -> None:
    stream = TextStream(files, "text", buffer, seed)
    list(islice(stream, taken))
    continued = TextStream(files, "text", buffer, seed=99)
    continued.load_state_dict(stream.state_dict())
    assert list(islice(continued, 60)) == list(islice(stream, 60))
