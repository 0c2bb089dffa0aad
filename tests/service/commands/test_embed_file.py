"""`attendant embed IN -o OUT`: formats, rejected rows, and errors."""

import bz2
import codecs
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
