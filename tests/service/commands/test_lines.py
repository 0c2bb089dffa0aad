"""Text files: lines, duplicates, limits and errors."""

from pathlib import Path

import pytest

from service.commands.labeled_texts import TextError, TextFile


def write(path: Path, body: bytes) -> Path:
    file = path / "texts.txt"
    file.write_bytes(body)
    return file


def test_text_file_keeps_the_first_line_of_duplicates(tmp_path: Path) -> None:
    file = TextFile.read(write(tmp_path, b"a\nb\r\na\nc\n"), 10)
    assert file.lines == ((1, "a"), (2, "b"), (4, "c"))
    assert (file.lines_read, file.is_complete) == (4, True)


@pytest.mark.parametrize(("limit", "read", "is_complete"), [(2, 2, False), (3, 3, True), (4, 3, True)])
def test_text_file_reads_up_to_the_limit(tmp_path: Path, limit: int, read: int, is_complete: bool) -> None:
    file = TextFile.read(write(tmp_path, b"a\nb\nc"), limit)
    assert (file.lines_read, len(file.lines), file.is_complete) == (read, read, is_complete)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "empty. Add lines."),
        (b"a\n\nb\n", "line 2: empty or blank. Remove it."),
        (b"a\n \t\n", "line 2: empty or blank. Remove it."),
        (b"a\n\xff secret\n", "line 2: not UTF-8. Send text in UTF-8."),
    ],
)
def test_unusable_text_file_is_named_with_its_line(tmp_path: Path, body: bytes, problem: str) -> None:
    path = write(tmp_path, body)
    with pytest.raises(TextError) as raised:
        TextFile.read(path, 10)
    assert str(raised.value) == f"{path}: {problem}"


def test_missing_text_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"none\.txt: cannot be read \(No such file or directory\)\. Check the path\."):
        TextFile.read(tmp_path / "none.txt", 10)
