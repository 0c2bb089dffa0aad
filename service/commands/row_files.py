"""Rows of a file to embed: text lines, JSON lines, CSV or Parquet. Files are never read into memory as a whole."""

import codecs
import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, get_args

import orjson

from model.console import EX_CONFIG, EX_DATAERR
from service.commands.arguments import CommandError

InputFormat = Literal["text", "jsonl", "csv", "parquet"]
INPUT_FORMATS: tuple[InputFormat, ...] = get_args(InputFormat)
SUFFIXES: dict[str, InputFormat] = {
    ".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet",
}  # fmt: skip
MAX_LINE_BYTES = 16 * 2**20
"""Longer lines are rejected without being read into memory."""
READ_ROWS = 1024
"""Rows per Parquet batch."""
BUFFER_BYTES = 2**20
"""Bytes per Parquet read. Without a buffer, each row group would be read as a whole."""
BOM = b"\xef\xbb\xbf"
OTHER_FILES = {
    codecs.BOM_UTF16_LE: "UTF-16. Convert it: iconv -f UTF-16 -t UTF-8.",
    codecs.BOM_UTF16_BE: "UTF-16. Convert it: iconv -f UTF-16 -t UTF-8.",
    b"\x1f\x8b": "compressed. Decompress it: gzip -d.",
    b"\x28\xb5\x2f\xfd": "compressed. Decompress it: zstd -d.",
}
"""Magic numbers of files that are not text, with an error for each."""
INSTALL = "Install the extra \"data\": pip install -c constraints.txt -e '.[cpu,data]'."

Id = int | str


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the input.

    Attributes:
        number: Number of the line, the CSV record after the header, or the Parquet row, from 1.
        text: The text, or None if the row is rejected.
        id: Value of the id field, or None if there is none or it is invalid.
        error: `<field>: <problem>. <Remedy>.`, or "" if the row is accepted.
    """

    number: int
    text: str | None
    id: Id | None = None
    error: str = ""


class RowFile(Protocol):
    """An open input file."""

    id_type: Any
    """Arrow type of the ids, or None if they are strings in Parquet."""

    def rows(self, skip: int) -> Iterator[Row]:
        """Yield the rows after the first `skip` rows. Raises `CommandError`."""

    def fraction(self) -> float:
        """Return how much of the file has been read, 0 to 1."""


def input_format(path: Path) -> InputFormat | None:
    """Return the format of a file's suffix, or None if it is unknown."""
    return SUFFIXES.get(path.suffix.lower())


def open_rows(path: Path, file: BinaryIO, kind: InputFormat, field: str, id_field: str | None) -> RowFile:
    """Return the rows of an open file; `field` and `id_field` are column names or keys. Raises `CommandError`."""
    if kind == "parquet":
        return _ParquetRows(path, file, field, id_field)
    return _TextRows(path, file, kind, field, id_field)


class _TextRows:
    """Rows from text lines, JSON lines or CSV."""

    id_type = None

    def __init__(self, path: Path, file: BinaryIO, kind: InputFormat, field: str, id_field: str | None) -> None:
        self._path, self._file, self._kind = path, file, kind
        self._field, self._id_field = field, id_field
        file.seek(0, io.SEEK_END)
        self._size = file.tell()
        file.seek(0)
        start = file.read(4)
        for magic, problem in OTHER_FILES.items():
            if start.startswith(magic):
                raise CommandError(f"{path}: {problem}", EX_DATAERR)
        file.seek(len(BOM) if start.startswith(BOM) else 0)
        self._records: Iterator[list[str] | str] = iter(())
        if kind == "csv":
            self._open_csv()

    def fraction(self) -> float:
        return self._file.tell() / self._size if self._size else 1.0

    def rows(self, skip: int) -> Iterator[Row]:
        if self._kind == "csv":
            for number, record in islice(enumerate(self._records, start=1), skip, None):
                yield self._csv_row(number, record)
            return
        parse = self._text_row if self._kind == "text" else self._json_row
        for number, line in islice(enumerate(_lines(self._file), start=1), skip, None):
            try:
                if line is None:
                    yield Row(number, None, error=f"Line too long (limit {MAX_LINE_BYTES} bytes). Shorten it.")
                else:
                    yield parse(number, line.decode().rstrip("\r\n"))
            except UnicodeDecodeError:
                yield Row(number, None, error="Not UTF-8. Convert the line to UTF-8.")

    def _text_row(self, number: int, line: str) -> Row:
        return Row(number, line)

    def _json_row(self, number: int, line: str) -> Row:
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            problem = f"Not JSON (column {error.colno})" if line.strip() else "Empty or blank"
            return Row(number, None, error=f"{problem}. Write one JSON object per line.")
        if not isinstance(fields, dict):
            return Row(number, None, error="Not a JSON object. Write one JSON object per line.")
        return make_row(number, fields, self._field, self._id_field)

    def _open_csv(self) -> None:
        csv.field_size_limit(MAX_LINE_BYTES)
        # Decode invalid UTF-8 to surrogates, so that only the affected row is rejected.
        self._decoder = io.TextIOWrapper(self._file, encoding="utf-8", errors="surrogateescape", newline="")
        self._records = _csv_records(self._path, self._decoder)
        header = next(self._records, None)
        if not isinstance(header, list):
            problem = "empty" if header is None else f"header: not CSV ({header})"
            raise CommandError(f"{self._path}: {problem}. Start with a line of column names.", EX_DATAERR)
        self._columns = header
        for option, name in (("--field", self._field), ("--id-field", self._id_field)):
            if name is not None and header.count(name) != 1:
                raise column_error(self._path, option, name, header)

    def _csv_row(self, number: int, record: list[str] | str) -> Row:
        if isinstance(record, str):
            return Row(number, None, error=f"Not CSV ({record}). Quote the fields.")
        expected = len(self._columns)
        if len(record) != expected:
            problem = f"Wrong number of columns ({len(record)}, header {expected})"
            return Row(number, None, error=f"{problem}. Quote fields that contain commas.")
        return make_row(number, dict(zip(self._columns, record, strict=True)), self._field, self._id_field)


class _ParquetRows:
    """Rows from a Parquet file."""

    def __init__(self, path: Path, file: BinaryIO, field: str, id_field: str | None) -> None:
        arrow, parquet = import_arrow()
        self._arrow, self._path, self._field, self._id_field = arrow, path, field, id_field
        self._read = 0
        try:
            self._file = parquet.ParquetFile(file, buffer_size=BUFFER_BYTES)
        except (arrow.ArrowException, OSError):
            raise CommandError(f"{path}: not Parquet or damaged. Check the file.", EX_DATAERR) from None
        schema = self._file.schema_arrow
        for option, name in (("--field", field), ("--id-field", id_field)):
            if name is not None and len(schema.get_all_field_indices(name)) != 1:
                raise column_error(path, option, name, schema.names)
        self._check_type(field, schema.field(field).type, integers=False)
        self.id_type = None
        if id_field is not None:
            self.id_type = self._check_type(id_field, schema.field(id_field).type, integers=True)

    def fraction(self) -> float:
        return self._read / (self._file.metadata.num_rows or 1)

    def rows(self, skip: int) -> Iterator[Row]:
        metadata, first, group = self._file.metadata, 0, 0
        while group < metadata.num_row_groups and first + metadata.row_group(group).num_rows <= skip:
            first += metadata.row_group(group).num_rows
            group += 1
        names = [self._field] if self._id_field is None else list({self._field: None, self._id_field: None})
        groups = list(range(group, metadata.num_row_groups))
        self._read = first
        try:
            for batch in self._file.iter_batches(READ_ROWS, groups, names) if groups else ():
                values = {name: _values(self._arrow, batch.column(name)) for name in names}
                for index in range(batch.num_rows):
                    self._read += 1
                    if self._read > skip:
                        fields = {name: column[index] for name, column in values.items()}
                        yield make_row(self._read, fields, self._field, self._id_field)
        except (self._arrow.ArrowException, OSError):
            raise CommandError(f"{self._path}: damaged after row {self._read}. Check the file.", EX_DATAERR) from None

    def _check_type(self, name: str, kind: Any, *, integers: bool) -> Any:
        """Return the column's type. Raises `CommandError` unless it has strings or, if allowed, integers."""
        types = self._arrow.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_string(kind) or types.is_large_string(kind) or (integers and types.is_integer(kind)):
            return kind
        expected = "strings or integers" if integers else "strings"
        raise CommandError(f"{self._path}: {name}: wrong type ({kind}). Choose a column of {expected}.", EX_DATAERR)


def make_row(number: int, fields: Mapping[str, Any], field: str, id_field: str | None) -> Row:
    row_id: Id | None = None
    if id_field is not None:
        row_id = fields.get(id_field)
        if isinstance(row_id, bool) or not isinstance(row_id, int | str):
            problem = "missing" if row_id is None else "not a string or an integer"
            return Row(number, None, error=f"{id_field}: {problem}. Use a string or an integer.")
        if isinstance(row_id, str) and not _is_utf8(row_id):
            return Row(number, None, error=f"{id_field}: not UTF-8. Convert it to UTF-8.")
    text = fields.get(field)
    if not isinstance(text, str):
        problem = "missing" if text is None else "not a string"
        return Row(number, None, row_id, f"{field}: {problem}. Use a string.")
    if not _is_utf8(text):
        return Row(number, None, row_id, f"{field}: not UTF-8. Convert it to UTF-8.")
    return Row(number, text, row_id)


def column_error(path: Path, option: str, name: str, names: list[str]) -> CommandError:
    """Return the error for a missing or duplicate column."""
    problem = "column exists more than once" if name in names else "no such column"
    listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    listed = "".join(character if character.isprintable() else "?" for character in listed)
    return CommandError(f"{path}: {name}: {problem} (columns: {listed}). Set {option}.", EX_DATAERR)


def import_arrow() -> tuple[Any, Any]:
    """Return pyarrow and pyarrow.parquet. Raises `CommandError` if they are not installed."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise CommandError(f"Parquet needs pyarrow, which is not installed. {INSTALL}", EX_CONFIG) from None
    return arrow, parquet


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield each line, or None for a line that is too long."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) <= MAX_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        yield None


def _csv_records(path: Path, file: io.TextIOWrapper) -> Iterator[list[str] | str]:
    """Yield each non-empty record, or an error message if it is malformed.

    Raises `CommandError` for an unclosed quote, which turns all following lines into one field.
    """
    reader = csv.reader(file, strict=True)
    while True:
        first = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            if str(error) == "unexpected end of data":
                remedy = "Close it, or write two quotes for one inside a field."
                raise CommandError(f"{path}: line {first}: quote is not closed. {remedy}", EX_DATAERR) from None
            lines = "" if reader.line_num == first else f", lines {first} to {reader.line_num}"
            yield f"{error}{lines}"
            continue
        if record is None:
            return
        if record:
            yield record


def _is_utf8(text: str) -> bool:
    """Return whether a text has no surrogates, which stand for bytes that are not UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _values(arrow: Any, column: Any) -> list[Any]:
    """Return a column's values; invalid UTF-8 becomes surrogates."""
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if arrow.types.is_integer(column.type):
        integers: list[Any] = column.to_pylist()
        return integers
    values = column.cast(arrow.large_binary()).to_pylist()
    return [None if value is None else value.decode(errors="surrogateescape") for value in values]
