"""`attendant embed`: columns that are copied to the output, delimiters, and compressed input."""

import csv
import datetime
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import EXAMPLES
from tests.service.commands.embed_command import RunEmbed

pytestmark = pytest.mark.usefixtures("stub_engine")
WORDS = st.text("aé\"',;|\t \n日", max_size=6)
SEPARATORS = {".csv": ",", ".tsv": "\t"}
VALUES = st.one_of(st.none(), st.integers(-5, 5), st.booleans(), WORDS, st.lists(st.integers(0, 3), max_size=2))


def compress(data: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(data)
    if suffix == ".zst":  # with a frame to skip, like pzstd's
        return b"\x50\x2a\x4d\x18\x04\0\0\0skip" + pa.compress(data, codec="zstd", asbytes=True)
    return data


def write(path: Path, rows: list[dict[str, Any]], kind: str, compression: str, delimiter: str | None) -> Path:
    """Write rows with the keys text, title and extra, and return the path of the file."""
    path = path.with_name(f"{path.name}{kind}{compression}")
    if kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
        return path
    if kind == ".jsonl":
        data = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        plain = path.with_suffix(".plain")
        with plain.open("w", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter or SEPARATORS[kind])
            writer.writerows([SCHEMA.names, *([row[name] for name in SCHEMA.names] for row in rows)])
        data = plain.read_bytes().decode()
    path.write_bytes(compress(data.encode(), compression))
    return path


SCHEMA = pa.schema([("text", pa.string()), ("title", pa.string()), ("extra", pa.string())])


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    return [json.loads(line) for line in path.read_text().splitlines()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=EXAMPLES)
@given(
    rows=st.lists(st.tuples(st.sampled_from(["money bank", "", "river \"bank\", 'flows'"]), WORDS, VALUES), min_size=1,
                  max_size=12),
    kind=st.sampled_from([".jsonl", ".csv", ".tsv", ".parquet"]),
    compression=st.sampled_from(["", ".gz", ".zst"]),
    target=st.sampled_from([".jsonl", ".parquet"]),
    keep=st.sampled_from([("title",), ("extra", "text"), ("title", "extra", "text")]),
    delimiter=st.sampled_from([None, ";", "|", "\t"]),
)  # fmt: skip
def test_kept_columns_are_those_of_the_input(
    tmp_path_factory: pytest.TempPathFactory, run_embed: RunEmbed, *, rows: list[tuple[str, str, Any]], kind: str,
    compression: str, target: str, keep: tuple[str, ...], delimiter: str | None,
) -> None:  # fmt: skip
    """Rejected rows, chunks and batches between them shift nothing."""
    compression, delimiter = "" if kind == ".parquet" else compression, delimiter if kind == ".csv" else None
    typed = kind == ".jsonl"
    fields = [
        {"text": text, "title": title, "extra": extra if typed or isinstance(extra, str) else json.dumps(extra)}
        for text, title, extra in rows
    ]
    directory = tmp_path_factory.mktemp("embed")
    source, out = write(directory / "in", fields, kind, compression, delimiter), directory / f"out{target}"
    options = ["--delimiter", "\\t" if delimiter == "\t" else delimiter] if delimiter else []
    status, err = run_embed(source, "-o", out, "--keep", ",".join(keep), *options)
    accepted = [(number, row) for number, row in enumerate(fields, start=1) if row["text"]]
    assert status == (65 if not accepted else 0 if len(accepted) == len(rows) else 1), err
    if not accepted:
        return

    def shown(value: Any) -> Any:
        as_text = target == ".parquet" and typed and value is not None and not isinstance(value, str)
        return json.dumps(value, separators=(",", ":")) if as_text else value

    expected = [{"row": number} | {name: shown(row[name]) for name in keep} for number, row in accepted]
    assert [{name: value for name, value in row.items() if name != "embedding"} for row in read(out)] == expected


def test_types_of_parquet_columns_are_kept(tmp_path: Path, run_embed: RunEmbed) -> None:
    day = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.UTC)
    columns: dict[str, Any] = {
        "text": pa.array(["a", "b"]), "price": pa.array([1.5, None]),
        "day": pa.array([day, day], pa.timestamp("us", "UTC")),
        "tags": pa.array([["x"], []], pa.list_(pa.string())), "kind": pa.array(["k", "k"]).dictionary_encode(),
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    names = ["price", "day", "tags", "kind"]
    for target in ("out.parquet", "out.jsonl"):
        assert run_embed(tmp_path / "in.parquet", "-o", tmp_path / target, "--keep", ",".join(names))[0] == 0
    table = pq.read_table(tmp_path / "out.parquet")
    kinds = [columns[name].type for name in names[:3]] + [pa.string()]
    assert [table.schema.field(name).type for name in names] == kinds
    assert [table[name].to_pylist() for name in names] == [columns[name].to_pylist() for name in names]
    first = read(tmp_path / "out.jsonl")[0]
    assert (first["price"], first["day"], first["tags"], first["kind"]) == (
        1.5,
        "2026-11-28T12:00:00+00:00",
        ["x"],
        "k",
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([0], pa.timestamp("ns")), "kept: cannot be copied (type timestamp[ns]). Cast it, or leave it out"),
        (pa.array([b"a"]), "kept: cannot be copied (type binary)."),
        (pa.array([0], pa.time64("ns")), "kept: cannot be copied"),
        (pa.array([{"a": b"x"}]), "kept: cannot be copied"),
        (pa.StructArray.from_arrays([pa.array(["a"]).dictionary_encode()], ["c"]), "kept: cannot be copied"),
        (pa.array([2**62], pa.timestamp("us")), "a value after row 0 cannot be copied"),
    ],
    ids=str,
)
def test_column_that_cannot_be_copied_is_an_error(
    tmp_path: Path, run_embed: RunEmbed, values: Any, message: str
) -> None:
    pq.write_table(pa.table({"text": ["a"], "kept": values}), tmp_path / "in.parquet")
    for target in ("out.parquet", "out.jsonl"):
        status, err = run_embed(tmp_path / "in.parquet", "-o", tmp_path / target, "--keep", "kept")
        assert (status, message in err) == (65, True), err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("in.jsonl", ["-o", "out.npy", "--keep", "title"], "--keep: not supported for NumPy files."),
        ("in.txt", ["-o", "out.jsonl", "--field", "title"], "--field: not supported for lines of text."),
        ("in.txt", ["-o", "out.jsonl", "--keep", "title"], "--keep: lines of text have one column. Use --keep text"),
        ("in.jsonl", ["-o", "out.jsonl", "--keep", "row"], "--keep: row is a column of OUT already. Rename it in IN"),
        ("in.jsonl", ["-o", "out.jsonl", "--keep", "a,a"], "--keep: a is listed twice. Remove one"),
        ("in.jsonl", ["-o", "out.jsonl", "--keep", "\udcff"], "--keep: not UTF-8. Convert it to UTF-8"),
        ("in.jsonl", ["-o", "out.jsonl", "--field", "\udcff"], "--field: not UTF-8. Convert it to UTF-8"),
        ("in.jsonl", ["-o", "out.jsonl", "--keep", ","], "--keep: names no column"),
        ("in.jsonl", ["-o", "out.jsonl", "--delimiter", ";"], "--delimiter: set for a file that is not CSV."),
        ("in.csv", ["-o", "out.jsonl", "--delimiter", ";;"], "--delimiter: must be one character"),
        ("in.csv", ["-o", "out.jsonl", "--keep", "title"], "title: no such column (columns: text). Set --keep."),
        ("in.jsonl.gz", ["-o", "out.jsonl"], "damaged ("),
        ("in.jsonl.zst", ["-o", "out.jsonl"], "damaged compressed data."),
        ("in.parquet.gz", ["-o", "out.jsonl"], "not Parquet or damaged."),
    ],
)
def test_errors_have_a_remedy(
    tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch, name: str, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    data = b"text\na\n" if ".csv" in name else b'{"text": "a"}\n' * 500
    content = compress(data, Path(name).suffix)
    Path(name).write_bytes(content[: len(content) // 2] if content != data else data)
    status, err = run_embed(name, *options)
    assert status != 0
    assert message in err
    assert not Path(options[1]).exists()


def test_other_columns_do_not_continue_a_run(
    tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"text": f"text {number}", "a": number}) + "\n" for number in range(20)))
    monkeypatch.setattr("service.commands.embed.WorkDirectory.publish", lambda *_: None)
    assert run_embed(source, "-o", out, "--keep", "a")[0] == 0
    status, err = run_embed(source, "-o", out)
    assert (status, "state of another run (delimiter" in err or "keep: a, now unset" in err) == (78, True), err
