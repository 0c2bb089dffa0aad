"""Lines of text files, read up to a limit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from service.errors import MalformedRequest, ServiceError

NumberedLine = tuple[int, str]
LabeledText = tuple[str, str]
"""A label for error messages ("line 3", "line 3: text1"), and the text."""


class TextError(Exception):
    """An error in a file of texts. The message names file and line, and never contains text."""


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
    """Yield numbered lines, from 1, without line breaks. Raises `MalformedRequest` if one is not UTF-8."""
    for number, line in enumerate(file, start=1):
        try:
            yield number, line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise MalformedRequest("not UTF-8", "Send text in UTF-8.", field=f"line {number}") from None


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
