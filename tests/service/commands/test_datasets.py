"""Files of labeled texts: duplicates, limits and errors."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.commands import labeled_texts as datasets
from service.commands.labeled_texts import (
    AttributionLine,
    TextError,
    read_records,
    read_retrieval,
    read_similarity,
    read_words,
)

PAIR = {"text1": "a", "text2": "b", "score": 1}
WORDS = {"text1": "a b", "word_index1": 0, "text2": "b a", "start2": 2, "end2": 3, "same": True}
DECIDED = {"text": "a b c", "word_index": 1, "deciding_index": 0}
SECRET = "swordfish"
read_attribution = partial(read_records, kind=AttributionLine)


def write(path: Path, *lines: Any) -> Path:
    file = path / "file.jsonl"
    file.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return file


def test_pairs_keep_numbers_and_ignore_further_fields(tmp_path: Path) -> None:
    file = write(tmp_path, PAIR, PAIR | {"score": 0.5, "split": "test"}, PAIR | {"score": -2e3}, PAIR)
    data = read_similarity(file, 3)
    assert [(pair.line, pair.text1, pair.text2, pair.score) for pair in data.lines] == [
        (1, "a", "b", 1), (2, "a", "b", 0.5), (3, "a", "b", -2000)
    ]  # fmt: skip
    assert (data.file.lines_read, data.file.is_complete) == (3, False)
    assert read_similarity(file, 4).file.is_complete


def test_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    file = write(tmp_path, b"\xef\xbb\xbf" + json.dumps(DECIDED).encode())
    assert read_attribution(file, 1).lines[0].text == "a b c"


def test_queries_and_documents_are_distinct(tmp_path: Path) -> None:
    """Lines with the same query are merged."""
    file = write(
        tmp_path, {"query": "q", "positive": ["d0", "d1", "d0"]}, {"document": "d2"}, {"query": "r", "positive": "d1"},
        {"query": "q", "positive": "d3"}, {"document": "d0"},
    )  # fmt: skip
    data = read_retrieval(file, 10)
    assert data.queries == (("line 1: query", "q"), ("line 3: query", "r"))
    assert [text for _, text in data.documents] == ["d0", "d1", "d2", "d3"]
    assert data.relevant == ((0, 1, 3), (1,))
    assert data.documents[3][0] == "line 4: positive"


def test_words_are_indices_or_characters(tmp_path: Path) -> None:
    other = WORDS | {"same": False}
    data = read_words(write(tmp_path, WORDS, WORDS, other, other), 10)
    first, second = data.lines[0].places
    assert (first.word_index, first.start, first.end) == (0, None, None)
    assert (second.word_index, second.start, second.end) == (None, 2, 3)
    assert [pair.same for pair in data.lines] == [True, True, False, False]
    assert (second.line, second.side) == (1, 2)


@pytest.mark.parametrize("read", [read_similarity, read_retrieval, read_words, read_attribution])
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "empty. Add lines."),
        (b" \n", "line 1: empty or blank. Remove it."),
        (b"swordfish", "line 1: not JSON. Write one JSON object per line."),
        (b'{"score": NaN}', "line 1: not JSON. Write one JSON object per line."),
        (b'["swordfish"]', "line 1: not a JSON object. Write one JSON object per line."),
        (b'"\xff"', "line 1: not UTF-8. Send text in UTF-8."),
    ],
)
def test_file_without_objects_is_named(
    tmp_path: Path, read: Callable[[Path, int], object], body: bytes, problem: str
) -> None:
    check_error(read, write(tmp_path, body), problem)


def test_missing_file_is_named(tmp_path: Path) -> None:
    check_error(read_words, tmp_path / "none", "cannot be read (No such file or directory). Check the path.")


def check_error(read: Callable[[Path, int], object], file: Path, problem: str) -> None:
    """Check the start of the message, which must not contain any text."""
    with pytest.raises(TextError) as raised:
        read(file, 100)
    assert str(raised.value).startswith(f"{file}: {problem}")
    assert SECRET not in str(raised.value)


def without(line: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != field}


@pytest.mark.parametrize(
    ("read", "line", "problem"),
    [
        (read_similarity, PAIR | {"text1": None}, "text1: must be a valid string."),
        (read_similarity, PAIR | {"text2": " \t"}, "text2: empty or blank."),
        (read_similarity, PAIR | {"score": SECRET}, "score: must be a valid number."),
        (read_similarity, PAIR | {"score": True}, "score: must be a valid number."),
        (read_similarity, PAIR | {"score": -1e10}, "score: must be greater than or equal to -1000000000."),
        (read_retrieval, {"positive": "d"}, "query: missing."),
        (read_retrieval, {"query": "q"}, "positive: missing."),
        (read_retrieval, {"query": "q", "positive": []}, "positive: must have at least 1 item"),
        (read_retrieval, {"query": "q", "positive": ["d", 3]}, "positive[1]: must be a valid string."),
        (read_retrieval, {"query": "q", "document": "d"}, "document: set together with query or positive."),
        (read_words, WORDS | {"same": 1}, "same: must be a valid boolean."),
        (read_words, WORDS | {"word_index1": -1}, "word_index1: must be greater than or equal to 0."),
        (read_words, WORDS | {"end1": 2}, "word_index1: set, like start1 and end1."),
        (read_words, WORDS | {"start2": 3}, "start2, end2: not a range (3 to 3, limit 3)."),
        (read_words, WORDS | {"end2": 4}, "start2, end2: not a range (2 to 4, limit 3)."),
        (read_words, without(WORDS, "word_index1"), "word_index1: not set, like start1 and end1."),
        (read_words, without(WORDS, "start2"), "start2, end2: not a range (None to 3, limit 3)."),
        (read_words, without(WORDS, "same"), "same: missing. Add it."),
        (read_attribution, DECIDED | {"deciding_index": "0"}, "deciding_index[0]: must be a valid integer."),
        (read_attribution, DECIDED | {"deciding_index": [0, 1]}, "deciding_index[1]: equal to word_index (1)."),
    ],
)  # fmt: skip
def test_invalid_line_is_named(
    tmp_path: Path, read: Callable[[Path, int], object], line: dict[str, Any], problem: str
) -> None:
    check_error(read, write(tmp_path, line), f"line 1: {problem}")


def test_too_little_data_is_named(tmp_path: Path) -> None:
    check_error(read_similarity, write(tmp_path, PAIR, PAIR), "too few lines (2, limit 3). Add lines.")
    check_error(
        read_similarity, write(tmp_path, PAIR, PAIR, PAIR), "score: equal in all lines. Add lines with other scores."
    )
    check_error(read_words, write(tmp_path, WORDS, WORDS), "same: too few lines with false (0, limit 2). Add lines.")
    problem = "query: missing in all lines. Add lines with query and positive."
    check_error(read_retrieval, write(tmp_path, {"document": "d"}), problem)


def test_number_of_documents_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "MAX_DOCUMENTS", 2)
    file = write(tmp_path, {"query": "q", "positive": ["a", "b"]}, {"document": "b"}, {"document": "c"})
    problem = "line 3: document: too many distinct documents (3, limit 2). Reduce --limit or remove lines."
    check_error(read_retrieval, file, problem)


def test_deciding_words_are_an_index_or_an_array(tmp_path: Path) -> None:
    file = write(tmp_path, DECIDED, DECIDED | {"deciding_index": [0, 2], "reference": "r"})
    data = read_attribution(file, 10)
    assert [line.deciding_index for line in data.lines] == [[0], [0, 2]]
    assert [line.reference for line in data.lines] == [None, "r"]
