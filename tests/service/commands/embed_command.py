"""Fixtures for `attendant embed IN -o OUT`, and files in every format."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from service.commands import embed as embed_file
from service.commands import sources as vector_sources
from service.commands.sources import VectorSource
from tests.service.commands.embed_stub import open_stub
from tests.service.commands.running import run_command

RunEmbed = Callable[..., tuple[int, str]]
TEXTS = ["money bank grows", "river bank flows", "a line with \u2028 in it", "naïve café", 'a, "quoted", text']
LONG = "word " * 12
"""A text over the stub's token limit."""


@pytest.fixture
def stub_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the stub's vectors, with batches and chunks so small that a small file has several."""
    monkeypatch.setattr(VectorSource, "batch_rows", 2)
    monkeypatch.setattr(embed_file, "CHECKPOINT_ROWS", 4)
    monkeypatch.setattr(vector_sources, "open_engine_source", open_stub)


@pytest.fixture
def run_embed(capsys: pytest.CaptureFixture[str]) -> Iterator[RunEmbed]:
    """Run the command; return status and stderr. The command changes the process's limit of CSV fields."""

    def run(*arguments: object) -> tuple[int, str]:
        status, out, err = run_command(capsys, "embed", *arguments)
        assert out == ""
        return status, err

    limit = csv.field_size_limit()
    yield run
    csv.field_size_limit(limit)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows with the keys text and id, in the format of the suffix."""
    if path.suffix == ".parquet":
        ids, texts = ([row.get(name) for row in rows] for name in ("id", "text"))
        group = 3 if len(rows) < 100 else None
        id_array = pa.array(ids, pa.int64() if isinstance(next(iter(ids), None), int) else pa.string())
        pq.write_table(pa.table({"id": id_array, "text": pa.array(texts, pa.string())}), path, row_group_size=group)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([["id", "text"], *([row.get("id"), row["text"]] for row in rows)])
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("".join(row["text"] + "\n" for row in rows), newline="")
    return path


def read_vectors(path: Path) -> tuple[list[int] | None, list[Any] | None, NDArray[Any]]:
    if path.suffix == ".npy":
        return None, None, np.load(path, mmap_mode="r")
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        ids = table["id"].to_pylist() if "id" in table.column_names else None
        return table["row"].to_pylist(), ids, np.array(table["embedding"].to_pylist())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    ids = [line["id"] for line in lines] if lines and "id" in lines[0] else None
    return [line["row"] for line in lines], ids, np.array([line["embedding"] for line in lines])
