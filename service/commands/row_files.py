"""Rows of a file to embed: text lines, JSON lines, CSV, TSV or Parquet. Files are never read into memory as a whole."""

import codecs
import csv
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TextIO, get_args

import orjson

from model.artifact.console import EX_DATAERR
from service.commands.arguments import CommandError, import_extra

InputFormat = Literal["text", "jsonl", "csv", "tsv", "parquet"]
INPUT_FORMATS: tuple[InputFormat, ...] = get_args(InputFormat)
SUFFIXES: dict[str, InputFormat] = {
    ".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet",
}  # fmt: skip
COMPRESSED_SUFFIXES = (".gz", ".zst")
SEPARATOR_NAMES: dict[InputFormat, str] = {"csv": "commas", "tsv": "tabs"}
SEPARATORS: dict[InputFormat, str] = {"csv": ",", "tsv": "\t"}
MAX_LINE_BYTES = 16 * 2**20
"""Longer lines are rejected without being read into memory."""
READ_ROWS = 1024
"""Rows per Parquet batch."""
BUFFER_BYTES = 2**20
"""Bytes per Parquet read. Without a buffer, each row group would be read as a whole."""
LINE_ENDS = ("\n", "\r")
GZIP, ZSTD = b"\x1f\x8b", (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18")
"""Magic numbers. The second one of Zstandard starts a frame to skip, which pzstd writes first."""
OTHER_FILES = {
    codecs.BOM_UTF16_LE: "UTF-16. Convert it: iconv -f UTF-16 -t UTF-8.",
    codecs.BOM_UTF16_BE: "UTF-16. Convert it: iconv -f UTF-16 -t UTF-8.",
    b"BZh": "compressed. Decompress it: bzip2 -d.",
    b"\xfd7zXZ": "compressed. Decompress it: xz -d.",
    b"PK\x03\x04": "compressed. Decompress it: unzip.",
}
"""Magic numbers of files that are not text, with an error for each."""

Id = int | str


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the input, rejected if it has an error (`<field>: <problem>. <Remedy>.`)."""

    number: int
    """Number of the line, the CSV record after the header, or the Parquet row, from 1."""
    text: str | None
    id: Id | None = None
    error: str = ""
    title: str = ""
    kept: tuple[Any, ...] = ()
    """The values of the columns to copy to the output."""


@dataclass(frozen=True)
class RowReader:
    """An open file to embed. Iterating over its rows raises `CommandError` if the rest is unusable."""

    rows: Iterator[Row]
    estimate_total: Callable[[int], int]
    """Returns the estimated number of rows of the file, given the number of the last row read."""
    types: Mapping[str, Any] = field(default_factory=dict)
    """Arrow types of the ids and the columns to copy, if the file has types. Others are strings in Parquet."""


@dataclass(frozen=True)
class RowFile:
    """A file to embed. `field`, `id_field`, `title_field` and those to `keep` are column names or keys."""

    path: Path
    format: InputFormat
    field: str = "text"
    id_field: str | None = None
    keep: tuple[str, ...] = ()
    title_field: str | None = None
    delimiter: str | None = None
    """The character between the columns of a CSV file. None: a comma, or a tab for TSV."""

    @contextmanager
    def open(self) -> Iterator[RowReader]:
        """Open the file. Raises `CommandError` if the file or its columns are unusable."""
        with ExitStack() as files:
            with self.read_errors():
                file = files.enter_context(self.path.open("rb"))
                reader = _open_parquet(self, file) if self.format == "parquet" else _open_text(self, file, files)
            yield reader

    @contextmanager
    def read_errors(self) -> Iterator[None]:
        """Convert `OSError`, and errors from damaged compressed data, to `CommandError`."""
        try:
            yield
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(f"damaged ({error}). Check the file.") from None
        except OSError as error:
            if error.errno is None:  # raised by the Zstandard decompressor
                raise self.error("damaged compressed data. Check the file.") from None
            raise self.error(f"cannot be read ({error.strerror or error}). Check the path.") from None

    def error(self, problem: str) -> CommandError:
        return CommandError(f"{self.path}: {problem}", EX_DATAERR)

    def check_columns(self, columns: list[str]) -> None:
        """Raise `CommandError` unless the file has each selected column once."""
        options = (
            ("--field", self.field), ("--id-field", self.id_field), ("--title-field", self.title_field),
            *(("--keep", name) for name in self.keep),
        )  # fmt: skip
        for option, name in options:
            if name is not None and columns.count(name) != 1:
                problem = "column exists more than once" if name in columns else "no such column"
                listed = ", ".join(columns[:10]) + (", ..." if len(columns) > 10 else "")
                listed = "".join(character if character.isprintable() else "?" for character in listed)
                raise self.error(f"{name}: {problem} (columns: {listed}). Set {option}.")

    def make_row(self, number: int, fields: Mapping[str, Any]) -> Row:
        """Return the row with these columns or keys, rejected if its text or id is unusable."""
        row_id: Id | None = None
        if self.id_field is not None:
            row_id = fields.get(self.id_field)
            if isinstance(row_id, bool) or not isinstance(row_id, int | str):
                problem = "missing" if row_id is None else "not a string or an integer"
                return Row(number, None, error=f"{self.id_field}: {problem}. Use a string or an integer.")
            if isinstance(row_id, str) and not _is_utf8(row_id):
                return Row(number, None, error=f"{self.id_field}: not UTF-8. Convert it to UTF-8.")
        text = fields.get(self.field)
        if not isinstance(text, str):
            problem = "missing" if text is None else "not a string"
            return Row(number, None, row_id, f"{self.field}: {problem}. Use a string.")
        title = "" if self.title_field is None else fields.get(self.title_field) or ""
        if not isinstance(title, str):
            return Row(number, None, row_id, f"{self.title_field}: not a string. Use a string.")
        kept = tuple([fields.get(name) for name in self.keep])
        columns = ((self.field, text), (self.title_field, title), *zip(self.keep, kept, strict=True))
        for name, value in columns:
            if isinstance(value, str) and not _is_utf8(value):
                return Row(number, None, row_id, f"{name}: not UTF-8. Convert it to UTF-8.")
        return Row(number, text, row_id, title=title.strip(), kept=kept)


def input_format(path: Path) -> InputFormat | None:
    """Return the format that a file's suffix names, ignoring a compression suffix; None if unknown."""
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED_SUFFIXES else path
    return SUFFIXES.get(name.suffix.lower())


def import_arrow() -> tuple[Any, Any]:
    """Return pyarrow and pyarrow.parquet. Raises `CommandError` if they are not installed."""
    arrow = import_extra("pyarrow", "data", "Parquet needs pyarrow, which")
    return arrow, import_extra("pyarrow.parquet", "data", "Parquet needs pyarrow, which")


def _open_text(source: RowFile, file: io.BufferedReader, files: ExitStack) -> RowReader:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    data = files.enter_context(_decompress(file))
    start = data.peek(8)
    for magic, problem in OTHER_FILES.items():
        if start.startswith(magic):
            raise source.error(problem)
    if start.startswith(codecs.BOM_UTF8):
        data.read(len(codecs.BOM_UTF8))
    if source.format in SEPARATORS:
        # Decode invalid UTF-8 to surrogates, so that only the affected row is rejected.
        text = files.enter_context(io.TextIOWrapper(data, "utf-8", "surrogateescape", newline=""))
        rows = _csv_rows(source, text)
    else:
        rows = _line_rows(source, data)

    def read() -> Iterator[Row]:
        with source.read_errors():
            yield from rows

    return RowReader(read(), lambda number: round(number * size / (file.tell() or 1)))


def _decompress(file: io.BufferedReader) -> io.BufferedReader:
    """Return a reader of a file's content, which may be compressed with gzip or Zstandard."""
    start = file.read(4)
    file.seek(0)
    if start.startswith(GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=file))  # implements RawIOBase
    if start.startswith(ZSTD):
        arrow = import_extra("pyarrow", "data", "Zstandard needs pyarrow, which")
        return io.BufferedReader(arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd"))
    return file


def _line_rows(source: RowFile, file: io.BufferedReader) -> Iterator[Row]:
    for number, line in enumerate(_lines(file), start=1):
        if line is None:
            yield Row(number, None, error=f"Line too long (limit {MAX_LINE_BYTES} bytes). Shorten it.")
            continue
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            yield Row(number, None, error="Not UTF-8. Convert the line to UTF-8.")
        else:
            is_text = source.format == "text"
            yield Row(number, text, kept=(text,) * len(source.keep)) if is_text else _json_row(source, number, text)


def _lines(file: io.BufferedReader) -> Iterator[bytes | None]:
    """Yield each line, or None for a line that is too long."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) <= MAX_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        yield None


def _json_row(source: RowFile, number: int, line: str) -> Row:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        problem = f"Not JSON (column {error.colno})" if line.strip() else "Empty or blank"
        return Row(number, None, error=f"{problem}. Write one JSON object per line.")
    if not isinstance(fields, dict):
        return Row(number, None, error="Not a JSON object. Write one JSON object per line.")
    if number == 1 and (absent := [name for name in source.keep if name not in fields]):
        print(f"attendant embed: warning: --keep: the first row has no {', '.join(absent)}", file=sys.stderr)
    return source.make_row(number, fields)


def _csv_rows(source: RowFile, file: TextIO) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)
    records = _csv_records(source, file)
    header = next(records, None)
    if not isinstance(header, list):
        problem = "empty." if header is None else f"header: {header}"
        raise source.error(f"{problem} Start with a line of column names.")
    source.check_columns(header)
    return (_csv_row(source, header, number, record) for number, record in enumerate(records, start=1))


class _CsvLines:
    """The lines of a CSV file. For a line that is too long, `next` raises `csv.Error`, and then continues after it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.number = 0
        """Number of the last line."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._file.readline(MAX_LINE_BYTES + 1)
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) <= MAX_LINE_BYTES or line.endswith(LINE_ENDS):
            return line
        while line and not line.endswith(LINE_ENDS):
            line = self._file.readline(MAX_LINE_BYTES)
        raise csv.Error("line too long")


def _csv_records(source: RowFile, file: TextIO) -> Iterator[list[str] | str]:
    """Yield each non-empty record, or an error message if it is malformed.

    Raises `CommandError` for an unclosed quote, which turns all following lines into one field.
    """
    lines = _CsvLines(file)
    reader = csv.reader(lines, strict=True, delimiter=source.delimiter or SEPARATORS[source.format])
    while True:
        first = lines.number + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            problem, is_one_line = str(error), lines.number <= first
            is_long = problem == "line too long" or problem.startswith("field larger than")
            if problem == "unexpected end of data" or (is_long and not is_one_line):
                within = f" within {MAX_LINE_BYTES} characters" if is_long else ""
                remedy = "Close it, or write two quotes for one inside a field."
                raise source.error(f"line {first}: quote is not closed{within}. {remedy}") from None
            if is_long:
                yield f"Line too long (limit {MAX_LINE_BYTES} characters). Shorten it."
            else:
                numbers = "" if is_one_line else f", lines {first} to {lines.number}"
                yield f"Not CSV ({problem}{numbers}). Quote the fields."
            continue
        if record is None:
            return
        if record:
            yield record


def _csv_row(source: RowFile, header: list[str], number: int, record: list[str] | str) -> Row:
    if isinstance(record, str):
        return Row(number, None, error=record)
    if len(record) != len(header):
        separator = SEPARATOR_NAMES[source.format] if source.delimiter is None else "the delimiter"
        problem = f"Wrong number of columns ({len(record)}, header {len(header)})"
        return Row(number, None, error=f"{problem}. Quote fields that contain {separator}.")
    return source.make_row(number, dict(zip(header, record, strict=True)))


def _open_parquet(source: RowFile, file: io.BufferedReader) -> RowReader:
    arrow, parquet = import_arrow()
    try:
        opened = parquet.ParquetFile(file, buffer_size=BUFFER_BYTES)
    except (arrow.ArrowException, OSError):
        raise source.error("not Parquet or damaged. Check the file.") from None
    source.check_columns(opened.schema_arrow.names)
    types = {}
    for name, integers in ((source.id_field, True), (source.field, False), (source.title_field, False)):
        if name is not None:
            kind = opened.schema_arrow.field(name).type
            kind = types[name] = kind.value_type if arrow.types.is_dictionary(kind) else kind
            is_string = arrow.types.is_string(kind) or arrow.types.is_large_string(kind)
            if not is_string and not (integers and arrow.types.is_integer(kind)):
                expected = "strings or integers" if integers else "strings"
                raise source.error(f"{name}: wrong type ({kind}). Choose a column of {expected}.")
    for name in source.keep:
        kind = opened.schema_arrow.field(name).type
        kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
        if not _can_copy(arrow.types, kind):
            raise source.error(f"{name}: cannot be copied (type {kind}). Cast it, or leave it out of --keep.")
        types.setdefault(name, kind)
    rows = _parquet_rows(source, opened, list(types))
    return RowReader(rows, lambda number: opened.metadata.num_rows, types)


def _parquet_rows(source: RowFile, file: Any, names: list[str]) -> Iterator[Row]:
    arrow, _ = import_arrow()
    number = 0
    try:
        for batch in file.iter_batches(READ_ROWS, columns=names):
            for values in zip(*(_values(arrow, batch.column(name)) for name in names), strict=True):
                number += 1
                yield source.make_row(number, dict(zip(names, values, strict=True)))
    except (arrow.ArrowException, OSError):
        raise source.error(f"damaged after row {number}. Check the file.") from None
    except (ValueError, OverflowError) as error:
        problem = f"a value after row {number} cannot be copied ({error})"
        raise source.error(f"{problem}. Correct it, or leave its column out of --keep.") from None


def _can_copy(types: Any, kind: Any) -> bool:
    """Return whether values of an Arrow type keep their meaning as Python objects and in JSON."""
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _can_copy(types, kind.value_type)
    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return len({field.name for field in fields}) == len(fields) and all(_can_copy(types, f.type) for f in fields)
    if types.is_timestamp(kind):
        return bool(kind.unit != "ns")
    checks = ("string", "large_string", "integer", "floating", "boolean", "decimal", "date", "null")
    return any(getattr(types, f"is_{check}")(kind) for check in checks)


def _values(arrow: Any, column: Any) -> list[Any]:
    """Return a column's values; invalid UTF-8 becomes surrogates."""
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type):
        column = column.cast(arrow.large_binary())
    elif not arrow.types.is_integer(column.type):  # a column to copy
        return list(column.to_pylist())
    return [item.decode(errors="surrogateescape") if isinstance(item, bytes) else item for item in column.to_pylist()]


def _is_utf8(text: str) -> bool:
    """Return whether a text contains no surrogates, which stand for bytes that are not UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
