"""Logs: their format, and the record of each request."""

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from attendant_client.pb import encoder_pb2 as pb
from google.protobuf.descriptor import ServiceDescriptor
from prometheus_client import CollectorRegistry

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
from service.metrics import CALLER_OUTCOMES, Metrics
from service.request_log import RequestLog, RequestRecord, caller_outcome, sampled_trace, traceparent
from service.rpc.inference import SERVICE as OIP_SERVICE
from service.rpc.receiving import parse_peer
from service.rpc.servicer import SERVICE as ENCODER_SERVICE
from service.rpc.tei import SERVICES as TEI_SERVICES
from tests.conftest import READY_TIMEOUT_S, RunningServer, start_server
from tests.stubs import EncoderServiceStub


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


# A server process's access log: which requests it contains, and that it never delays them.

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TEXT = "zebra"
VALID, INVALID = {"inputs": TEXT}, {"inputs": TEXT, TEXT: TEXT}


@contextlib.contextmanager
def logging_server(model_dir: Path, lines: list[dict[str, Any]], **options: object) -> Iterator[RunningServer]:
    """Run a server. After the block, `lines` has the lines of its access log."""
    server = start_server(model_dir=model_dir, log_format="json", **options)
    try:
        yield server
    finally:
        server.process.terminate()
        _, log = server.process.communicate(timeout=READY_TIMEOUT_S)
        assert TEXT not in log
        parsed = [json.loads(line) for line in log.splitlines()]
        lines += [line for line in parsed if line["logger"] == "attendant.access"]


def send_requests(server: RunningServer) -> None:
    """Send one valid and one invalid request to each API, one to an unknown path, and one that is not HTTP."""
    with httpx.Client(base_url=server.rest) as client:
        for number, body in enumerate((VALID, INVALID)):
            headers = {"x-request-id": f"rest-{number}", "traceparent": TRACE}
            response = client.post("/v1/encode", json=body, headers=headers)
            assert response.headers["traceparent"] == TRACE
            wrong = {"dimensions": TEXT} if number else {}
            openai_body = {"input": body["inputs"], "model": "all-MiniLM-L6-v2"} | wrong
            client.post("/v1/embeddings", json=openai_body, headers={"x-request-id": f"openai-{number}"})
        client.get(f"/{TEXT}", headers={"x-request-id": "unknown", "traceparent": f"00-{TEXT}"})
        client.get("/livez")
    with grpc.insecure_channel(server.grpc) as channel:
        stub = EncoderServiceStub(channel)
        for number, text in enumerate((TEXT, "")):
            metadata = (("x-request-id", f"grpc-{number}"), ("traceparent", TRACE))
            message = pb.EncodeRequest(inputs=[pb.Input(text=text)])
            _, call = stub.Encode.with_call(message, metadata=metadata) if text else (None, None)
            if call is not None:
                assert dict(call.trailing_metadata())["traceparent"] == TRACE
                continue
            with pytest.raises(grpc.RpcError) as raised:
                stub.Encode(message, metadata=metadata)
            assert dict(raised.value.trailing_metadata())["traceparent"] == TRACE
        messages = [pb.EncodeStreamRequest(id=str(index), request=pb.EncodeRequest(inputs=[pb.Input(text=text)]))
                    for index, text in enumerate((TEXT, "", f"{TEXT} {TEXT}"))]  # fmt: skip
        assert len(list(stub.EncodeStream(iter(messages), metadata=(("x-request-id", "stream"),)))) == 3


FINISHED = {
    ("rest-0", "rest", "/v1/encode", "200", None),
    ("openai-0", "openai", "/v1/embeddings", "200", None),
    ("grpc-0", "grpc", "/attendant.v1.EncoderService/Encode", "OK", None),
    ("stream", "grpc", "/attendant.v1.EncoderService/EncodeStream", "OK", None),
}
REJECTED = {
    ("rest-1", "rest", "/v1/encode", "422", "UNKNOWN_FIELD"),
    ("openai-1", "openai", "/v1/embeddings", "400", "WRONG_TYPE"),
    ("grpc-1", "grpc", "/attendant.v1.EncoderService/Encode", "INVALID_ARGUMENT", "EMPTY"),
    ("stream", "grpc", "/attendant.v1.EncoderService/EncodeStream", "INVALID_ARGUMENT", "EMPTY"),
    ("unknown", "rest", "_OTHER", "404", "ROUTE_NOT_FOUND"),
}


@pytest.mark.parametrize(
    ("access_log", "expected"),
    [
        pytest.param("errors", REJECTED, marks=pytest.mark.slow),
        ("all", FINISHED | REJECTED),
        pytest.param("none", set(), marks=pytest.mark.slow),
    ],
)
def test_access_log_has_one_line_per_request(default_artifact: Path, access_log: str, expected: set[Any]) -> None:
    """A failed message in a stream has a line, too. Health checks have none, and no line contains client text."""
    lines: list[dict[str, Any]] = []
    with logging_server(default_artifact, lines, access_log=access_log) as server:
        send_requests(server)
    names = ("request_id", "api", "endpoint", "status", "reason")
    assert sorted(str([line.get(name) for name in names]) for line in lines) == sorted(
        str(list(line)) for line in expected
    )
    tokens = {line["request_id"]: line.get("tokens") for line in lines if line["status"] in ("200", "OK")}
    assert tokens == ({"rest-0": 3, "openai-0": 3, "grpc-0": 3, "stream": 7} if expected >= FINISHED else {})
    for line in lines:
        assert line["message"] == "request"
        assert line["ms"] >= 0
        assert line.get("traceparent") == (TRACE if line["request_id"][:5] in ("rest-", "grpc-") else None)


@pytest.mark.slow
def test_full_pipe_delays_no_request(default_artifact: Path) -> None:
    """Nobody reads the log, whose lines exceed the pipe buffer several times over."""
    lines: list[dict[str, Any]] = []
    with (
        logging_server(default_artifact, lines, access_log="all") as server,
        httpx.Client(base_url=server.rest, timeout=5) as client,
    ):
        for _ in range(2000):
            assert client.post("/v1/encode", json={}).status_code == 422
    assert len(lines) == 2000


def test_outcomes_of_callers() -> None:
    """A caller's own cancellations are not its errors. gRPC codes have the HTTP status of the same error."""
    outcomes = {status: caller_outcome(status) for status in (200, 400, 404, 422, 429, 499, 500, 503, 504)}
    assert set(outcomes.values()) == set(CALLER_OUTCOMES)
    assert [status for status, outcome in outcomes.items() if outcome == "rejected"] == [429, 503]
    assert [status for status, outcome in outcomes.items() if outcome == "cancelled"] == [499]
    assert [status for status, outcome in outcomes.items() if outcome == "ok"] == [200]


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        (TRACE, True),
        (TRACE.replace("00-", "cc-", 1) + "-more", True),
        (TRACE + "-more", False),
        (TRACE.replace("00-", "ff-", 1), False),
        (TRACE.upper(), False),
        (TRACE[:-1], False),
        ("00-" + "0" * 32 + TRACE[35:], False),
        (TRACE[:36] + "0" * 16 + "-01", False),
        ("", False),
    ],
)
def test_invalid_trace_context_is_ignored(value: str, is_valid: bool) -> None:
    assert traceparent(value) == (value if is_valid else "")


@pytest.mark.parametrize(("flags", "trace_id"), [("00", ""), ("01", TRACE[3:35]), ("03", TRACE[3:35])])
def test_only_sampled_traces_become_exemplars(flags: str, trace_id: str) -> None:
    assert sampled_trace(TRACE[:-2] + flags) == trace_id
    assert sampled_trace("") == ""


@pytest.mark.parametrize(
    ("peer", "parsed"),
    [
        ("ipv4:10.0.0.7:40000", ("10.0.0.7", 40000)),
        ("ipv6:%5B::1%5D:9", ("::1", 9)),
        ("ipv6:%5B::ffff:10.0.0.7%5D:9", ("10.0.0.7", 9)),
        ("", ("", 0)),
    ],
)
def test_address_of_a_grpc_peer(peer: str, parsed: tuple[str, int]) -> None:
    assert parse_peer(peer) == parsed


@pytest.mark.parametrize("service", [ENCODER_SERVICE, OIP_SERVICE, *TEI_SERVICES.values()], ids=lambda item: item.name)
def test_streams_are_never_slow(service: ServiceDescriptor, caplog: pytest.LogCaptureFixture) -> None:
    requests = RequestLog(Metrics(CollectorRegistry()), "none", slow_log_ms=1)
    for method in service.methods:
        endpoint, started = f"/{service.full_name}/{method.name}", time.perf_counter() - 1
        caplog.clear()
        requests.finish(RequestRecord("grpc", "id", endpoint=endpoint, started=started), "OK", 200)
        assert bool(caplog.records) != method.client_streaming


def test_slow_requests_are_logged_whatever_the_access_log(tiny_artifact: Path) -> None:
    lines: list[dict[str, Any]] = []
    with logging_server(tiny_artifact, lines, access_log="none", slow_log_ms=1) as server:
        httpx.post(f"{server.rest}/v1/encode", json={"inputs": [f"{TEXT} {TEXT}"] * 256})
        httpx.get(f"{server.rest}/v1/models", timeout=5)
        with grpc.insecure_channel(server.grpc) as channel:
            message = pb.EncodeRequest(inputs=[pb.Input(text=f"{TEXT} {TEXT}")] * 256)
            EncoderServiceStub(channel).Encode(message)
    slow = [line for line in lines if line["endpoint"].lower().endswith("encode")]
    assert [line["api"] for line in slow] == ["rest", "grpc"]
    for line in slow:
        assert (line["message"], line["level"], line["peer"]) == ("slow request", "warning", "127.0.0.1")
        assert (line["inputs"], line["batch_size"] > 0) == (256, True)
        assert line["bytes"] > 256
        assert line["queue_ms"] + line["run_ms"] + line["tokenize_ms"] + line["postprocess_ms"] <= line["ms"] + 1
