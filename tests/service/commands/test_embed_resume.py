"""`attendant embed IN -o OUT`: resuming after a kill, and existing files."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.__main__ import main
from service.commands import embed as embed_file
from service.commands.embed import EmbedFile, partial_path, rejected_path
from service.commands.row_files import RowFile
from service.commands.sources import VectorOptions
from tests.service.commands.embed_command import LONG, TEXTS, RunEmbed, write_rows
from tests.service.commands.embed_stub import DIMENSIONS, StubSource

pytestmark = pytest.mark.usefixtures("stub_engine")


class Killed(BaseException):
    """Simulates the process being killed."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], None]]:
    """Return a function that kills the process at the Nth disk operation, leaving a write half done."""
    remaining: list[int | None] = [None]

    def is_due() -> bool:
        if remaining[0] is None:
            return False
        remaining[0] -= 1
        return remaining[0] < 0

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            if is_due():
                raise Killed
            return original(*arguments, **keywords)

        monkeypatch.setattr(owner, name, call)

    append = embed_file._append

    def append_half(path: Path, size: int, data: bytes) -> None:
        if is_due():
            append(path, size, data[: len(data) // 2])
            raise Killed
        append(path, size, data)

    for owner, name in ((os, "fsync"), (os, "truncate"), (shutil, "rmtree"), (Path, "replace"), (Path, "unlink")):
        wrap(owner, name)
    monkeypatch.setattr(embed_file, "_append", append_half)

    def kill_at(step: int | None) -> None:
        remaining[0] = step

    yield kill_at
    remaining[0] = None


@pytest.mark.parametrize("target", ["out.jsonl", "out.npy", "out.parquet"])
def test_run_continues_after_a_kill_at_any_change_of_the_disk(
    tmp_path: Path, run_embed: RunEmbed, kill_at: Callable[[int | None], None], target: str
) -> None:
    """After each kill, the same command must write the same bytes as an uninterrupted run."""
    path = write_rows(tmp_path / "in.txt", [{"text": text} for text in [*TEXTS, "", LONG]])
    expected = tmp_path / "expected" / target
    expected.parent.mkdir()
    assert run_embed(path, "-o", expected)[0] == 1
    step = 0
    while True:
        out = tmp_path / str(step) / target
        out.parent.mkdir()
        kill_at(step)
        try:
            main(["embed", str(path), "-o", str(out)])
        except Killed:
            kill_at(None)
        else:
            break
        if out.exists() and not (partial_path(out) / "state.json").exists():
            assert run_embed(path, "-o", out)[0] == 73
        else:
            assert run_embed(path, "-o", out)[0] == 1
        assert out.read_bytes() == expected.read_bytes()
        assert rejected_path(out).read_bytes() == rejected_path(expected).read_bytes()
        step += 1
    assert step > 20


def test_rows_on_disk_are_not_encoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure after two chunks leaves 8 of 12 rows on disk."""
    path = write_rows(tmp_path / "in.jsonl", [{"text": f"text {number}"} for number in range(12)])
    job = EmbedFile(RowFile(path, "jsonl"), tmp_path / "out.npy", "npy")
    write = embed_file._write
    calls = []

    def fail_third(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        write(*arguments)

    async def embed_all() -> StubSource:
        source = StubSource(VectorOptions())
        await source.check()
        await embed_file.embed_file(job, source)
        return source

    monkeypatch.setattr(embed_file, "_write", fail_third)
    with pytest.raises(Killed):
        asyncio.run(embed_all())
    monkeypatch.setattr(embed_file, "_write", write)
    source = asyncio.run(embed_all())
    assert source.requests == 3  # the check, and two batches
    assert np.load(job.target).shape == (12, DIMENSIONS)


async def test_several_batches_are_in_flight(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", [{"text": f"text {number}"} for number in range(40)])
    source = StubSource(VectorOptions(), delay_s=0.05)
    await source.check()
    job = EmbedFile(RowFile(path, "jsonl"), tmp_path / "out.npy", "npy")
    await embed_file.embed_file(job, source)
    assert source.most_running == source.in_flight


def test_run_continues_after_the_disk_was_full(
    tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write_rows(tmp_path / "in.txt", [{"text": text} for text in TEXTS]), tmp_path / "out.npy"
    append = embed_file._append

    def fail(target: Path, size: int, data: bytes) -> None:
        if target.name == "data" and size:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(target, size, data)

    monkeypatch.setattr(embed_file, "_append", fail)
    problem = f"{out}.partial: cannot be written (No space left on device). Check the path and the free space."
    assert run_embed(path, "-o", out) == (73, f"attendant embed: {problem}\n")
    monkeypatch.setattr(embed_file, "_append", append)
    assert run_embed(path, "-o", out)[0] == 0
    assert np.load(out).shape == (len(TEXTS), DIMENSIONS)


def start_and_stop(path: Path, out: Path, *options: str) -> None:
    """Leave a work directory with one chunk behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embed_file.WorkDirectory, "publish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            main(["embed", str(path), "-o", str(out), *options])


def test_other_options_or_input_do_not_continue_a_run(tmp_path: Path, run_embed: RunEmbed) -> None:
    path, out = write_rows(tmp_path / "in.txt", [{"text": text} for text in TEXTS]), tmp_path / "out.npy"
    start_and_stop(path, out, "--dimensions", "2")
    remedy = "Repeat that run's command, or remove the directory.\n"
    prefix = f"attendant embed: {out}.partial: state of another run "
    assert run_embed(path, "-o", out) == (78, f"{prefix}(dimensions: 2, now unset). {remedy}")
    status, err = run_embed(path, "-o", out, "--dimensions", 2, "--dtype", "float16", "--normalize")
    assert (status, err) == (78, f"{prefix}(dtype: float32, now float16; normalize: unset, now True). {remedy}")
    path.write_text(path.read_text() + "more\n")
    status, err = run_embed(path, "-o", out, "--dimensions", 2)
    assert status == 78
    assert "input size: " in err
    assert err.count("\n") == 1


def test_corrected_input_starts_over_if_no_row_was_done(tmp_path: Path, run_embed: RunEmbed) -> None:
    path, out = tmp_path / "in.csv", tmp_path / "out.npy"
    path.write_text('text\n"not closed\nmore\n')
    status, err = run_embed(path, "-o", out)
    assert (status, "in.csv: line 2: quote is not closed" in err) == (65, True), err
    path.write_text('text\n"closed"\nmore\n')
    assert run_embed(path, "-o", out, "--normalize")[0] == 0
    assert np.load(out).shape == (2, DIMENSIONS)


def test_moved_input_continues_a_run_and_changed_input_does_not(tmp_path: Path, run_embed: RunEmbed) -> None:
    """Input is compared by content, not by path or modification time."""
    rows = [
        {"text": "a", "note": letter * 70_000} for letter in "xyz"
    ]  # a digest of only the two ends would miss the middle
    path, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.npy"
    start_and_stop(path, out)
    before, status = path.read_text(), path.stat()
    path.write_text(before.replace("yyy", "yzy", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "state of another run (input digest: " in run_embed(path, "-o", out)[1]
    moved = tmp_path / "moved.jsonl"
    moved.write_text(before)
    assert run_embed(moved, "-o", out)[0] == 0
    assert np.load(out).shape == (3, DIMENSIONS)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (b"{", "damaged"), (b"[]", "damaged"), (b'{"version": 0}', "state of another version"),
        (b'{"version": %d, "counts": 1}' % embed_file.VERSION, "damaged"),
    ],
)  # fmt: skip
def test_damaged_state_is_an_error(tmp_path: Path, run_embed: RunEmbed, state: bytes, problem: str) -> None:
    path, out = write_rows(tmp_path / "in.txt", [{"text": "a"}]), tmp_path / "out.npy"
    start_and_stop(path, out)
    file = partial_path(out) / "state.json"
    file.write_bytes(state)
    message = f"attendant embed: {file}: {problem}. Remove the directory.\n"
    assert run_embed(path, "-o", out) == (78, message)


def test_directory_in_use_is_not_written(tmp_path: Path, run_embed: RunEmbed) -> None:
    path, out = write_rows(tmp_path / "in.txt", [{"text": "a"}]), tmp_path / "out.npy"
    with embed_file.WorkDirectory.open(out, {}, b"", overwrite=False):
        problem = f"{out}.partial: in use by another process. Wait for its end."
        assert run_embed(path, "-o", out) == (73, f"attendant embed: {problem}\n")


def test_existing_output_is_replaced_only_on_request(tmp_path: Path, run_embed: RunEmbed) -> None:
    path, out = write_rows(tmp_path / "in.txt", [{"text": "a"}, {"text": ""}]), tmp_path / "out.jsonl"
    assert run_embed(path, "-o", out)[0] == 1
    before = out.read_bytes()
    assert run_embed(path, "-o", out) == (73, f"attendant embed: {out}: exists. Remove it or set --overwrite.\n")
    path.write_text("b\n")
    assert run_embed(path, "-o", out, "--overwrite")[0] == 0
    assert out.read_bytes() != before
    assert not rejected_path(out).exists()
