"""Labeled texts from JSON lines: scored pairs, queries with documents, words in texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from service.commands.evaluate.records import (
    Index,
    OneOrMore,
    Record,
    Records,
    Score,
    Text,
    line_error,
    read_records,
    record_error,
)
from service.commands.lines import LabeledText, ReadFile, TextError

MAX_DOCUMENTS = 100_000
MIN_PAIRS = 3
MIN_PER_CLASS = 2

Side = Literal[1, 2]


class ScoredPair(Record):
    """Two texts and their human similarity score."""

    text1: Text
    text2: Text
    score: Score

    @property
    def labeled(self) -> tuple[LabeledText, LabeledText]:
        return (f"line {self.line}: text1", self.text1), (f"line {self.line}: text2", self.text2)


class RetrievalLine(Record):
    """A query with its relevant documents, or a further document."""

    query: Text | None = None
    positive: OneOrMore[Text] | None = None
    document: Text | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.document is not None and (self.query is not None or self.positive is not None):
            raise record_error("document: set together with query or positive. Use two lines.")
        for name in ("query", "positive") if self.document is None else ():
            if getattr(self, name) is None:
                raise record_error(f"{name}: missing. Add it.")
        return self


@dataclass(frozen=True)
class RetrievalData:
    """Distinct queries and documents, with the indices of each query's relevant documents.

    Labels are places where texts first occur, such as `line 3: positive`.
    """

    file: ReadFile
    queries: tuple[LabeledText, ...]
    documents: tuple[LabeledText, ...]
    relevant: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class WordPlace:
    """A word in a text: its word index, or its characters [start, end)."""

    line: int
    side: Side
    text: str
    word_index: int | None
    start: int | None
    end: int | None

    def check(self) -> None:
        """Raise an error of a validator unless there is either a word index or a range of characters."""
        word, start, end = (f"{name}{self.side}" for name in ("word_index", "start", "end"))
        if self.start is None and self.end is None:
            if self.word_index is None:
                raise record_error(f"{word}: missing. Add it, or {start} and {end}.")
        elif self.word_index is not None:
            raise record_error(f"{word}: set together with {start} or {end}. Use {word}, or {start} and {end}.")
        elif self.start is None or self.end is None:
            raise record_error(f"{start if self.start is None else end}: missing. Add it.")
        elif self.start >= self.end:
            raise record_error(f"{end}: not after {start} ({self.end}). Use a value over {self.start}.")
        elif self.end > len(self.text):
            raise record_error(f"{end}: out of range ({self.end}, limit {len(self.text)}). Use characters of the text.")


class WordPair(Record):
    """A word in two texts, and whether it has the same sense in both."""

    text1: Text
    word_index1: Index | None = None
    start1: Index | None = None
    end1: Index | None = None
    text2: Text
    word_index2: Index | None = None
    start2: Index | None = None
    end2: Index | None = None
    same: bool

    @property
    def places(self) -> tuple[WordPlace, WordPlace]:
        return (
            WordPlace(self.line, 1, self.text1, self.word_index1, self.start1, self.end1),
            WordPlace(self.line, 2, self.text2, self.word_index2, self.start2, self.end2),
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for place in self.places:
            place.check()
        return self


class AttributionLine(Record):
    """A target word of a text, the indices of the words that decide its sense, and a text to compare with."""

    text: Text
    word_index: Index
    deciding_index: OneOrMore[Index]
    reference: Text | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.word_index in self.deciding_index:
            field = f"deciding_index[{self.deciding_index.index(self.word_index)}]"
            raise record_error(f"{field}: equal to word_index ({self.word_index}). Use another word.")
        return self


def read_similarity(path: Path, limit: int) -> Records[ScoredPair]:
    """Read pairs of texts and their scores. Raises `TextError`."""
    data = read_records(path, limit, ScoredPair)
    if len(data.lines) < MIN_PAIRS:
        raise TextError(f"{path}: too few lines ({len(data.lines)}, limit {MIN_PAIRS}). Add lines.")
    if len({pair.score for pair in data.lines}) < 2:
        raise TextError(f"{path}: score: equal in all lines. Add lines with other scores.")
    return data


def read_retrieval(path: Path, limit: int) -> RetrievalData:
    """Read queries with their relevant documents, and further documents. Raises `TextError`.

    Lines with the same query are merged.
    """
    documents: dict[str, str] = {}
    queries: dict[str, str] = {}
    relevant: dict[str, dict[str, None]] = {}
    data = read_records(path, limit, RetrievalLine)
    for record in data.lines:
        field = "positive" if record.document is None else "document"
        texts = [record.document] if record.document is not None else record.positive or []
        for text in texts:
            documents.setdefault(text, f"line {record.line}: {field}")
        if record.query is not None:
            queries.setdefault(record.query, f"line {record.line}: query")
            relevant.setdefault(record.query, {}).update(dict.fromkeys(texts))
        if len(documents) > MAX_DOCUMENTS:
            problem = f"{field}: too many distinct documents ({len(documents)}, limit {MAX_DOCUMENTS})"
            raise line_error(path, record.line, f"{problem}. Reduce --limit or remove lines.")
    if not queries:
        raise TextError(f"{path}: query: missing in all lines. Add lines with query and positive.")
    index = {text: position for position, text in enumerate(documents)}
    return RetrievalData(
        data.file,
        tuple((label, text) for text, label in queries.items()),
        tuple((label, text) for text, label in documents.items()),
        tuple(tuple(index[text] for text in relevant[query]) for query in queries),
    )


def read_words(path: Path, limit: int) -> Records[WordPair]:
    """Read pairs of word occurrences and whether the sense is the same. Raises `TextError`."""
    data = read_records(path, limit, WordPair)
    for label in (True, False):
        count = sum(pair.same == label for pair in data.lines)
        if count < MIN_PER_CLASS:
            name = str(label).lower()
            raise TextError(f"{path}: same: too few lines with {name} ({count}, limit {MIN_PER_CLASS}). Add lines.")
    return data


def read_attribution(path: Path, limit: int) -> Records[AttributionLine]:
    """Read texts with a target word and its deciding words. Raises `TextError`."""
    return read_records(path, limit, AttributionLine)
