"""Traces: what an OTLP receiver gets for requests over REST and gRPC."""

import gzip
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from attendant_client.pb import encoder_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
)
from opentelemetry.trace import StatusCode

from service.config import ConfigError
from service.request_log import RequestRecord
from service.spans import Tracing
from service.tracing import start_tracing
from tests.conftest import serving
from tests.keys import named_key
from tests.stubs import EncoderServiceStub

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = (f"00-{TRACE_ID}-{PARENT_ID}-{flags}" for flags in ("01", "00"))
STATE = "vendor=abc, other=d"
STATES = [("tracestate", item) for item in STATE.split(", ")]  # a header may be sent in parts
TEXT = "zebra"
STAGES = ["tokenize", "queue", "run", "postprocess"]

Request = otlp.ExportTraceServiceRequest


@contextmanager
def http_receiver(requests: list[Any]) -> Iterator[str]:
    """Receive OTLP over HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            requests.append(Request.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def grpc_receiver(requests: list[Any]) -> Iterator[str]:
    """Receive OTLP over gRPC."""

    class Servicer(otlp_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # the name of the RPC
            requests.append(request)
            return otlp.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    otlp_grpc.add_TraceServiceServicer_to_server(Servicer(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(None).wait()


def spans_of(requests: list[Any]) -> list[Any]:
    scopes = [scope for item in requests for part in item.resource_spans for scope in part.scope_spans]
    return [span for scope in scopes for span in scope.spans]


def attributes_of(span: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


@pytest.mark.parametrize(
    ("protocol", "receiver"),
    [("http/protobuf", http_receiver), pytest.param("grpc", grpc_receiver, marks=pytest.mark.slow)],
)
def test_requests_are_exported(
    protocol: str,
    receiver: Callable[[list[Any]], Any],
    tiny_artifact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[Any] = []
    keys = tmp_path / "keys"
    keys.write_text(named_key("search", "key"))
    with receiver(requests) as endpoint:
        for name, value in {
            "EXPORTER_OTLP_ENDPOINT": endpoint,
            "EXPORTER_OTLP_PROTOCOL": protocol,
            "BSP_SCHEDULE_DELAY": "100",
            "RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        }.items():
            monkeypatch.setenv(f"OTEL_{name}", value)
        with serving(model_dir=tiny_artifact, api_keys_file=keys, slow_log_ms=60_000) as server:
            send_requests(server.rest, server.grpc)
            before = time.monotonic()  # the end exports the last spans
        assert time.monotonic() - before < 15
    spans = {attributes_of(span)["attendant.request_id"]: span for span in spans_of(requests)}
    assert set(spans) == {"rest", "grpc", "invalid", "new"}
    for request_id, span in spans.items():
        is_new = request_id == "new"
        assert (span.trace_id.hex() == TRACE_ID, span.parent_span_id.hex() == PARENT_ID) == (not is_new, not is_new)
        assert span.trace_state == ("" if is_new else STATE.replace(" ", ""))
        assert span.kind == span.SPAN_KIND_SERVER
        assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 30e9
        assert abs(span.end_time_unix_nano / 1e9 - time.time()) < 120
        stages = [] if request_id == "invalid" else STAGES
        assert [event.name for event in span.events] == stages
        times = [event.time_unix_nano for event in span.events]
        assert times == sorted(times)
        assert all(span.start_time_unix_nano <= moment <= span.end_time_unix_nano for moment in times)
        values = attributes_of(span)
        assert (values["attendant.caller"], values["client.address"]) == ("search", "127.0.0.1")
        assert values["attendant.tokens"] == (0 if request_id == "invalid" else 3)
        assert TEXT not in str(span)
    assert spans["rest"].name == "POST /v1/encode"
    assert attributes_of(spans["rest"])["http.response.status_code"] == 200
    assert spans["grpc"].name == "attendant.v1.EncoderService/Encode"
    assert attributes_of(spans["grpc"])["rpc.grpc.status_code"] == "OK"
    assert attributes_of(spans["invalid"])["error.type"] == "EMPTY"
    resource = attributes_of(requests[0].resource_spans[0].resource)
    assert resource["service.name"] == "attendant"
    assert resource["deployment.environment.name"] == "test"


def send_requests(rest: str, address: str) -> None:
    """Send traced requests to both APIs, one without a trace, and one whose trace is not sampled."""
    with httpx.Client(base_url=rest, headers={"x-api-key": "key"}) as client:
        for name, trace, text in (
            ("rest", SAMPLED, TEXT), ("invalid", SAMPLED, ""), ("unsampled", NOT_SAMPLED, TEXT), ("new", None, TEXT),
        ):  # fmt: skip
            headers = [("x-request-id", name), *([("traceparent", trace), *STATES] if trace else [])]
            client.post("/v1/encode", json={"inputs": text}, headers=headers)
        client.get("/livez")
    with grpc.insecure_channel(address) as channel:
        metadata = (("x-request-id", "grpc"), ("traceparent", SAMPLED), *STATES, ("x-api-key", "key"))
        message = pb.EncodeRequest(inputs=[pb.Input(text=TEXT)])
        EncoderServiceStub(channel).Encode(message, metadata=metadata)


def test_slow_requests_have_a_span_per_stage(tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []
    with http_receiver(requests) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        with serving(model_dir=tiny_artifact, slow_log_ms=1) as server:
            httpx.post(f"{server.rest}/v1/encode", json={"inputs": ["money bank grows"] * 256})
    spans = spans_of(requests)
    (parent,) = [span for span in spans if not span.parent_span_id]
    children = [span for span in spans if span.parent_span_id]
    assert [span.name for span in sorted(children, key=lambda span: span.start_time_unix_nano)] == STAGES
    assert {(span.parent_span_id, span.trace_id) for span in children} == {(parent.span_id, parent.trace_id)}
    assert not parent.events


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_tracing_is_off(environ: dict[str, str]) -> None:
    assert start_tracing(environ) is None


def test_invalid_configuration_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    with pytest.raises(ConfigError, match=r'OTEL_EXPORTER_OTLP_PROTOCOL: unknown protocol \("http/json"\)'):
        start_tracing(environ)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: requires the extra otel"):
        start_tracing(environ)


def exported(record: RequestRecord, sampler: Sampler, code: str = "200", status: int = 200) -> tuple[ReadableSpan, ...]:
    exporter = InMemorySpanExporter()
    tracing = Tracing(TracerProvider(sampler=sampler), exporter)
    tracing.record(record, code, status, is_slow=False)
    tracing.close()
    return exporter.get_finished_spans()


@pytest.mark.parametrize(
    ("sampler", "traceparent", "count"),
    [
        (ALWAYS_OFF, SAMPLED, 0),
        (ALWAYS_ON, NOT_SAMPLED, 1),
        (ParentBased(ALWAYS_OFF), SAMPLED, 1),
        (ParentBased(ALWAYS_OFF), "", 0),
        (ParentBased(ALWAYS_ON), NOT_SAMPLED, 0),
    ],
)
def test_sampler_decides(sampler: Sampler, traceparent: str, count: int) -> None:
    record = RequestRecord("rest", "id", traceparent, STATE if traceparent else "", endpoint="/v1/encode")
    spans = exported(record, sampler)
    assert len(spans) == count
    for span in spans:
        assert (span.parent is not None) == bool(traceparent)


@pytest.mark.parametrize(
    ("status", "code"), [(200, StatusCode.UNSET), (422, StatusCode.UNSET), (503, StatusCode.ERROR)]
)
def test_only_server_errors_are_errors(status: int, code: StatusCode) -> None:
    record = RequestRecord("rest", "id", endpoint="/v1/encode", method="POST", reason="REASON")
    (span,) = exported(record, ALWAYS_ON, str(status), status)
    assert span.status.status_code is code
    assert span.attributes is not None
    assert span.attributes["error.type"] == "REASON"
