"""Logs: text on a terminal, JSON elsewhere. They never contain input text or API keys."""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

import orjson


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := getattr(record, "request_id", None):
            line["request_id"] = request_id
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


class TextFormatter(logging.Formatter):
    """Time of day, level, message and request ID."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s%(request)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", None)
        record.request = f" (request {request_id})" if request_id else ""
        return super().format(record)


def set_up_logging(level: str, style: Literal["auto", "text", "json"]) -> None:
    """Write the logs of the process to stderr."""
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # grpc logs client disconnections as errors with a traceback; the interceptor logs the errors that matter.
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)
