"""Text files and labeled texts in JSON lines, read up to a limit; errors name file, line and field, but no text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Generic, Literal, Self, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from model.artifact.console import EX_DATAERR, plain_message
from service.commands.arguments import CommandError
from service.errors import MalformedRequest, ServiceError

NumberedLine = tuple[int, str]
LabeledText = tuple[str, str]
"""A label for error messages ("line 3", "line 3: text1"), and the text."""


class TextError(CommandError):
    """An error in a file of texts. The message names file and line, and never contains text."""

    def __init__(self, message: str, status: int = EX_DATAERR) -> None:
        super().__init__(message, status)


@dataclass(frozen=True)
class ReadFile:
    """The part of a file that was read. `is_complete` is True if this is the whole file."""

    path: Path
    lines_read: int
    is_complete: bool

    def to_json(self) -> dict[str, Any]:
        """Return the part as JSON."""
        return {"file": str(self.path), "lines_read": self.lines_read, "complete": self.is_complete}


@dataclass(frozen=True)
class TextFile(ReadFile):
    """Distinct lines among the first lines of a file.

    Duplicates are dropped: they would be neighbors with tied similarities, in no particular order.
    """

    lines: tuple[NumberedLine, ...]

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"distinct": len(self.lines)}

    @property
    def labeled(self) -> list[LabeledText]:
        return [(f"line {number}", text) for number, text in self.lines]

    @classmethod
    def read(cls, path: Path, limit: int) -> "TextFile":
        """Read the first `limit` lines. Raises `TextError`."""
        file, lines = read_file(path, limit)
        numbers = {text: number for number, text in reversed(lines)}
        distinct = sorted((number, text) for text, number in numbers.items())
        return cls(path, file.lines_read, file.is_complete, tuple(distinct))


def read_lines(file: BinaryIO) -> Iterator[NumberedLine]:
    """Yield lines, numbered from 1, without line breaks and byte order mark. Raises `MalformedRequest` unless UTF-8."""
    for number, line in enumerate(file, start=1):
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise MalformedRequest("not UTF-8", "Send text in UTF-8.", field=f"line {number}") from None


def label_argument(label: str, text: str) -> LabeledText:
    """Return the labeled text. Raises `TextError` if it has surrogates: in arguments, they stand for invalid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TextError(f"{label}: not UTF-8. Send text in UTF-8.") from None
    return label, text


def read_file(path: Path, limit: int) -> tuple[ReadFile, list[NumberedLine]]:
    """Return the first `limit` lines of a file. Raises `TextError` if a line is blank, or if there are none."""
    lines: list[NumberedLine] = []
    is_complete = True
    try:
        with path.open("rb") as file:
            for number, text in read_lines(file):
                if number > limit:
                    is_complete = False
                    break
                if not text or text.isspace():
                    raise TextError(f"{path}: line {number}: empty or blank. Remove it.")
                lines.append((number, text))
    except ServiceError as error:
        raise TextError(f"{path}: {error.message}") from None
    except OSError as error:
        raise TextError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
    if not lines:
        raise TextError(f"{path}: empty. Add lines.")
    return ReadFile(path, len(lines), is_complete), lines


MAX_SCORE = 1e9


class Record(BaseModel):
    """An object of a file. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    line: int


T = TypeVar("T")
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Records(Generic[R]):
    """The records of a file."""

    file: ReadFile
    lines: tuple[R, ...]


def _check_text(text: str) -> str:
    if not text or text.isspace():
        raise ValueError("empty or blank. Remove the line or add text.")
    return text


Text = Annotated[str, AfterValidator(_check_text)]
Index = Annotated[int, Field(ge=0)]
Score = Annotated[float, Field(ge=-MAX_SCORE, le=MAX_SCORE)]
OneOrMore = Annotated[
    list[T], Field(min_length=1), BeforeValidator(lambda value: value if isinstance(value, list) else [value])
]
"""An item, or a non-empty array of items."""


def read_records(path: Path, limit: int, kind: type[R]) -> Records[R]:
    """Read the first `limit` lines of a file. Raises `TextError`, which names file, line and field, but no text."""
    file, lines = read_file(path, limit)
    return Records(file, tuple(_parse(path, number, line, kind) for number, line in lines))


def line_error(path: Path, line: int, problem: str) -> TextError:
    return TextError(f"{path}: line {line}: {problem}")


def _parse(path: Path, number: int, line: str, kind: type[R]) -> R:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise line_error(path, number, "not JSON. Write one JSON object per line.") from None
    if not isinstance(fields, dict):
        raise line_error(path, number, "not a JSON object. Write one JSON object per line.")
    try:
        return kind.model_validate({**fields, "line": number})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = "".join(f"[{step}]" if isinstance(step, int) else step for step in first["loc"])
        problem = f"{plain_message(first['msg'])}."
        raise line_error(path, number, f"{field}: {problem}" if field else problem) from None


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
        if self.document is None:
            for name in ("query", "positive"):
                if getattr(self, name) is None:
                    raise ValueError(f"{name}: missing. Add it.")
        elif self.query is not None or self.positive is not None:
            raise ValueError("document: set together with query or positive. Use two lines.")
        return self


@dataclass(frozen=True)
class RetrievalData:
    """Distinct queries and documents, labeled by their first place, and the indices of relevant documents."""

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
        has_range = self.start is not None or self.end is not None
        if (self.word_index is not None) == has_range:
            raise ValueError(f"{word}: {'set' if has_range else 'not set'}, like {start} and {end}. Set one of them.")
        if has_range and (self.start is None or self.end is None or not self.start < self.end <= len(self.text)):
            problem = f"{start}, {end}: not a range ({self.start} to {self.end}, limit {len(self.text)})"
            raise ValueError(f"{problem}. Use characters of the text.")


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
        first = WordPlace(self.line, 1, self.text1, self.word_index1, self.start1, self.end1)
        return first, WordPlace(self.line, 2, self.text2, self.word_index2, self.start2, self.end2)

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
            raise ValueError(f"{field}: equal to word_index ({self.word_index}). Use another word.")
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
