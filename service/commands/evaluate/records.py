"""JSON lines files: one object per line, with errors that name file, line and field."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from service.commands.encoding import TextError
from service.commands.lines import read_lines
from service.errors import ServiceError

MAX_SCORE = 1e9


@dataclass(frozen=True)
class LabeledFile:
    """The part of a file that was read."""

    path: Path
    lines_read: int
    is_complete: bool
    """True if the whole file was read."""


class Record:
    """A JSON object on a line of a file. Errors name file, line and field, and never contain text."""

    def __init__(self, path: Path, line: int, fields: dict[str, Any]) -> None:
        self.line = line
        self._path = path
        self._fields = fields

    def __contains__(self, field: str) -> bool:
        return field in self._fields

    def error(self, field: str, problem: str, remedy: str) -> TextError:
        """Return an error about a field."""
        return TextError(f"{self._path}: line {self.line}: {field}: {problem}. {remedy}")

    def text(self, field: str) -> str:
        """Return a non-blank string."""
        return self._text(field, self._value(field, "Add a string."))

    def texts(self, field: str) -> list[str]:
        """Return a string, or the strings in a non-empty array."""
        value = self._value(field, "Add a string or an array of strings.")
        if not isinstance(value, list):
            return [self._text(field, value)]
        if not value:
            raise self.error(field, "empty", "Add a string.")
        return [self._text(f"{field}[{index}]", item) for index, item in enumerate(value)]

    def number(self, field: str) -> float:
        """Return a finite number whose magnitude is within the limit."""
        value = self._value(field, "Add a number.")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(field, "not a number", "Use a number.")
        if not math.isfinite(value) or abs(value) > MAX_SCORE:
            limit = math.copysign(MAX_SCORE, value)
            raise self.error(field, f"out of range ({value:g}, limit {limit:g})", "Scale the scores.")
        return float(value)

    def index(self, field: str) -> int:
        """Return an integer >= 0."""
        return self._index(field, self._value(field, "Add an integer."))

    def indices(self, field: str) -> dict[int, str]:
        """Return an integer >= 0, or the integers in a non-empty array, each with its field."""
        value = self._value(field, "Add an integer or an array of integers.")
        if not isinstance(value, list):
            return {self._index(field, value): field}
        if not value:
            raise self.error(field, "empty", "Add an integer.")
        fields = ((f"{field}[{position}]", item) for position, item in enumerate(value))
        return {self._index(name, item): name for name, item in fields}

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

    def _index(self, field: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(field, "not an integer", "Use an integer.")
        if value < 0:
            raise self.error(field, f"out of range ({value}, limit 0)", "Use 0 or more.")
        return value

    def _text(self, field: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self.error(field, "not a string", "Use a string.")
        if not value or value.isspace():
            raise self.error(field, "empty or blank", "Remove the line or add text.")
        return value


class Reader:
    """Reads the first `limit` lines of a file."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit
        self.file = LabeledFile(path, 0, is_complete=True)

    def records(self) -> Iterator[Record]:
        """Yield the object on each line; `file` is final after the last one. Raises `TextError`."""
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


def _parse(path: Path, number: int, line: str) -> Record:
    if not line or line.isspace():
        raise TextError(f"{path}: line {number}: empty or blank. Remove it.")
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise TextError(f"{path}: line {number}: not JSON. Write one JSON object per line.") from None
    if not isinstance(fields, dict):
        raise TextError(f"{path}: line {number}: not a JSON object. Write one JSON object per line.")
    return Record(path, number, fields)
