"""Traces: one OpenTelemetry span per request, exported over OTLP as the standard variables `OTEL_*` say.

A span is created when its request has finished, from the facts in its record, so that a request without a sampled trace
costs nothing else. Requires the extra `otel`.
"""

import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from service import __version__
from service.config import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

    from service.request_log import RequestRecord

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
GRPC, HTTP = "grpc", "http/protobuf"
SERVICE_NAME = "attendant"
SHUTDOWN_MS = 2000

log = logging.getLogger("attendant.tracing")


class Tracing:
    """Creates the spans of requests and exports them in a thread."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("attendant", __version__)

    @classmethod
    def start(cls, environ: Mapping[str, str] = os.environ) -> "Tracing | None":
        """Return the tracing that `OTEL_*` variables select; None without an OTLP endpoint, or if it is disabled.

        Raises `ConfigError` if the extra `otel` is missing, or for an unknown protocol.
        """
        endpoint = next((name for name in ENDPOINTS if environ.get(name)), None)
        exporter = environ.get("OTEL_TRACES_EXPORTER", "otlp")
        if endpoint is None or exporter != "otlp" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            message = f"{endpoint}: requires the extra otel. Install attendant[otel], or unset the variable."
            raise ConfigError(message) from None

        resource = Resource.create({"service.name": environ.get("OTEL_SERVICE_NAME", SERVICE_NAME),
                                    "service.version": __version__})  # fmt: skip
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(_make_exporter(environ)))
        log.info("tracing started endpoint=%s", environ[endpoint])
        return cls(provider)

    def record(self, record: "RequestRecord", code: str, http_status: int, *, is_slow: bool) -> None:
        """Export a finished request as a span. The stages are events, or spans of their own for a slow request.

        An event is the start of its stage, and each stage ends with the start of the next one.
        """
        from opentelemetry.trace import SpanKind, Status, StatusCode

        offset = time.time_ns() - int(time.perf_counter() * 1e9)
        context = _parent(record)
        span: Span = self._tracer.start_span(
            _name(record), context, SpanKind.SERVER, start_time=offset + int(record.started * 1e9)
        )
        if span.is_recording():
            span.set_attributes(_attributes(record, code))
            if http_status >= 500:
                span.set_status(Status(StatusCode.ERROR, record.reason or None))
            for name, start, end in record.stages():
                start_ns, end_ns = offset + int(start * 1e9), offset + int(end * 1e9)
                if is_slow:
                    self._record_stage(span, name, start_ns, end_ns)
                else:
                    span.add_event(name, timestamp=start_ns)
        span.end()

    def _record_stage(self, parent: "Span", name: str, start_ns: int, end_ns: int) -> None:
        from opentelemetry.trace import set_span_in_context

        self._tracer.start_span(name, set_span_in_context(parent), start_time=start_ns).end(end_ns)

    def close(self) -> None:
        """Export the last spans, for at most `SHUTDOWN_MS`."""
        self._provider.force_flush(SHUTDOWN_MS)
        self._provider.shutdown()


def _make_exporter(environ: Mapping[str, str]) -> Any:
    protocol = next((environ[name] for name in PROTOCOLS if environ.get(name)), GRPC)
    if protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter()
    name = next(name for name in PROTOCOLS if environ.get(name))
    raise ConfigError(f'{name}: unknown protocol ("{protocol}"). Use "{GRPC}" or "{HTTP}".')


def _name(record: "RequestRecord") -> str:
    return f"{record.method} {record.endpoint}" if record.method else record.endpoint.removeprefix("/")


def _parent(record: "RequestRecord") -> Any:
    """Return the context of the client's trace; None starts a trace."""
    if not record.traceparent:
        return None
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

    _, trace_id, parent_id, flags = record.traceparent.split("-")[:4]
    state = TraceState.from_header([record.tracestate] if record.tracestate else [])
    context = SpanContext(
        int(trace_id, 16), int(parent_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)), trace_state=state
    )
    return set_span_in_context(NonRecordingSpan(context))


def _attributes(record: "RequestRecord", code: str) -> dict[str, str | int]:
    """Return the attributes of a span, by the semantic conventions for HTTP and RPC where they have one."""
    attributes: dict[str, str | int] = {
        "client.address": record.peer,
        "attendant.request_id": record.request_id,
        "attendant.model": record.model,
        "attendant.caller": record.caller.name,
        "attendant.inputs": record.inputs,
        "attendant.tokens": record.tokens,
        "attendant.batch_size": record.batch_size,
    }
    if record.method:
        attributes |= {"http.request.method": record.method, "http.route": record.endpoint,
                       "http.response.status_code": int(code)}  # fmt: skip
    else:
        attributes |= {"rpc.system": "grpc", "rpc.method": record.endpoint, "rpc.grpc.status_code": code}
    return attributes | ({"error.type": record.reason} if record.reason else {})
