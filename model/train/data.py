"""Training data: examples streamed from files, tokenized and packed into batches of fixed shapes."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model.artifact.packing import BatchShape, pack_batch
from model.artifact.tokenizer import TokenizedInput, Tokenizer, TokenizerInput
from model.train.config import DataError, TrainError

State = dict[str, Any]
Span = tuple[int, int]


class Example(NamedTuple):
    """A single text, or a query with its positive and negatives. `spans` are one character range per text, or ().

    With a `label`, 0 to 1, the texts are a query and a document with that relevance.
    """

    texts: tuple[str, ...]
    spans: tuple[Span, ...] = ()
    label: float | None = None


Reader = Callable[[Path], Iterator[Example]]
Record = tuple[str, dict[str, Any]]
"""The file and line of a record, for errors, and its fields."""


def read_texts(path: Path, field: str) -> Iterator[str]:
    """Yield the non-blank texts of a .txt, .jsonl or .parquet file. Raises DataError with the line of a bad record."""
    if path.suffix == ".txt":
        texts = _read_lines(path)
    else:
        records = _read_records(path, (field,), (), "Use .txt, .jsonl or .parquet.")
        texts = (_text(place, field, record.get(field)) for place, record in records)
    return (stripped for text in texts if (stripped := text.strip()))


def read_pairs(path: Path) -> Iterator[Example]:
    """Yield query, positive and negatives per record of a .jsonl or .parquet file, with spans, if any.

    Raises DataError with the line of a bad record.
    """
    records = _read_records(path, ("query", "positive"), ("negatives", "spans"), "Use .jsonl or .parquet.")
    for place, record in records:
        texts = _pair_texts(place, record, ("query", "positive"))
        yield Example(texts, _spans(place, record.get("spans"), texts))


def read_labeled_pairs(path: Path) -> Iterator[Example]:
    """Yield query-document pairs with their relevance from a .jsonl or .parquet file.

    A record contains a document and its label, or a positive (label 1) and negatives (label 0). Raises DataError with
    the line of a bad record.
    """
    optional = ("document", "label", "positive", "negatives")
    for place, record in _read_records(path, ("query",), optional, "Use .jsonl or .parquet."):
        if record.get("document") is None:
            query, *documents = _pair_texts(place, record, ("query", "positive"))
            for index, document in enumerate(documents):
                yield Example((query, document), label=0.0 if index else 1.0)
        elif record.get("positive") is None and record.get("negatives") is None:
            texts = _pair_texts(place, record, ("query", "document"))
            yield Example(texts, label=_label(place, record.get("label")))
        else:
            raise DataError(f"{place}: document: set together with positive or negatives. Remove one of them.")


def _pair_texts(place: str, record: dict[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of the fields `names`, and the negatives."""
    negatives = record.get("negatives")
    if negatives is not None and not isinstance(negatives, list):
        raise DataError(f"{place}: negatives: not an array. Use an array of strings.")
    fields = [(name, record.get(name)) for name in names]
    fields += [(f"negatives[{index}]", text) for index, text in enumerate(negatives or ())]
    texts = tuple(_text(place, field, value) for field, value in fields)
    for (field, _), text in zip(fields, texts, strict=True):
        if not text.strip():
            raise DataError(f"{place}: {field}: blank. Add text or remove the record.")
    return texts


def _label(place: str, label: object) -> float:
    if isinstance(label, bool) or not isinstance(label, int | float):
        problem = "missing" if label is None else "not a number"
        raise DataError(f"{place}: label: {problem}. Use a number from 0 to 1.")
    if not 0 <= label <= 1:
        raise DataError(f"{place}: label: out of range ({label}). Use a number from 0 to 1.")
    return float(label)


def _spans(place: str, spans: object, texts: Sequence[str]) -> tuple[Span, ...]:
    if spans is None:
        return ()
    if not isinstance(spans, list) or len(spans) != len(texts):
        actual = len(spans) if isinstance(spans, list) else "not an array"
        raise DataError(f"{place}: spans: {actual} of {len(texts)} texts. Add [start, end].")
    for index, (span, text) in enumerate(zip(spans, texts, strict=True)):
        is_pair = isinstance(span, list) and [type(value) for value in span] == [int, int]
        if not is_pair or not 0 <= span[0] < span[1] <= len(text):
            raise DataError(f"{place}: spans[{index}]: outside of the text ({span}, length {len(text)}).")
        if not text[span[0] : span[1]].strip():
            raise DataError(f"{place}: spans[{index}]: blank ({span}). Use the characters of a word.")
    return tuple((start, end) for start, end in spans)


def _text(place: str, field: str, value: object) -> str:
    if not isinstance(value, str):
        problem = "missing" if value is None else "not a string"
        raise DataError(f"{place}: {field}: {problem}. Use a string.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{place}: {field}: has a lone surrogate, which is no character. Remove it.") from None
    return value


def _read_records(path: Path, required: Sequence[str], optional: Sequence[str], remedy: str) -> Iterator[Record]:
    if path.suffix == ".jsonl":
        return _read_json_lines(path)
    if path.suffix == ".parquet":
        return _read_parquet(path, required, optional)
    raise DataError(f"{path}: unknown file type {path.suffix!r}. {remedy}")


def _read_lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check data in the configuration.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: line {number}: not UTF-8. Convert the file.") from None


def _read_json_lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(_read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise DataError(f"{path}: line {number}: not a JSON object. Write one per line.")
        yield f"{path}: line {number}", record


def _read_parquet(path: Path, required: Sequence[str], optional: Sequence[str]) -> Iterator[Record]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ModuleNotFoundError:
        raise DataError(f"{path}: pyarrow is not installed. Run: pip install '.[train]'") from None
    number = 0
    try:
        with path.open("rb") as source:
            file = parquet.ParquetFile(source)
            names = file.schema_arrow.names
            for name in required:
                if name not in names:
                    raise DataError(f"{path}: no column {name!r}. Its columns are {', '.join(names)}.")
            columns = [*required, *(name for name in optional if name in names)]
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", record
    except ArrowInvalid as error:
        raise DataError(f"{path}: not a Parquet file ({error}). Check it.") from None
    except OSError as error:
        problem = error.strerror or error
        raise DataError(f"{path}: cannot be read ({problem}). Check data in the configuration.") from None


class ExampleStream:
    """Endless examples from files, shuffled through a buffer. Each epoch contains every example once, in a new order.

    With `state_dict` and `load_state_dict`, an interrupted run continues with the same examples. Resuming skips the
    examples already read in the current epoch, without tokenizing them.
    """

    def __init__(self, files: Sequence[Path], read: Reader, buffer_size: int, seed: int) -> None:
        self._files = tuple(files)
        self._reader = read
        self._buffer_size = buffer_size
        self._random = random.Random(seed)  # noqa: S311  # not for secrets
        self._buffer: list[Example] = []
        self._read = 0
        self._order = list(range(len(self._files)))
        self._source: Iterator[Example] | None = None

    def __next__(self) -> Example:
        self._fill_buffer()
        if not self._buffer:  # the end of an epoch
            self._source, self._read = None, 0
            self._fill_buffer()
        if not self._buffer:
            raise DataError(f"{self}: empty. Add at least one example.")
        last = len(self._buffer) - 1
        chosen = self._random.randrange(last + 1)
        self._buffer[chosen], self._buffer[last] = self._buffer[last], self._buffer[chosen]
        return self._buffer.pop()

    def __iter__(self) -> "ExampleStream":
        return self

    def __str__(self) -> str:
        return ", ".join(map(str, self._files))

    def _fill_buffer(self) -> None:
        while len(self._buffer) < self._buffer_size and (example := next(self._open(), None)) is not None:
            self._buffer.append(example)
            self._read += 1

    def _open(self) -> Iterator[Example]:
        if self._source is None:
            self._random.shuffle(self._order)
            self._source = self._examples()
        return self._source

    def _examples(self) -> Iterator[Example]:
        for index in tuple(self._order):
            yield from self._reader(self._files[index])

    def state_dict(self) -> State:
        return {
            "buffer": [tuple(example) for example in self._buffer],
            "read": self._read,
            "order": list(self._order),
            "open": self._source is not None,
            "random": self._random.getstate(),
        }

    def load_state_dict(self, state: State) -> None:
        self._buffer = [Example(*example) for example in state["buffer"]]
        self._read, self._order = state["read"], list(state["order"])
        self._random.setstate(state["random"])
        self._source = self._examples() if state["open"] else None
        for _ in range(self._read if self._source is not None else 0):
            if next(self._open(), None) is None:
                raise DataError(f"{self}: fewer examples than before the interruption. Restore the data.")


POOL_BATCHES = 2
"""Size of the pool to choose examples from, in batches. A larger pool fills rows better but takes longer to place."""
TOKENIZED_EXAMPLES = 256
MAX_EMPTY_READS = 100


class Item(NamedTuple):
    """A tokenized example: its texts, their token ids, and the token range of each span.

    The two texts of a labeled pair are one sequence, with `token_type_ids`.
    """

    sequences: list[list[int]]
    texts: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...] = ()
    label: float | None = None
    token_type_ids: tuple[list[int], ...] = ()

    @property
    def tokens(self) -> int:
        return sum(map(len, self.sequences))


@dataclass(frozen=True)
class TrainingBatch:
    """A packed batch: the four inputs of the encoder, int64 tensors (R, T), and the targets of an objective.

    `count` is the number of predictions, whose losses are summed. `tokens` excludes padding.
    """

    inputs: dict[str, Tensor]
    targets: dict[str, Tensor]
    texts: tuple[str, ...]
    count: int
    tokens: int

    @classmethod
    def from_items(
        cls, items: Sequence["Item"], shape: BatchShape, starts: Sequence[int], targets: dict[str, Tensor],
        texts: tuple[str, ...] = (),
    ) -> "TrainingBatch":  # fmt: skip
        """Return a batch with one prediction per item."""
        sequences = [ids for item in items for ids in item.sequences]
        types = [type_ids for item in items for type_ids in item.token_type_ids] or None
        return cls(pack(sequences, shape, starts, types), targets, texts, len(items), sum(map(len, sequences)))

    def to(self, device: torch.device) -> "TrainingBatch":
        inputs, targets = (
            {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
            for tensors in (self.inputs, self.targets)
        )
        return replace(self, inputs=inputs, targets=targets)


Collate = Callable[[Sequence[Item], BatchShape, Sequence[int], random.Random], TrainingBatch]
"""Builds a batch from items, given its shape and the start of each sequence in the R * T tokens."""


class PackedBatches:
    """An endless stream of packed batches of `shape`, which can resume exactly from a saved state.

    The first prompt is prepended to an example's first text, the second to the other texts.
    """

    def __init__(
        self, examples: ExampleStream, tokenizer: Tokenizer, shape: BatchShape, collate: Collate,
        seed: int, prompts: tuple[str, str] = ("", ""),
    ) -> None:  # fmt: skip
        self._examples = examples
        self._tokenizer = tokenizer
        self._shape = shape
        self._collate = collate
        self._prompts = prompts
        self._random = random.Random(seed)  # noqa: S311  # not for secrets
        self._pool: list[Item] = []

    def __iter__(self) -> Iterator[TrainingBatch]:
        return self

    def __next__(self) -> TrainingBatch:
        empty_reads = 0
        while sum(item.tokens for item in self._pool) < POOL_BATCHES * self._shape.tokens:
            items = self._tokenize([next(self._examples) for _ in range(TOKENIZED_EXAMPLES)])
            empty_reads = 0 if items else empty_reads + 1
            if empty_reads > MAX_EMPTY_READS:
                raise TrainError(f"{self._examples}: no text has a token. Check the texts and the tokenizer.")
            self._pool += items
        chosen, starts, self._pool = fill(self._pool, self._shape)
        if not chosen:
            raise TrainError(f"run.rows_per_batch: an example needs more than {self._shape.rows} rows. Raise it.")
        return self._collate(chosen, self._shape, starts, self._random)

    def _tokenize(self, examples: Sequence[Example]) -> list[Item]:
        """Tokenize examples, dropping those with a text or span without tokens."""
        sources = [self._sources(example) for example in examples]
        has_spans = any(example.spans for example in examples)
        tokenized = iter(self._tokenizer.encode([source for own in sources for source in own], offsets=has_spans))
        items = []
        for example, own in zip(examples, sources, strict=True):
            inputs = [next(tokenized).truncate(self._shape.length, "right") for _ in own]
            ranges = [token_range(tokens, span) for tokens, span in zip(inputs, example.spans, strict=False)]
            if all(tokens.has_content for tokens in inputs) and all(first < last for first, last in ranges):
                types = () if example.label is None else tuple(tokens.token_type_ids for tokens in inputs)
                ids = [tokens.input_ids for tokens in inputs]
                items.append(Item(ids, example.texts, tuple(ranges), example.label, types))
        return items

    def _sources(self, example: Example) -> list[TokenizerInput]:
        """Return the inputs of the tokenizer: one per text, or a pair if the example has a label."""
        if example.label is not None:
            query, document = example.texts
            return [TokenizerInput(query, document)]
        first, others = self._prompts
        return [TokenizerInput(text, prompt=others if index else first) for index, text in enumerate(example.texts)]

    def state_dict(self) -> State:
        return {
            "examples": self._examples.state_dict(),
            "pool": [tuple(item) for item in self._pool],
            "random": self._random.getstate(),
        }

    def load_state_dict(self, state: State) -> None:
        self._examples.load_state_dict(state["examples"])
        self._pool = [Item(*item) for item in state["pool"]]
        self._random.setstate(state["random"])


def token_range(tokens: TokenizedInput, span: Span) -> tuple[int, int]:
    """Return the tokens [first, last) that overlap characters [start, end); (0, 0) if truncation dropped them."""
    start, end = span
    inside = [index for index, (first, last) in enumerate(tokens.offsets) if first < end and last > start]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def fill(pool: Sequence[Item], shape: BatchShape) -> tuple[list[Item], list[int], list[Item]]:
    """Choose items for a batch by first fit, in pool order. All sequences of an item are in the same batch.

    Returns:
        The chosen items, the start of each sequence in the R * T tokens, and the remaining pool.
    """
    used = [0] * shape.rows
    chosen: list[Item] = []
    starts: list[int] = []
    rest: list[Item] = []
    for item in pool:
        before, placed = list(used), []
        for ids in item.sequences:
            row = next((row for row, filled in enumerate(used) if filled + len(ids) <= shape.length), None)
            if row is None:
                break
            placed.append(row * shape.length + used[row])
            used[row] += len(ids)
        if len(placed) < len(item.sequences):
            used = before
            rest.append(item)
        else:
            chosen.append(item)
            starts += placed
    return chosen, starts, rest


def pack(
    sequences: Sequence[list[int]],
    shape: BatchShape,
    starts: Sequence[int],
    token_type_ids: Sequence[list[int] | None] | None = None,
) -> dict[str, Tensor]:
    """Return the four inputs of the encoder, int64 tensors (R, T); `token_type_ids` None means all 0."""
    types = [None] * len(sequences) if token_type_ids is None else token_type_ids
    packed = pack_batch(list(zip(sequences, types, strict=True)), shape, starts)
    return {name: torch.from_numpy(values) for name, values in packed.inputs.items()}
