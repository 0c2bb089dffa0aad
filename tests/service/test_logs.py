"""Log formats: text on a terminal, otherwise JSON."""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from service.logs import (
    MAX_LINE_BYTES,
    MAX_QUEUED_LINES,
    JsonFormatter,
    LineLimit,
    TextFormatter,
    chunk_lines,
    count_dropped_lines,
    set_up_logging,
)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, restored after the test."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def record(message: str, request_id: str | None = None, fault: bool = False) -> logging.LogRecord:
    info = None
    if fault:
        try:
            raise ValueError("inside")
        except ValueError:
            info = sys.exc_info()
    values = ("x",) if "%s" in message else ()
    result = logging.LogRecord("attendant.rest", logging.ERROR, "file", 1, message, values, info)
    if request_id:
        result.request_id = request_id
    return result


def test_json_record_is_one_line() -> None:
    line = JsonFormatter().format(record("two\nlines and %s", "id-1", fault=True))
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["level"], fields["logger"], fields["message"]) == ("error", "attendant.rest", "two\nlines and x")
    assert (fields["request_id"], "ValueError: inside" in fields["trace"]) == ("id-1", True)
    assert fields["time"].endswith("+00:00")


def test_json_record_omits_missing_request_id_and_trace() -> None:
    assert set(json.loads(JsonFormatter().format(record("a")))) == {"time", "level", "logger", "message"}


def test_text_record_ends_with_the_request_id() -> None:
    assert TextFormatter().format(record("a", "id-1")).endswith("ERROR   a (request id-1)")
    assert TextFormatter().format(record("a")).endswith("ERROR   a")


@pytest.mark.parametrize(("style", "formatter"), [("text", TextFormatter), ("json", JsonFormatter),
                                                  ("auto", JsonFormatter)])  # fmt: skip
def test_log_format_is_selected(root: logging.Logger, style: str, formatter: type[logging.Formatter]) -> None:
    """`auto` selects JSON unless stderr is a terminal."""
    set_up_logging("warning", style)  # type: ignore[arg-type]
    assert isinstance(root.handlers[-1].formatter, formatter)
    assert root.level == logging.WARNING


def test_dropped_lines_are_counted(root: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()
    monkeypatch.setattr("service.logs._write", lambda data: written.wait(10))  # a pipe that nobody reads
    set_up_logging("warning", "text")
    dropped: list[int] = []
    count_dropped_lines(lambda: dropped.append(1))
    for _ in range(2 * MAX_QUEUED_LINES):  # the thread takes some of them before its first write
        root.warning("line")
    written.set()
    assert 1 <= len(dropped) <= MAX_QUEUED_LINES


def test_lines_that_cannot_be_written_are_counted() -> None:
    """The disk is full."""
    program = (
        "import logging, sys\n"
        "from service.logs import count_dropped_lines, set_up_logging\n"
        "set_up_logging('warning', 'text')\n"
        "dropped = []\n"
        "count_dropped_lines(lambda: dropped.append(1))\n"
        "for _ in range(5): logging.warning('line')\n"
        "logging.shutdown()\n"
        "print(len(dropped))\n"
    )
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=True)
    assert int(done.stdout) >= 5  # and one that tells their number


def test_lines_of_a_kind_are_limited() -> None:
    limit = LineLimit(per_s=0.0, burst=2)
    assert [limit.admit("401") for _ in range(4)] == [0, 0, None, None]
    assert limit.admit("429") == 0
    limit = LineLimit(per_s=1e9, burst=2)
    limit._kinds["401"] = (0.5, time.monotonic() + 1000, 7)  # no time has passed
    assert limit.admit("401") is None
    limit._kinds["401"] = (0.5, time.monotonic() - 1, 7)
    assert limit.admit("401") == 7


@pytest.mark.parametrize("character", ["x", "\n", "\u00e9", "\U0001f600", "\x00"])
def test_line_of_a_worker_is_short_enough_for_one_write(character: str) -> None:
    """Lines of several processes would mix otherwise. The end of a traceback, with the error, stays."""
    fault = record(character * 10_000, "id-1", fault=True)
    line = JsonFormatter(worker=3).format(fault)
    assert len(line.encode()) < MAX_LINE_BYTES
    fields = json.loads(line)
    assert (fields["worker"], fields["request_id"]) == (3, "id-1")
    assert len(JsonFormatter().format(fault)) > MAX_LINE_BYTES  # one process writes all of it


def test_text_of_a_worker_has_its_number() -> None:
    assert "[3] two" in TextFormatter(worker=3).format(record("two"))


def test_lines_are_written_in_parts_that_a_pipe_keeps_together() -> None:
    lines = [f"{number} {'x' * 900}\n" for number in range(10)]
    parts = list(chunk_lines([*lines, "y" * 5000 + "\n"]))
    assert b"".join(parts).decode() == "".join(lines) + "y" * 5000 + "\n"
    assert [part.count(b"\n") for part in parts] == [4, 4, 2, 1]
