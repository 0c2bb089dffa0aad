"""Request spans. Requires the extra `otel`.

A span is created from the request record after the request has finished, so that unsampled requests cost little. It is
created as a finished span, as span processors receive it; a tracer's span, which is mutable while open, takes five
times as long.
"""

import time
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from service import __version__
from service.callers import ANONYMOUS

if TYPE_CHECKING:
    from service.request_log import RequestRecord

SHUTDOWN_MS = 2000
SCOPE = InstrumentationScope("attendant", __version__)
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
UNSET = Status(StatusCode.UNSET)


class Tracing:
    """Creates the spans of requests and exports them in a thread."""

    def __init__(self, provider: TracerProvider, exporter: SpanExporter) -> None:
        """Use a provider's sampler, ID generator and resource."""
        self._provider = provider
        self._processor = BatchSpanProcessor(exporter)
        provider.add_span_processor(self._processor)

    def record(self, record: "RequestRecord", code: str, http_status: int, *, is_slow: bool) -> None:
        """Export a finished request as a span. The stages are events, or separate spans for a slow request.

        An event marks the start of its stage; each stage ends when the next one starts.
        """
        parent, context = _read_parent(record)
        trace_id = self._provider.id_generator.generate_trace_id() if parent is None else parent.trace_id
        name = _name(record)
        sampling = self._provider.sampler.should_sample(context, trace_id, name, SpanKind.SERVER)
        if not sampling.decision.is_sampled():  # type: ignore[no-untyped-call]
            return
        end_ns = time.time_ns()
        offset = end_ns - int(time.perf_counter() * 1e9)
        stages = [(stage, offset + int(start * 1e9), offset + int(end * 1e9)) for stage, start, end in record.stages()]
        own = self._make_context(trace_id, sampling.trace_state)
        if is_slow:
            for stage, stage_start_ns, stage_end_ns in stages:
                child = self._make_context(trace_id, sampling.trace_state)
                self._export(name=stage, context=child, parent=own, start_time=stage_start_ns, end_time=stage_end_ns)
        self._export(
            name=name,
            context=own,
            parent=parent,
            kind=SpanKind.SERVER,
            attributes=_attributes(record, code) | dict(sampling.attributes or {}),
            events=() if is_slow else [Event(stage, timestamp=start_ns) for stage, start_ns, _ in stages],
            status=Status(StatusCode.ERROR, record.reason or None) if http_status >= 500 else UNSET,
            start_time=offset + int(record.started * 1e9),
            end_time=end_ns,
        )

    def _make_context(self, trace_id: int, trace_state: TraceState | None) -> SpanContext:
        return SpanContext(trace_id, self._provider.id_generator.generate_span_id(), False, SAMPLED, trace_state)

    def _export(self, **fields: Any) -> None:
        self._processor.on_end(ReadableSpan(resource=self._provider.resource, instrumentation_scope=SCOPE, **fields))

    def close(self) -> None:
        """Export the remaining spans, for at most `SHUTDOWN_MS`."""
        self._provider.force_flush(SHUTDOWN_MS)
        self._provider.shutdown()


def _name(record: "RequestRecord") -> str:
    return f"{record.method} {record.endpoint}" if record.method else record.endpoint.removeprefix("/")


def _read_parent(record: "RequestRecord") -> tuple[SpanContext | None, Context | None]:
    """Return the client's span and the context for the sampler; None and None start a new trace."""
    if not record.traceparent:
        return None, None
    _, trace_id, parent_id, flags = record.traceparent.split("-")[:4]
    state = TraceState.from_header([record.tracestate] if record.tracestate else [])
    parent = SpanContext(
        int(trace_id, 16), int(parent_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)), trace_state=state
    )
    return parent, set_span_in_context(NonRecordingSpan(parent))


def _attributes(record: "RequestRecord", code: str) -> dict[str, str | int]:
    """Return a span's attributes, named by the semantic conventions for HTTP and RPC where defined."""
    attributes: dict[str, str | int] = {
        "client.address": record.peer,
        "attendant.request_id": record.request_id,
        "attendant.model": record.model,
        "attendant.inputs": record.inputs,
        "attendant.tokens": record.tokens,
        "attendant.batch_size": record.batch_size,
    }
    if record.caller is not ANONYMOUS:
        attributes["attendant.caller"] = record.caller.name
    if record.method:
        attributes |= {"http.request.method": record.method, "http.route": record.endpoint,
                       "http.response.status_code": int(code)}  # fmt: skip
    else:
        attributes |= {"rpc.system": "grpc", "rpc.method": record.endpoint, "rpc.grpc.status_code": code}
    return attributes | ({"error.type": record.reason} if record.reason else {})
