"""Labeled texts from JSON lines: scored pairs, queries with documents, words in texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model.tokenizer import Offsets
from service.commands.encoding import TextError
from service.commands.evaluate.records import LabeledFile, Reader, Record

MAX_DOCUMENTS = 100_000
MIN_PAIRS = 3
MIN_PER_CLASS = 2

Side = Literal[1, 2]
SIDES: tuple[Side, Side] = (1, 2)


@dataclass(frozen=True)
class ScoredPair:
    """Two texts and their human similarity score."""

    line: int
    texts: tuple[str, str]
    score: float


@dataclass(frozen=True)
class SimilarityData:
    file: LabeledFile
    pairs: tuple[ScoredPair, ...]


@dataclass(frozen=True)
class Text:
    """A text and where it first occurs: `line 3: positive[0]`."""

    label: str
    text: str


@dataclass(frozen=True)
class RetrievalData:
    """Distinct queries and documents, with the indices of each query's relevant documents."""

    file: LabeledFile
    queries: tuple[Text, ...]
    documents: tuple[Text, ...]
    relevant: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class WordPlace:
    """A word in a text: its word index, or its characters [start, end)."""

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


@dataclass(frozen=True)
class AttributionLine:
    """A target word of a text and the indices of the words that decide its sense; `deciding` maps each to its field."""

    line: int
    text: str
    word_index: int
    deciding: dict[int, str]
    reference: str | None
    """Text to compare with when explaining a similarity."""


@dataclass(frozen=True)
class AttributionData:
    file: LabeledFile
    lines: tuple[AttributionLine, ...]

    @property
    def references(self) -> tuple[AttributionLine, ...]:
        return tuple(line for line in self.lines if line.reference is not None)


def read_similarity(path: Path, limit: int) -> SimilarityData:
    """Read pairs of texts and their scores. Raises `TextError`."""
    reader = Reader(path, limit)
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

    Lines with the same query are merged.
    """
    documents: dict[str, tuple[int, str]] = {}
    queries: dict[str, tuple[str, dict[int, None]]] = {}
    reader = Reader(path, limit)
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
    """Read pairs of word occurrences and whether the sense is the same. Raises `TextError`."""
    reader = Reader(path, limit)
    pairs = tuple(WordPair((_place(record, 1), _place(record, 2)), record.flag("same")) for record in reader.records())
    for label in (True, False):
        count = sum(pair.same == label for pair in pairs)
        if count < MIN_PER_CLASS:
            name = str(label).lower()
            raise TextError(f"{path}: same: too few lines with {name} ({count}, limit {MIN_PER_CLASS}). Add lines.")
    return WordData(reader.file, pairs)


def read_attribution(path: Path, limit: int) -> AttributionData:
    """Read texts with a target word and its deciding words. Raises `TextError`."""
    reader = Reader(path, limit)
    lines = tuple(_attribution_line(record) for record in reader.records())
    return AttributionData(reader.file, lines)


def _attribution_line(record: Record) -> AttributionLine:
    text, word_index, deciding = record.text("text"), record.index("word_index"), record.indices("deciding_index")
    if word_index in deciding:
        raise record.error(deciding[word_index], f"equal to word_index ({word_index})", "Use another word.")
    reference = record.text("reference") if "reference" in record else None
    return AttributionLine(record.line, text, word_index, deciding, reference)


def _place(record: Record, side: Side) -> WordPlace:
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
