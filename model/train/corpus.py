"""Texts streamed from files in an order that depends on the seed alone, with a state from which reading continues."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from model.train.config import TrainError

State = dict[str, Any]


def read_texts(path: Path, field: str) -> Iterator[str]:
    """Yield the non-blank texts of a .txt, .jsonl or .parquet file. Raises TrainError with the line of a bad one."""
    if not path.is_file():
        raise TrainError(f"{path}: no such file. Check data in the configuration.")
    match path.suffix:
        case ".parquet":
            texts = _read_parquet(path, field)
        case ".jsonl":
            texts = _read_json_lines(path, field)
        case ".txt":
            texts = _read_lines(path)
        case suffix:
            raise TrainError(f"{path}: unknown file type {suffix!r}. Use .txt, .jsonl or .parquet.")
    return (stripped for text in texts if (stripped := text.strip()))


def _read_lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode()
            except UnicodeDecodeError:
                raise TrainError(f"{path}: line {number} is not UTF-8. Convert the file.") from None


def _read_json_lines(path: Path, field: str) -> Iterator[str]:
    for number, line in enumerate(_read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[field]
        except (ValueError, TypeError, KeyError):
            text = None
        if not isinstance(text, str):
            raise TrainError(f"{path}: line {number} has no string {field!r}. Correct it, or set data.field.")
        yield text


def _read_parquet(path: Path, field: str) -> Iterator[str]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ModuleNotFoundError:
        raise TrainError(f"{path}: pyarrow is not installed. Run: pip install '.[train]'") from None
    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise TrainError(f"{path}: not a Parquet file ({error}). Check it.") from None
    if field not in file.schema_arrow.names:
        raise TrainError(f"{path}: no column {field!r}. Set data.field.")
    for batch in file.iter_batches(batch_size=1024, columns=[field]):
        for text in batch.column(0).to_pylist():
            if not isinstance(text, str):
                raise TrainError(f"{path}: column {field!r} has values that are not strings. Set data.field.")
            yield text


class TextStream:
    """Endless texts from files, shuffled through a buffer. Each epoch has every text once, in another order.

    `state_dict` and `load_state_dict` make an interrupted run continue with the same texts. Reading continues by
    skipping the texts already read in the current epoch, without tokenizing them.
    """

    def __init__(self, files: Sequence[Path], field: str, buffer_size: int, seed: int) -> None:
        self._files = tuple(files)
        self._field = field
        self._buffer_size = buffer_size
        self._random = random.Random(seed)  # noqa: S311  # not for secrets
        self._buffer: list[str] = []
        self._read = 0
        self._order = list(range(len(self._files)))
        self._source: Iterator[str] | None = None

    def __next__(self) -> str:
        self._fill_buffer()
        if not self._buffer:  # the end of an epoch
            self._source, self._read = None, 0
            self._fill_buffer()
        if not self._buffer:
            raise TrainError(f"{self}: no texts. Add some, one per line.")
        last = len(self._buffer) - 1
        chosen = self._random.randrange(last + 1)
        self._buffer[chosen], self._buffer[last] = self._buffer[last], self._buffer[chosen]
        return self._buffer.pop()

    def __iter__(self) -> "TextStream":
        return self

    def __str__(self) -> str:
        return ", ".join(map(str, self._files))

    def _fill_buffer(self) -> None:
        while len(self._buffer) < self._buffer_size and (text := next(self._open(), None)) is not None:
            self._buffer.append(text)
            self._read += 1

    def _open(self) -> Iterator[str]:
        if self._source is None:
            self._random.shuffle(self._order)
            self._source = self._texts()
        return self._source

    def _texts(self) -> Iterator[str]:
        for index in tuple(self._order):
            yield from read_texts(self._files[index], self._field)

    def state_dict(self) -> State:
        """Return the position, as values that torch.save stores."""
        return {
            "buffer": list(self._buffer),
            "read": self._read,
            "order": list(self._order),
            "open": self._source is not None,
            "random": self._random.getstate(),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a position."""
        self._buffer, self._read, self._order = list(state["buffer"]), state["read"], list(state["order"])
        self._random.setstate(state["random"])
        self._source = self._texts() if state["open"] else None
        for _ in range(self._read if self._source is not None else 0):
            next(self._open())
