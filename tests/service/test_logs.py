"""Logs: readable on a terminal, JSON elsewhere."""

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from service.logs import JsonFormatter, TextFormatter, set_up_logging


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back afterwards."""
    found = logging.getLogger()
    handlers, level = found.handlers[:], found.level
    yield found
    found.handlers[:] = handlers
    found.setLevel(level)


def record(message: str, request_id: str | None = None, fault: bool = False) -> logging.LogRecord:
    info = None
    if fault:
        try:
            raise ValueError("inside")
        except ValueError:
            info = sys.exc_info()
    values = ("x",) if "%s" in message else ()
    made = logging.LogRecord("attendant.rest", logging.ERROR, "file", 1, message, values, info)
    if request_id:
        made.request_id = request_id
    return made


def test_json_is_one_object_a_line() -> None:
    """With time, level, logger, message, and the request it belongs to."""
    line = JsonFormatter().format(record("two\nlines and %s", "id-1", fault=True))
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", "attendant.rest", "two\nlines and x")
    assert (found["request_id"], "ValueError: inside" in found["trace"]) == ("id-1", True)
    assert found["time"].endswith("+00:00")


def test_json_leaves_out_what_is_not_there() -> None:
    """No empty request id, no empty trace."""
    assert set(json.loads(JsonFormatter().format(record("a")))) == {"time", "level", "logger", "message"}


def test_text_names_the_request() -> None:
    """At the end of the line, where there is one."""
    assert TextFormatter().format(record("a", "id-1")).endswith("ERROR   a (request id-1)")
    assert TextFormatter().format(record("a")).endswith("ERROR   a")


@pytest.mark.parametrize(("style", "formatter"), [("text", TextFormatter), ("json", JsonFormatter),
                                                  ("auto", JsonFormatter)])  # fmt: skip
def test_log_format_is_selected(root: logging.Logger, style: str, formatter: type[logging.Formatter]) -> None:
    """auto is JSON where stderr is no terminal."""
    set_up_logging("warning", style)  # type: ignore[arg-type]
    assert isinstance(root.handlers[-1].formatter, formatter)
    assert root.level == logging.WARNING
