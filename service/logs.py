"""Logs: text on a terminal, JSON elsewhere. They never contain input text or API keys."""

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Literal

import orjson

MAX_QUEUED_LINES = 10_000
FLUSH_TIMEOUT_S = 1.0
MAX_KINDS = 4096
STDERR = 2
MAX_LINE_BYTES = 4096
"""PIPE_BUF on Linux: longer writes by several processes may interleave in a pipe."""
OMITTED = " ... "


class LineLimit:
    """A rate limit per kind of log line, so that a flood of requests does not flood the log."""

    def __init__(self, per_s: float = 10.0, burst: int = 100) -> None:
        self._per_s = per_s
        self._burst = burst
        self._kinds: dict[Hashable, tuple[float, float, int]] = {}  # level, time and suppressed lines

    def admit(self, kind: Hashable) -> int | None:
        """Return how many lines of a kind were suppressed before this one; None to suppress this one too."""
        now = time.monotonic()
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        level, updated, suppressed = self._kinds.get(kind, (float(self._burst), now, 0))
        level = min(self._burst, level + (now - updated) * self._per_s)
        if level < 1:
            self._kinds[kind] = level, now, suppressed + 1
            return None
        self._kinds[kind] = level - 1, now, 0
        return suppressed


class JsonFormatter(logging.Formatter):
    """One JSON object per line, of at most `MAX_LINE_BYTES` if there are several workers."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str | int | float] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._worker is not None:
            line["worker"] = self._worker
        if request_id := getattr(record, "request_id", None):
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        formatted = orjson.dumps(line)
        if self._worker is not None:
            for name in ("trace", "message"):
                if (excess := len(formatted) + 1 - MAX_LINE_BYTES) > 0 and name in line:
                    line[name] = shorten(str(line[name]), excess)
                    formatted = orjson.dumps(line)
        return formatted.decode()


def shorten(text: str, excess: int) -> str:
    """Cut the middle out of a text, so that its JSON is `excess` bytes shorter.

    A character takes at most six bytes in JSON.
    """
    kept = max(0, len(text) - excess - len(OMITTED)) if text.isascii() else max(0, MAX_LINE_BYTES // 8)
    return text[: kept // 4] + OMITTED + text[len(text) - (kept - kept // 4) :]


class TextFormatter(logging.Formatter):
    """Time of day, level, worker, message, fields and request ID."""

    def __init__(self, worker: int | None = None) -> None:
        number = "" if worker is None else f"[{worker}] "
        super().__init__(f"%(asctime)s %(levelname)-7s {number}%(message)s%(details)s%(request)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        record.details = "".join(f" {name}={value}" for name, value in fields.items())
        request_id = getattr(record, "request_id", None)
        record.request = f" (request {request_id})" if request_id else ""
        return super().format(record)


class BackgroundHandler(logging.Handler):
    """Writes log lines to stderr in a thread.

    Writing to a pipe blocks while its reader is slow, which would stop the event loop and thus the whole server. Lines
    are dropped while `MAX_QUEUED_LINES` are queued, or if writing fails, such as on a full disk; `on_dropped` is called
    for each dropped line.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_dropped: Callable[[], None] = lambda: None
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._dropped = 0
        threading.Thread(target=self._write_lines, name="attendant-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line. The record is formatted first, because it may reference a traceback and its frames."""
        if self._lines.qsize() >= MAX_QUEUED_LINES:
            self._count_dropped(1)
        else:
            self._lines.put(self.format(record) + "\n")

    def flush(self) -> None:
        """Wait until all queued lines are written, at most `FLUSH_TIMEOUT_S`."""
        written = threading.Event()
        self._lines.put(written)
        written.wait(FLUSH_TIMEOUT_S)

    def _write_lines(self) -> None:
        while True:
            items = [self._lines.get()]
            while not self._lines.empty():
                items.append(self._lines.get())
            if self._dropped:
                items.insert(0, self._describe_dropped())
            lines = [item for item in items if isinstance(item, str)]
            if not all(_write(chunk) for chunk in chunk_lines(lines)):
                self._count_dropped(len(lines))
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()

    def _count_dropped(self, lines: int) -> None:
        self._dropped += lines
        for _ in range(lines):
            self.on_dropped()

    def _describe_dropped(self) -> str:
        dropped, self._dropped = self._dropped, 0
        record = logging.LogRecord(
            "attendant.logs", logging.WARNING, __file__, 0, "log lines dropped count=%d", (dropped,), None
        )
        return self.format(record) + "\n"


def chunk_lines(lines: Iterable[str]) -> Iterator[bytes]:
    """Join lines into as few chunks as possible that the kernel writes to a pipe atomically."""
    chunk = b""
    for line in lines:
        data = line.encode()
        if chunk and len(chunk) + len(data) > MAX_LINE_BYTES:
            yield chunk
            chunk = b""
        chunk += data
    if chunk:
        yield chunk


def _write(data: bytes) -> bool:
    """Write to stderr; return False if that fails: the disk may be full, or the reader of a pipe gone.

    This bypasses the lock of `sys.stderr`, which a blocked write would still hold when the process exits.
    """
    try:
        while data:
            data = data[os.write(STDERR, data) :]
    except OSError:
        return False
    return True


def count_dropped_lines(count: Callable[[], None]) -> None:
    """Call `count` for each line that the process's log handlers drop."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, BackgroundHandler):
            handler.on_dropped = count


def set_up_logging(level: str, style: Literal["auto", "text", "json"], worker: int | None = None) -> None:
    """Log to stderr. `worker`: a worker's number, included in its lines."""
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler = BackgroundHandler()
    handler.setFormatter(TextFormatter(worker) if text else JsonFormatter(worker))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # grpc logs client disconnections as errors with a traceback; the interceptor logs the errors that matter.
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)
    # gRPC's C core writes to stderr directly: one line per failed TLS handshake, in a different format.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
