"""Embedding files in JSON lines, NumPy or Parquet format, written by appending to a work file."""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import orjson
from numpy.typing import NDArray

from service.commands.row_files import Row, RowFile, import_arrow

OutputFormat = Literal["jsonl", "npy", "parquet"]
OUTPUT_FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)
SUFFIXES: dict[str, OutputFormat] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".npy": "npy", ".parquet": "parquet"}
OUTPUT_COLUMNS = ("row", "id", "embedding")
CHUNK_COLUMNS = ("chunk", "start", "end", "text")
"""The columns of a chunk: its number in the row from 0, its characters [start, end) and its text."""
ROW_GROUP_BYTES = 64 * 2**20
"""Minimum size of a Parquet row group, except for the last one."""

DType = Literal["float32", "float16"]


@dataclass(frozen=True, slots=True)
class VectorRows:
    """Embeddings of N consecutive rows or chunks, (N, D), NaN if rejected, and the accepted rows with their indices."""

    vectors: NDArray[Any]
    accepted: list[int]
    rows: list[Row]


class VectorFormat(ABC):
    header = b""
    """Header of the work file."""

    @abstractmethod
    def encode(self, rows: VectorRows) -> bytes:
        """Return the bytes to append to the work file for these rows."""

    def finish(self, work: Path, rows: int) -> Path:
        """Complete a work file of `rows` input rows, and return the output file in the same directory."""
        return work


class JsonLines(VectorFormat):
    """One object per accepted row: `{"row": 1, "id": "a", ..., "embedding": [...]}`, with the columns to `keep`."""

    def __init__(self, *, ids: bool, keep: Sequence[str] = ()) -> None:
        self._ids, self._keep = ids, keep

    def encode(self, rows: VectorRows) -> bytes:
        lines = []
        for index, row in zip(rows.accepted, rows.rows, strict=True):
            fields: dict[str, Any] = {"row": row.number} | ({"id": row.id} if self._ids else {})
            fields |= zip(self._keep, row.kept, strict=True)
            fields["embedding"] = rows.vectors[index]
            lines.append(orjson.dumps(fields, str, orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
        return b"".join(lines)


class Numpy(VectorFormat):
    """One array (N, D) with a row per input row, NaN if rejected; `numpy.load(..., mmap_mode="r")` opens it."""

    def __init__(self, dimensions: int, dtype: DType) -> None:
        self._dimensions = dimensions
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self.header = self._make_header(0)

    def encode(self, rows: VectorRows) -> bytes:
        return rows.vectors.astype(self._dtype, copy=False).tobytes()

    def finish(self, work: Path, rows: int) -> Path:
        header = self._make_header(rows)
        assert len(header) == len(self.header), "NumPy reserves space for the number of rows"
        with work.open("r+b") as file:
            file.write(header)
            file.flush()
            os.fsync(file.fileno())
        return work

    def _make_header(self, rows: int) -> bytes:
        file = io.BytesIO()
        fields = {"descr": self._dtype.str, "fortran_order": False, "shape": (rows, self._dimensions)}
        np.lib.format.write_array_header_1_0(file, fields)
        return file.getvalue()


class Parquet(VectorFormat):
    """Columns `row` (int64), `id` if there is an id field, those to keep, and `embedding`, for accepted rows only.

    Embeddings are fixed-size lists. Columns keep the types of the input; without types they are strings, JSON if a
    value is not a string. The work file is an Arrow stream, because Parquet keeps its metadata at the end of the file.
    """

    def __init__(
        self, dimensions: int, dtype: DType, source: RowFile, types: Mapping[str, Any], metadata: dict[str, str]
    ) -> None:
        arrow, self._parquet = import_arrow()
        if source.keep[: len(CHUNK_COLUMNS)] == CHUNK_COLUMNS:
            types = {**types, **dict.fromkeys(CHUNK_COLUMNS, arrow.int64()), "text": arrow.string()}
        ids, id_type = source.id_field is not None, types.get(source.id_field or "")
        fields = [arrow.field("row", arrow.int64(), nullable=False)]
        if ids:
            fields.append(arrow.field("id", id_type or arrow.string(), nullable=False))
        fields += [arrow.field(name, types.get(name, arrow.string())) for name in source.keep]
        # Readers expect vectors to contain no nulls.
        item = arrow.field("element", arrow.from_numpy_dtype(np.dtype(dtype)), nullable=False)
        fields.append(arrow.field("embedding", arrow.list_(item, dimensions), nullable=False))
        self._arrow, self._schema = arrow, arrow.schema(fields, metadata)
        self._ids, self._as_text = ids, id_type is None
        self._keep, self._typed = source.keep, types.keys()
        self.header = self._schema.serialize().to_pybytes()

    def encode(self, rows: VectorRows) -> bytes:
        arrow, schema = self._arrow, self._schema
        columns = [arrow.array([row.number for row in rows.rows], arrow.int64())]
        if self._ids:
            ids = [str(row.id) if self._as_text else row.id for row in rows.rows]
            columns.append(arrow.array(ids, schema.field("id").type))
        for place, name in enumerate(self._keep):
            kept = [row.kept[place] for row in rows.rows]
            values = kept if name in self._typed else list(map(_as_text, kept))
            columns.append(arrow.array(values, schema.field(name).type))
        values = arrow.array(rows.vectors[rows.accepted].reshape(-1))
        columns.append(arrow.FixedSizeListArray.from_arrays(values, type=schema.field("embedding").type))
        return bytes(arrow.record_batch(columns, schema=schema).serialize().to_pybytes())

    def finish(self, work: Path, rows: int) -> Path:
        output = work.with_name("output.parquet")
        with work.open("rb") as source, output.open("wb") as target:
            with self._parquet.ParquetWriter(target, self._schema, use_dictionary=False) as writer:
                batches: list[Any] = []
                for batch in self._arrow.ipc.open_stream(source):
                    batches.append(batch)
                    if sum(item.nbytes for item in batches) >= ROW_GROUP_BYTES:
                        self._write(writer, batches)
                        batches = []
                self._write(writer, batches)
            target.flush()
            os.fsync(target.fileno())
        return output

    def _write(self, writer: Any, batches: list[Any]) -> None:
        table = self._arrow.Table.from_batches(batches, self._schema)
        writer.write_table(table, row_group_size=max(1, table.num_rows))


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def output_format(path: Path) -> OutputFormat | None:
    """Return the format of a file's suffix, or None if it is unknown."""
    return SUFFIXES.get(path.suffix.lower())
