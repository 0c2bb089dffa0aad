"""Embedding files in JSON lines, NumPy or Parquet format, written by appending to a work file."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import orjson
from numpy.typing import NDArray

from service.commands.row_files import Id, import_arrow

OutputFormat = Literal["jsonl", "npy", "parquet"]
OUTPUT_FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)
SUFFIXES: dict[str, OutputFormat] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".npy": "npy", ".parquet": "parquet"}
ROW_GROUP_BYTES = 64 * 2**20
"""Minimum size of a Parquet row group, except for the last one."""

DType = Literal["float32", "float16"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Embeddings of consecutive input rows.

    Attributes:
        first: Number of the first row, from 1.
        count: Number of rows, including rejected ones.
        numbers: Numbers of the N accepted rows.
        ids: Their ids, or None without an id field.
        vectors: Their embeddings, (N, D).
    """

    first: int
    count: int
    numbers: Sequence[int]
    ids: Sequence[Id | None] | None
    vectors: NDArray[Any]


class VectorFormat(Protocol):
    def header(self) -> bytes:
        """Return the header of the work file."""

    def encode(self, chunk: Chunk) -> bytes:
        """Return the bytes to append to the work file for a chunk."""

    def finish(self, work: Path, rows: int) -> Path:
        """Complete a work file of `rows` input rows, and return the output file in the same directory."""


def output_format(path: Path) -> OutputFormat | None:
    """Return the format of a file's suffix, or None if it is unknown."""
    return SUFFIXES.get(path.suffix.lower())


class JsonLines:
    """One object per accepted row: `{"row": 1, "id": "a", "embedding": [...]}`."""

    def header(self) -> bytes:
        return b""

    def encode(self, chunk: Chunk) -> bytes:
        lines = []
        for index, number in enumerate(chunk.numbers):
            fields: dict[str, Any] = {"row": number}
            if chunk.ids is not None:
                fields["id"] = chunk.ids[index]
            fields["embedding"] = chunk.vectors[index]
            lines.append(orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
        return b"".join(lines)

    def finish(self, work: Path, rows: int) -> Path:
        return work


class Numpy:
    """One array (N, D) with a row per input row, NaN if rejected; `numpy.load(..., mmap_mode="r")` opens it."""

    def __init__(self, dimensions: int, dtype: DType) -> None:
        self._dimensions = dimensions
        self._dtype = np.dtype(dtype).newbyteorder("<")

    def header(self) -> bytes:
        return self._header(0)

    def encode(self, chunk: Chunk) -> bytes:
        rows = np.full((chunk.count, self._dimensions), np.nan, self._dtype)
        rows[np.asarray(chunk.numbers, np.int64) - chunk.first] = chunk.vectors
        return rows.tobytes()

    def finish(self, work: Path, rows: int) -> Path:
        header = self._header(rows)
        assert len(header) == len(self.header()), "NumPy reserves space for the number of rows"
        with work.open("r+b") as file:
            file.write(header)
            file.flush()
            os.fsync(file.fileno())
        return work

    def _header(self, rows: int) -> bytes:
        file, shape = io.BytesIO(), (rows, self._dimensions)
        fields = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, fields)
        return file.getvalue()


class Parquet:
    """Columns `row` (int64), `id` if there is an id field, and `embedding` (fixed-size list), for accepted rows only.

    The work file is an Arrow stream, because Parquet keeps its metadata at the end of the file.
    """

    def __init__(self, dimensions: int, dtype: DType, id_type: Any, metadata: dict[str, str], *, ids: bool) -> None:
        self._arrow, self._parquet = import_arrow()
        arrow = self._arrow
        value = arrow.float32() if dtype == "float32" else arrow.float16()
        self._dtype = np.dtype(dtype)
        fields = [arrow.field("row", arrow.int64(), nullable=False)]
        if ids:
            fields.append(arrow.field("id", id_type or arrow.string(), nullable=False))
        # Readers expect vectors to contain no nulls.
        item = arrow.field("element", value, nullable=False)
        fields.append(arrow.field("embedding", arrow.list_(item, dimensions), nullable=False))
        self._schema = arrow.schema(fields, metadata)
        self._as_text = ids and id_type is None

    def header(self) -> bytes:
        return bytes(memoryview(self._schema.serialize()))

    def encode(self, chunk: Chunk) -> bytes:
        arrow, schema = self._arrow, self._schema
        columns = [arrow.array(chunk.numbers, arrow.int64())]
        if chunk.ids is not None:
            ids = [str(item) for item in chunk.ids] if self._as_text else chunk.ids
            columns.append(arrow.array(ids, schema.field("id").type))
        values = arrow.array(np.ascontiguousarray(chunk.vectors, self._dtype).reshape(-1))
        columns.append(arrow.FixedSizeListArray.from_arrays(values, type=schema.field("embedding").type))
        return bytes(memoryview(arrow.record_batch(columns, schema=schema).serialize()))

    def finish(self, work: Path, rows: int) -> Path:
        output = work.with_name("output.parquet")
        with work.open("rb") as source, output.open("wb") as target:
            stream = self._arrow.ipc.open_stream(source)
            with self._parquet.ParquetWriter(target, self._schema, use_dictionary=False) as writer:
                batches: list[Any] = []
                size = 0
                for batch in stream:
                    batches.append(batch)
                    size += batch.nbytes
                    if size >= ROW_GROUP_BYTES:
                        self._write(writer, batches)
                        batches, size = [], 0
                self._write(writer, batches)
            target.flush()
            os.fsync(target.fileno())
        return output

    def _write(self, writer: Any, batches: list[Any]) -> None:
        table = self._arrow.Table.from_batches(batches, self._schema)
        writer.write_table(table, row_group_size=max(1, table.num_rows))
