"""Traces: one OpenTelemetry span per request, exported over OTLP as configured by the standard variables `OTEL_*`."""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from service import __version__
from service.config import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from service.spans import Tracing

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
GRPC, HTTP = "grpc", "http/protobuf"
SERVICE_NAME = "attendant"

log = logging.getLogger("attendant.tracing")


def start_tracing(environ: Mapping[str, str] = os.environ) -> "Tracing | None":
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

        from service.spans import Tracing
    except ImportError:
        message = f"{endpoint}: requires the extra otel. Install attendant[otel], or unset the variable."
        raise ConfigError(message) from None

    resource = Resource.create({"service.name": environ.get("OTEL_SERVICE_NAME", SERVICE_NAME),
                                "service.version": __version__})  # fmt: skip
    tracing = Tracing(TracerProvider(resource=resource), _make_exporter(environ))
    log.info("tracing started endpoint=%s", environ[endpoint])
    return tracing


def _make_exporter(environ: Mapping[str, str]) -> "SpanExporter":
    protocol = next((environ[name] for name in PROTOCOLS if environ.get(name)), GRPC)
    if protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter()
    name = next(name for name in PROTOCOLS if environ.get(name))
    raise ConfigError(f'{name}: unknown protocol ("{protocol}"). Use "{GRPC}" or "{HTTP}".')
