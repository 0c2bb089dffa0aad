"""Access log lines, and checks on them."""

import json
import logging
from typing import Any, get_args

from service.error_reasons import Reason
from service.logs import JsonFormatter

LINE_FIELDS = {
    "time", "level", "logger", "message", "request_id", "api", "endpoint", "status", "ms", "inputs", "tokens", "bytes",
}  # fmt: skip
RUN_FIELDS = {"tokenize_ms", "queue_ms", "run_ms", "postprocess_ms", "batch_size"}
"""Fields of requests that a lane ran."""
OTHER_APIS = ("/embed", "/embed_all", "/v2/models/{name}/infer")
"""Endpoints outside of the native API and of OpenAI's."""


class Lines(logging.Handler):
    """Lines of an access log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(JsonFormatter().format(record)))


def check_access_log(lines: list[dict[str, Any]], codes: dict[str, str], model: str) -> None:
    """Check that each request has one line, which contains nothing the client wrote except the request ID."""
    requests = [line for line in lines if line["endpoint"] != "/v1/model"]
    assert {line["request_id"]: line["status"] for line in requests} == codes
    assert len(requests) == len(codes)
    for line in requests:
        assert set(line) - {"reason", "model", "peer", *RUN_FIELDS} == LINE_FIELDS
        if "run_ms" in line:
            assert line.keys() >= RUN_FIELDS
            assert sum(line[name] for name in RUN_FIELDS - {"batch_size"}) <= line["ms"] + 1, line
            assert line["batch_size"] > 0 or not line["queue_ms"], line  # 0 if the model was not needed
            assert line["inputs"] > 0, line
        assert line.get("model") in (None, model)
        assert "model" in line or line["status"] not in ("200", "OK")
        operation = line["endpoint"].removeprefix("/v1/").removeprefix("/attendant.v1.EncoderService/")
        assert operation.replace("-", "").isalpha() or operation in OTHER_APIS
        assert line.get("reason") in (None, *get_args(Reason))
        assert (line["status"] in ("200", "OK")) == ("reason" not in line)
        assert (line["level"], line["message"]) == ("info", "request")
        assert (
            line["tokens"] > 0 or line["status"] not in ("200", "OK") or line["endpoint"].lower().endswith("tokenize")
        )
