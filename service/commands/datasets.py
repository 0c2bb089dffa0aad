"""Labeled texts from files of JSON lines: pairs with scores, queries with documents, words in pairs of texts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from model.tokenizer import Offsets
from service.commands.encoding import TextError
from service.commands.lines import read_lines
from service.errors import ServiceError

MAX_SCORE = 1e9
MAX_DOCUMENTS = 100_000
MIN_PAIRS = 3
MIN_PER_CLASS = 2

Side = Literal[1, 2]
SIDES: tuple[Side, Side] = (1, 2)


@dataclass(frozen=True)
class LabeledFile:
    """The part of a file that was read."""

    path: Path
    lines_read: int
    is_complete: bool
    """True if the limit left no line unread."""


@dataclass(frozen=True)
class ScoredPair:
    """Two texts and the similarity that people assigned."""

    line: int
    texts: tuple[str, str]
    score: float


@dataclass(frozen=True)
class SimilarityData:
    file: LabeledFile
    pairs: tuple[ScoredPair, ...]


@dataclass(frozen=True)
class Text:
    """A text and the place of its first occurrence: `line 3: positive[0]`."""

    label: str
    text: str


@dataclass(frozen=True)
class RetrievalData:
    """Distinct queries, distinct documents, and the indices of the documents that are relevant to each query."""

    file: LabeledFile
    queries: tuple[Text, ...]
    documents: tuple[Text, ...]
    relevant: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class WordPlace:
    """A word of a text: the index of the word, or its characters [start, end)."""

    line: int
    side: Side
    text: str
    word_index: int | None
    span: Offsets | None

    @property
    def label(self) -> str:
        return f"line {self.line}: text{self.side}"


@dataclass(frozen=True)
class WordPair:
    """A word in two texts, and whether it has the same sense in both."""

    places: tuple[WordPlace, WordPlace]
    same: bool


@dataclass(frozen=True)
class WordData:
    file: LabeledFile
    pairs: tuple[WordPair, ...]


class _Record:
    """A line of a file: a JSON object. Every error names file, line and field, and never contains text."""

    def __init__(self, path: Path, line: int, fields: dict[str, Any]) -> None:
        self.line = line
        self._path = path
        self._fields = fields

    def __contains__(self, field: str) -> bool:
        return field in self._fields

    def error(self, field: str, problem: str, remedy: str) -> TextError:
        """Return an error of a field."""
        return TextError(f"{self._path}: line {self.line}: {field}: {problem}. {remedy}")

    def text(self, field: str) -> str:
        """Return a string that is not blank."""
        return self._text(field, self._value(field, "Add a string."))

    def texts(self, field: str) -> list[str]:
        """Return a string, or each string of an array that is not empty."""
        value = self._value(field, "Add a string or an array of strings.")
        if not isinstance(value, list):
            return [self._text(field, value)]
        if not value:
            raise self.error(field, "empty", "Add a string.")
        return [self._text(f"{field}[{index}]", item) for index, item in enumerate(value)]

    def number(self, field: str) -> float:
        """Return a finite number of moderate size."""
        value = self._value(field, "Add a number.")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(field, "not a number", "Use a number.")
        if not math.isfinite(value) or abs(value) > MAX_SCORE:
            limit = math.copysign(MAX_SCORE, value)
            raise self.error(field, f"out of range ({value:g}, limit {limit:g})", "Scale the scores.")
        return float(value)

    def index(self, field: str) -> int:
        """Return an integer >= 0."""
        value = self._value(field, "Add an integer.")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(field, "not an integer", "Use an integer.")
        if value < 0:
            raise self.error(field, f"out of range ({value}, limit 0)", "Use 0 or more.")
        return value

    def flag(self, field: str) -> bool:
        """Return true or false."""
        value = self._value(field, "Add true or false.")
        if not isinstance(value, bool):
            raise self.error(field, "not true or false", "Use true or false.")
        return value

    def _value(self, field: str, remedy: str) -> Any:
        if field not in self._fields:
            raise self.error(field, "missing", remedy)
        return self._fields[field]

    def _text(self, field: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self.error(field, "not a string", "Use a string.")
        if not value or value.isspace():
            raise self.error(field, "empty or blank", "Remove the line or add text.")
        return value


def read_similarity(path: Path, limit: int) -> SimilarityData:
    """Read pairs of texts and their scores. Raises `TextError`."""
    reader = _Reader(path, limit)
    pairs = tuple(
        ScoredPair(record.line, (record.text("text1"), record.text("text2")), record.number("score"))
        for record in reader.records()
    )
    if len(pairs) < MIN_PAIRS:
        raise TextError(f"{path}: too few lines ({len(pairs)}, limit {MIN_PAIRS}). Add lines.")
    if len({pair.score for pair in pairs}) < 2:
        raise TextError(f"{path}: score: equal in all lines. Add lines with other scores.")
    return SimilarityData(reader.file, pairs)


def read_retrieval(path: Path, limit: int) -> RetrievalData:
    """Read queries with their relevant documents, and further documents. Raises `TextError`.

    Lines with the same query are one query with the documents of all of them.
    """
    documents: dict[str, tuple[int, str]] = {}
    queries: dict[str, tuple[str, dict[int, None]]] = {}
    reader = _Reader(path, limit)
    for record in reader.records():
        if "document" in record:
            if "query" in record or "positive" in record:
                raise record.error("document", "set together with query or positive", "Use two lines.")
            texts, field = [record.text("document")], "document"
            relevant: dict[int, None] = {}
        else:
            query, texts, field = record.text("query"), record.texts("positive"), "positive"
            relevant = queries.setdefault(query, (f"line {record.line}: query", {}))[1]
        for text in texts:
            label = f"line {record.line}: {field}"
            relevant[documents.setdefault(text, (len(documents), label))[0]] = None
        if len(documents) > MAX_DOCUMENTS:
            problem = f"too many distinct documents ({len(documents)}, limit {MAX_DOCUMENTS})"
            raise record.error(field, problem, "Reduce --limit or remove lines.")
    if not queries:
        raise TextError(f"{path}: query: missing in all lines. Add lines with query and positive.")
    return RetrievalData(
        reader.file,
        tuple(Text(label, text) for text, (label, _) in queries.items()),
        tuple(Text(label, text) for text, (_, label) in documents.items()),
        tuple(tuple(relevant) for _, relevant in queries.values()),
    )


def read_words(path: Path, limit: int) -> WordData:
    """Read pairs of occurrences of a word, and whether the sense is the same. Raises `TextError`."""
    reader = _Reader(path, limit)
    pairs = tuple(WordPair((_place(record, 1), _place(record, 2)), record.flag("same")) for record in reader.records())
    for label in (True, False):
        count = sum(pair.same == label for pair in pairs)
        if count < MIN_PER_CLASS:
            name = str(label).lower()
            raise TextError(f"{path}: same: too few lines with {name} ({count}, limit {MIN_PER_CLASS}). Add lines.")
    return WordData(reader.file, pairs)


def _place(record: _Record, side: Side) -> WordPlace:
    text = record.text(f"text{side}")
    word, start, end = (f"{name}{side}" for name in ("word_index", "start", "end"))
    has_span = start in record or end in record
    if word in record and has_span:
        raise record.error(word, f"set together with {start} or {end}", f"Use {word}, or {start} and {end}.")
    if not has_span:
        if word not in record:
            raise record.error(word, "missing", f"Add it, or {start} and {end}.")
        return WordPlace(record.line, side, text, record.index(word), None)
    span = record.index(start), record.index(end)
    if span[0] >= span[1]:
        raise record.error(end, f"not after {start} ({span[1]})", f"Use a value over {span[0]}.")
    if span[1] > len(text):
        raise record.error(end, f"out of range ({span[1]}, limit {len(text)})", "Use characters of the text.")
    return WordPlace(record.line, side, text, None, span)


class _Reader:
    """The first `limit` lines of a file."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit
        self.file = LabeledFile(path, 0, is_complete=True)

    def records(self) -> Iterator[_Record]:
        """Yield the object of each line; then `file` is final. Raises `TextError`."""
        path, count, is_complete = self._path, 0, True
        try:
            with path.open("rb") as file:
                for number, line in read_lines(file):
                    if number > self._limit:
                        is_complete = False
                        break
                    yield _parse(path, number, line)
                    count = number
        except ServiceError as error:
            raise TextError(f"{path}: {error.message}") from None
        except OSError as error:
            raise TextError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
        if not count:
            raise TextError(f"{path}: empty. Write one JSON object per line.")
        self.file = LabeledFile(path, count, is_complete)


def _parse(path: Path, number: int, line: str) -> _Record:
    if not line or line.isspace():
        raise TextError(f"{path}: line {number}: empty or blank. Remove it.")
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise TextError(f"{path}: line {number}: not JSON. Write one JSON object per line.") from None
    if not isinstance(fields, dict):
        raise TextError(f"{path}: line {number}: not a JSON object. Write one JSON object per line.")
    return _Record(path, number, fields)
