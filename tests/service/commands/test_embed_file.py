"""attendant embed IN -o OUT: formats, columns, compressed input, rejected rows, and errors."""

import bz2
import codecs
import csv
import datetime
import gzip
import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.commands import embed as file_progress
from service.commands.embed import partial_path, rejected_path
from tests.conftest import EXAMPLES, HANG_TIMEOUT_S, ROOT, server_environment
from tests.service.commands.embed_command import LONG, TEXTS, RunEmbed, read_vectors, write_rows
from tests.service.commands.embed_stub import (
    DIMENSIONS,
    EMPTY,
    MAX_CHARACTERS,
    stub_vector,
)

pytestmark = pytest.mark.usefixtures("stub_engine")
REASONS = {
    "": "text: empty or blank. Send text.",
    " \t": "text: empty or blank. Send text.",
    EMPTY: "text: no content after tokenization. Send text.",
    "x" * (MAX_CHARACTERS + 1): "text: too many characters (101, limit 100). Shorten it, or split it with --chunk.",
    LONG: "text: too long (limit 8 tokens). Shorten it.",
    None: "text: missing. Use a string.",
    7: "text: not a string. Use a string.",
}


def read_rejected(target: Path) -> dict[int, str]:
    path = rejected_path(target)
    if not path.exists():
        return {}
    return {line["row"]: line["error"] for line in map(json.loads, path.read_text().splitlines())}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=EXAMPLES)
@given(
    texts=st.lists(st.sampled_from([*TEXTS, LONG, "", " \t", EMPTY, "x" * (MAX_CHARACTERS + 1), None, 7]), max_size=14),
    source=st.sampled_from([".txt", ".jsonl", ".csv", ".parquet"]),
    target=st.sampled_from([".jsonl", ".npy", ".parquet"]),
    ids=st.sampled_from([None, "integers", "strings"]),
    dimensions=st.sampled_from([None, 2]),
    dtype=st.sampled_from(["float32", "float16"]),
    reject_truncated=st.booleans(),
)
def test_embed_writes_each_row_once_in_every_format(
    tmp_path_factory: pytest.TempPathFactory, run_embed: RunEmbed, *, texts: list[Any], source: str, target: str,
    ids: str | None, dimensions: int | None, dtype: str, reject_truncated: bool,
) -> None:  # fmt: skip
    """Rejected rows are reported with their reasons, and no other row may be missing."""
    if source == ".txt" or target == ".npy":
        ids = None
    if source in (".txt", ".csv"):
        texts = [text for text in texts if isinstance(text, str)]
    if source == ".parquet":
        texts = [None if text == 7 else text for text in texts]
    row_ids = [number if ids == "integers" else f"id {number}" for number in range(len(texts))]
    directory = tmp_path_factory.mktemp("embed")
    rows = [{"id": row_id, "text": text} for row_id, text in zip(row_ids, texts, strict=True)]
    path, out = write_rows(directory / f"in{source}", rows), directory / f"out{target}"
    options = ["--dtype", dtype] + (["--dimensions", dimensions] if dimensions else [])
    options += (["--id-field", "id"] if ids else []) + (["--reject-truncated"] if reject_truncated else [])
    status, err = run_embed(path, "-o", out, *options)

    rejected = {
        number: REASONS[text]
        for number, text in enumerate(texts, start=1)
        if text in REASONS and (text != LONG or reject_truncated)
    }
    is_empty = 0 < len(texts) == len(rejected)
    assert (status, read_rejected(out)) == (65 if is_empty else 1 if rejected else 0, rejected), err
    if is_empty:
        assert not out.exists()
        assert not partial_path(out).exists()
        return
    accepted = [number for number in range(1, len(texts) + 1) if number not in rejected]
    numbers, out_ids, vectors = read_vectors(out)
    expected = [stub_vector(texts[number - 1], dtype)[:dimensions] for number in accepted]
    if numbers is None:
        assert vectors.shape == (len(texts), dimensions or DIMENSIONS)
        assert vectors.dtype == dtype
        assert np.isnan(vectors[[number - 1 for number in rejected]]).all()
        vectors = vectors[[number - 1 for number in accepted]]
    else:
        assert numbers == accepted
    shape = (len(accepted), dimensions or DIMENSIONS)
    got, wanted = (np.array(rows, np.float32).reshape(shape) for rows in (vectors, expected))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    if ids and accepted:
        as_text = source == ".csv" or (target == ".parquet" and source != ".parquet")
        kept = [row_ids[number - 1] for number in accepted]
        assert out_ids == ([str(item) for item in kept] if as_text else kept)
    assert err.startswith(f"attendant embed: wrote {len(accepted)} embeddings to {out}, ")
    assert ("; truncated " in err) == (LONG in texts and not reject_truncated)
    assert not partial_path(out).exists()


@pytest.mark.parametrize(
    ("name", "content", "options", "status", "message"),
    [
        ("none.txt", None, [], 65, "{in}: not found. Check the path."),
        ("in.csv", b"", [], 65, "{in}: empty. Start with a line of column names."),
        ("in.csv", b"a,b\n1,2\n", [], 65, "{in}: text: no such column (columns: a, b). Set --field."),
        ("in.csv", b"text,text\n1,2\n", [], 65,
         "{in}: text: column exists more than once (columns: text, text). Set --field."),
        ("in.csv", b"text\n1\n", ["--id-field", "id", "--output-format", "jsonl"], 65,
         "{in}: id: no such column (columns: text). Set --id-field."),
        ("in.parquet", b"PAR1", [], 65, "{in}: not Parquet or damaged. Check the file."),
        ("in.xml", b"", [], 2, "IN: unknown suffix (.xml; known: .txt, .jsonl, .ndjson, .csv, .tsv, "
         ".parquet, .gz, .zst). Set --input-format{help}"),
        ("in.txt", b"", ["--id-field", "id"], 2, "--id-field: not supported for lines of text. Use row numbers{help}"),
        ("in.txt", b"", ["--api-key-file", "k"], 2, "--api-key-file: set without --server. Remove it{help}"),
        ("in.txt", b"", ["--dimensions", "0"], 2, "--dimensions: out of range (0, minimum 1). Use 1 to 1048576{help}"),
        ("in.txt", b"", ["-o", "/nowhere/out.npy"], 73, "/nowhere: no such directory. Create it."),
        ("in.txt", b"", ["--server", "ftp://a"], 2,
         "--server: 'ftp://a' is not a URL of http, https, grpc or grpcs, such as grpc://127.0.0.1:8081"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_a_remedy(
    tmp_path: Path, run_embed: RunEmbed, *, name: str, content: bytes | None, options: list[str], status: int,
    message: str,
) -> None:  # fmt: skip
    path, out = tmp_path / name, tmp_path / "out.npy"
    if content is not None:
        path.write_bytes(content)
    message = message.replace("{in}", str(path)).replace("{help}", ". See: attendant embed --help")
    assert run_embed(path, "-o", out, *options) == (status, f"attendant embed: {message}\n")
    assert not partial_path(out).exists()


def test_parquet_column_of_another_type_is_an_error(tmp_path: Path, run_embed: RunEmbed) -> None:
    path, out = tmp_path / "in.parquet", tmp_path / "out.npy"
    pq.write_table(pa.table({"text": [1, 2]}), path)
    problem = f"{path}: text: wrong type (int64). Choose a column of strings."
    assert run_embed(path, "-o", out) == (65, f"attendant embed: {problem}\n")


@pytest.mark.parametrize(
    ("name", "content", "errors"),
    [
        ("in.txt", b"\xef\xbb\xbfa\r\n\xff\nb", {2: "Not UTF-8. Convert the line to UTF-8."}),
        ("in.txt", b"a\n" + b"x" * 50 + b"\nb\n", {2: "Line too long (limit 40 bytes). Shorten it."}),
        ("in.jsonl", b'{"text": "a"}\n\n[1]\n{"text": \n{"no": 1}\n{"text": "b"}\n', {
            2: "Empty or blank. Write one JSON object per line.",
            3: "Not a JSON object. Write one JSON object per line.",
            4: "Not JSON (column 10). Write one JSON object per line.", 5: "text: missing. Use a string."}),
        ("in.csv", b'text,b\na,1\n\xff,1\nc\n"d"x,1\n\nb,1\n', {
            2: "text: not UTF-8. Convert it to UTF-8.",
            3: "Wrong number of columns (1, header 2). Quote fields that contain commas.",
            4: "Not CSV (',' expected after '\"'). Quote the fields."}),
        ("in.csv", b"text,b\na,1\n" + b"x" * 50 + b",1\nb,1\n",
         {2: "Line too long (limit 40 characters). Shorten it."}),
    ],
)  # fmt: skip
def test_unusable_rows_are_rejected_and_others_written(
    tmp_path: Path,
    run_embed: RunEmbed,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes,
    errors: dict[int, str],
) -> None:
    if b"x" * 50 in content:
        monkeypatch.setattr("service.commands.row_files.MAX_LINE_BYTES", 40)
    path, out = tmp_path / name, tmp_path / "out.jsonl"
    path.write_bytes(content)
    status, _ = run_embed(path, "-o", out)
    assert (status, read_rejected(out)) == (1, errors)
    _, _, vectors = read_vectors(out)
    np.testing.assert_allclose(vectors, [stub_vector("a"), stub_vector("b")], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("in.txt", "money bank\nriver".encode("utf-16"), "UTF-16. Convert it: iconv -f UTF-16 -t UTF-8."),
        ("in.csv", codecs.BOM_UTF16_BE + "text".encode("utf-16-be"), "UTF-16. Convert it: iconv -f UTF-16 -t UTF-8."),
        ("in.jsonl", bz2.compress(b'{"text": "a"}'), "compressed. Decompress it: bzip2 -d."),
        ("in.csv", b'text,b\na,1\n"open,2\n' + b"c,3\n" * 5,
         "line 3: quote is not closed. Close it, or write two quotes for one inside a field."),
        ("in.csv", b'text,b\na,1\n"open,2\n' + b"c,3\n" * 50 + b'"d",4\n',
         "line 3: quote is not closed within 40 characters. Close it, or write two quotes for one inside a field."),
        ("in.csv", b'text,b\na,1\n"open,2\n' + b"c" * 50 + b'\nd",4\n',
         "line 3: quote is not closed within 40 characters. Close it, or write two quotes for one inside a field."),
        ("in.csv", b"te\x00xt\na\n", "text: no such column (columns: te?xt). Set --field."),
    ],
)  # fmt: skip
def test_unreadable_file_is_an_error(
    tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, problem: str
) -> None:
    monkeypatch.setattr("service.commands.row_files.MAX_LINE_BYTES", 40)
    path, out = tmp_path / name, tmp_path / "out.jsonl"
    path.write_bytes(content)
    assert run_embed(path, "-o", out) == (65, f"attendant embed: {path}: {problem}\n")
    assert not out.exists()


def test_output_that_is_the_input_is_wrong_usage(tmp_path: Path, run_embed: RunEmbed) -> None:
    path = write_rows(tmp_path / "in.jsonl", [{"text": "a"}])
    rejected = write_rows(tmp_path / "out.npy.rejected.jsonl", [{"text": "a"}])
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    for source, target, shown in ((path, path, path), (path, link, path), (rejected, tmp_path / "out.npy", rejected)):
        content = source.read_bytes()
        problem = f"{shown}: is the input, which would be replaced. Set -o to another file."
        assert run_embed(source, "-o", target, "--overwrite") == (2, f"attendant embed: {problem}\n")
        assert source.read_bytes() == content


def test_link_as_output_is_kept(tmp_path: Path, run_embed: RunEmbed) -> None:
    path, link, target = write_rows(tmp_path / "in.jsonl", [{"text": "a"}]), tmp_path / "a.npy", tmp_path / "b.npy"
    link.symlink_to(target)
    assert run_embed(path, "-o", link)[0] == 0
    assert link.is_symlink()
    assert target.is_file()


def test_output_is_checked_before_rows_are_read(tmp_path: Path, run_embed: RunEmbed) -> None:
    path, directory = write_rows(tmp_path / "in.jsonl", [{"text": "a"}]), tmp_path / "out.npy"
    directory.mkdir()
    (tmp_path / "complete.npy").touch()
    for target, problem in (
        (directory, f"{directory}: is a directory. Set -o to a file."),
        (tmp_path / "no" / "out.npy", f"{tmp_path / 'no'}: no such directory. Create it."),
        (tmp_path / "complete.npy", f"{tmp_path / 'complete.npy'}: exists. Remove it or set --overwrite."),
        *(
            (path, f"{path}: cannot be written (File name too long). Check the path and the free space.")
            for path in (tmp_path / f"{'x' * length}.npy" for length in (240, 250, 260))
        ),
    ):
        assert run_embed(path, "-o", target) == (73, f"attendant embed: {problem}\n")
        assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("row_id", [None, True, 1.5, [1]])
def test_invalid_id_rejects_the_row(tmp_path: Path, run_embed: RunEmbed, row_id: Any) -> None:
    rows = [{"text": "a", "id": row_id}, {"text": "b", "id": "b"}]
    path, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert run_embed(path, "-o", out, "--id-field", "id")[0] == 1
    problem = "missing" if row_id is None else "not a string or an integer"
    assert read_rejected(out) == {1: f"id: {problem}. Use a string or an integer."}


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        (["--field", "txt"], "txt: missing. Use a string.", "--field"),
        (["--id-field", "idd"], "idd: missing. Use a string or an integer.", "--id-field"),
    ],
)
def test_field_that_no_row_has_leaves_the_output_alone(
    tmp_path: Path, run_embed: RunEmbed, options: list[str], problem: str, remedy: str
) -> None:
    """The rows span several chunks. The corrected command must not need another option."""
    path = write_rows(tmp_path / "in.jsonl", [{"id": number, "text": "a"} for number in range(6)])
    out, good = tmp_path / "out.jsonl", b"good"
    message = (
        f"attendant embed: {path}: no row was accepted of 6, see {rejected_path(out)}. The first error: {problem} "
        f"To read another key, change {remedy}.\n"
    )
    assert run_embed(path, "-o", out, *options) == (65, message)
    assert list(read_rejected(out)) == [1, 2, 3, 4, 5, 6]
    assert not out.exists()
    out.write_bytes(good)
    assert run_embed(path, "-o", out, *options, "--overwrite") == (65, message)
    assert out.read_bytes() == good
    assert not partial_path(out).exists()
    out.unlink()
    assert run_embed(path, "-o", out)[0] == 0
    assert read_rejected(out) == {}


def test_bar_is_shown_on_a_terminal(tmp_path: Path) -> None:
    """It shows the rate and the time left."""
    path = write_rows(tmp_path / "in.txt", [{"text": f"text {number}"} for number in range(5000)])
    command = [sys.executable, "-m", "tests.service.commands.embed_stub", "embed", str(path), "-o", f"{path}.npy"]
    terminal, stderr = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 120))
    process = subprocess.Popen(command, cwd=ROOT, env=server_environment() | {"TERM": "xterm"}, stderr=stderr)
    os.close(stderr)
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # how Linux reports the end of a terminal
        pass
    os.close(terminal)
    assert process.wait(HANG_TIMEOUT_S) == 0
    text = shown.decode()
    assert re.search(r"\d+%\|.*\| [\d.]+k/[\d.]+k \[\d\d:\d\d<\d\d:\d\d, [\d.]+k?row/s\]", text), text
    assert "attendant embed: wrote 5,000 embeddings" in text


@pytest.mark.usefixtures("stub_engine")
def test_lines_are_printed_elsewhere(tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_progress, "INTERVAL_S", 0)
    path = write_rows(tmp_path / "in.txt", [{"text": "a text"} for _ in range(6)])
    status, err = run_embed(path, "-o", tmp_path / "out.npy")
    *lines, last = err.splitlines()
    assert (status, len(lines)) == (0, 3)
    assert re.fullmatch(r"attendant embed: 6 of about 6 rows, [\d,]+ rows/s, 0 s left", lines[-1])
    assert last.startswith("attendant embed: wrote 6 embeddings")


@pytest.mark.usefixtures("stub_engine")
def test_missing_package_is_an_error(tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other formats need no additional package."""
    path = write_rows(tmp_path / "in.txt", [{"text": "a"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run_embed(path, "-o", tmp_path / "out.parquet") == (
        78,
        "attendant embed: Parquet needs pyarrow, which is not installed. "
        "Install the extra \"data\": pip install -c constraints.txt -e '.[cpu,data]'.\n",
    )
    assert run_embed(path, "-o", tmp_path / "out.npy")[0] == 0


# `attendant embed`: columns that are copied to the output, delimiters, and compressed input.
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
