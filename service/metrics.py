"""Every metric, declared once on the registry that is passed in.

Base units (seconds, bytes). Known label sets are created at startup.

A model creates at most `SERIES_PER_MODEL` series, and the process at most `PROCESS_SERIES` more
(tests/service/test_metrics.py). The PodMonitor's sample limit is derived from these numbers, so check new labels and
buckets against them. To save series, histograms have no endpoint label and count only successful requests.
"""

import asyncio
import gzip
import itertools
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client import Histogram as LinearHistogram
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from model.artifact.names import RESERVED
from service.shared_values import Aggregate

SERIES_PER_MODEL = 2050
PROCESS_SERIES = 300

OBJECTIVE_S = 1.0
"""The latency objective, in seconds. A failure caused by a shorter client deadline is not the server's fault."""
LATENCY_S = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, OBJECTIVE_S, 2.5, 5, 10, 30, 60,
)  # fmt: skip
LAG_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
STAGE_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
POWERS_OF_TWO = tuple(2**n for n in range(11))  # 1 to 1024
TOKENS = tuple(2**n for n in range(2, 14))  # 4 to 8192
RESPONSE_BYTES = tuple(2**n for n in range(10, 27, 2))  # 1 KiB to 64 MiB
SHARE = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75)

FAST_LANE, EXPLAIN_LANE = LANES = ("fast", "explain")
NO_LANE = "none"
"""Label for requests that are rejected before a lane is selected."""
SUM: Literal["livesum"] = "livesum"
LARGEST: Literal["livemax"] = "livemax"
SMALLEST: Literal["livemin"] = "livemin"
"""Aggregation of a gauge over workers."""
NO_MODEL = RESERVED
"""Label for requests that are rejected before a model is selected."""
LANE_REJECTIONS = ("queue_full", "deadline", "short_deadline")
CALLER_OUTCOMES = ("ok", "rejected", "cancelled", "error")
HTTP_CODES = ("200", "500", "503", "504")
GRPC_CODES = ("OK", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED")
GRPC_SERVICES = ("EncoderService/", "GRPCInferenceService/", "tei.v1.")
FAST_APIS = ("openai", "tei", "cohere", "vllm", "infinity", "huggingface", "ollama")
"""The APIs whose requests all run on the fast lane."""
CLOSING_REASONS = {"rest": ("limit", "idle", "stalled"), "grpc": ("limit", "idle", "stalled", "resets")}
COMPRESSION_LEVEL = 1
"""Compresses 600 KiB to a tenth in 5 ms; level 9 takes 20 ms for little gain."""
OTHER_REJECTIONS = ("starting", "draining", "backend_failed", "overload", "quota", "auth", "too_large", "invalid")


class Collected(Collector):
    """The values of a registry at some time."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    @classmethod
    async def from_registry(cls, registry: CollectorRegistry) -> "Collected":
        """Collect on the event loop, where the functions of gauges must run, and let others run in between."""
        families = []
        for family in registry.collect():
            families.append(family)
            await asyncio.sleep(0)
        return cls(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


async def render_metrics(values: Collector, accept: str, encodings: str) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a scrape, in the text format of Prometheus or in OpenMetrics.

    Args:
        values: collected and encoded in a thread, because that takes 15 us per series.
        accept: the header Accept; only OpenMetrics supports exemplars.
        encodings: the header Accept-Encoding.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except (ValueError, TypeError):  # an invalid version
        encode, content_type = choose_encoder("")
    headers = {"content-type": content_type}
    if not gzip_accepted(encodings):
        return await asyncio.to_thread(encode, values), headers
    headers["content-encoding"] = "gzip"
    return await asyncio.to_thread(lambda: gzip.compress(encode(values), COMPRESSION_LEVEL)), headers


class Histogram(LinearHistogram):
    """A histogram that finds a value's bucket by bisection, instead of comparing it with one bound after another."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        if exemplar is not None:
            super().observe(amount, exemplar)
            return
        self._sum.inc(amount)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)


class Metrics:
    """The instruments.

    Label `api` is rest, openai, tei, cohere, vllm, infinity, huggingface, ollama, oip or grpc; `endpoint` is a route
    template or RPC, never a raw path; `model` is the served name.
    """

    totals: Aggregate | None = None
    """The sums over all workers; None if this process is the whole server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry, multiprocess_mode=SUM)
        histogram = partial(Histogram, registry=registry)
        self.requests = counter("attendant_requests", "Responses by status.", ["api", "endpoint", "code", "model"])
        self.request_seconds = histogram(
            "attendant_request_duration_seconds",
            "Time from request to response of successful requests that a lane ran, without streams.",
            ["api", "lane", "model"],
            buckets=LATENCY_S,
        )
        self.in_flight = gauge("attendant_requests_in_flight", "Requests in progress.")
        self.connections = gauge("attendant_http_connections", "Open REST connections.")
        self.grpc_connections = gauge("attendant_grpc_connections", "Open gRPC connections.")
        self.connection_limit = gauge("attendant_connection_limit", "Maximum number of connections.", ["api"])
        self.closed_connections = counter(
            "attendant_closed_connections",
            "Connections that the server closed: over a limit, idle, not read (stalled), or with too many reset calls.",
            ["api", "reason"],
        )
        for api, reasons in CLOSING_REASONS.items():
            for reason in reasons:
                self.closed_connections.labels(api, reason)
        self.pending_response_bytes = gauge(
            "attendant_pending_response_bytes",
            "Bytes reserved for responses that are computed or that clients have not read yet.",
        )
        self.request_inputs = histogram(
            "attendant_request_inputs", "Inputs per request.", ["model"], buckets=POWERS_OF_TWO
        )
        self.request_tokens = histogram("attendant_request_tokens", "Tokens per request.", ["model"], buckets=TOKENS)
        self.response_bytes = histogram(
            "attendant_response_bytes", "Bytes per response.", ["api", "model"], buckets=RESPONSE_BYTES
        )
        self.tokens = counter("attendant_tokens", "Tokens processed by the model, without padding.", ["model"])
        self.truncated_inputs = counter(
            "attendant_truncated_inputs", "Inputs truncated to the limit of the model.", ["model"]
        )
        self.rejected_requests = counter(
            "attendant_rejected_requests", "Rejected requests by reason.", ["reason", "api", "lane", "model"]
        )
        self.cancelled_inputs = counter(
            "attendant_cancelled_inputs",
            "Inputs discarded after their request was cancelled, expired or failed.",
            ["stage", "model"],
        )
        self.stage_seconds = histogram(
            "attendant_stage_duration_seconds",
            "Time per stage: tokenize and postprocess per request, queue per input, inference per batch.",
            ["stage", "lane", "model"],
            buckets=STAGE_S,
        )
        self.queue_size = gauge("attendant_queue_size", "Queued inputs.", ["lane", "model"])
        self.queue_tokens = gauge("attendant_queue_tokens", "Queued tokens.", ["lane", "model"])
        self.queue_utilization = gauge(
            "attendant_queue_utilization",
            "Estimated wait of a small request divided by the limit.",
            ["lane", "model"],
            multiprocess_mode=LARGEST,
        )
        self.lane_up = gauge(
            "attendant_lane_up", "1 while the backend of the lane works.", ["lane", "model"], multiprocess_mode=SMALLEST
        )
        self.stalled_batches = gauge(
            "attendant_stalled_batches", "Running batches far beyond their expected time.", ["lane", "model"]
        )
        self.batch_size = histogram(
            "attendant_batch_size", "Inputs per batch.", ["lane", "model"], buckets=POWERS_OF_TWO
        )
        self.batch_tokens = histogram(
            "attendant_batch_tokens", "Tokens per batch, without padding.", ["lane", "model"], buckets=TOKENS
        )
        self.batch_padding = histogram(
            "attendant_batch_padding_ratio", "Padding per batch, as a ratio.", ["lane", "model"], buckets=SHARE
        )
        self.inference_thread_seconds = counter(
            "attendant_inference_thread_seconds", "Thread-seconds spent in inference.", ["lane", "model"]
        )
        self.inference_errors = counter("attendant_inference_errors", "Failed batches.", ["lane", "model"])
        self.batch_retries = counter("attendant_batch_retries", "Retried parts of failed batches.", ["lane", "model"])
        self.nonfinite_outputs = counter(
            "attendant_nonfinite_outputs", "Inputs with non-finite embeddings.", ["lane", "model"]
        )
        self.loop_lag_seconds = histogram(
            "attendant_event_loop_lag_seconds", "Delay of a periodic event-loop callback.", buckets=LAG_S
        )
        self.caller_requests = counter(
            "attendant_caller_requests",
            "Requests by caller: ok, rejected (by the server's limits or the caller's quota), cancelled (by the "
            "caller) or error.",
            ["caller", "outcome"],
        )
        self.caller_tokens = counter("attendant_caller_tokens", "Tokens in requests by caller.", ["caller"])
        self.reloads = counter(
            "attendant_reloads", "Reloads of changed files: api_keys, admin_keys, tls or models.", ["subject", "result"]
        )
        self.reload_failing = gauge(
            "attendant_reload_failing",
            "1 while changed files are invalid and the previous contents are in use.",
            ["subject"],
            multiprocess_mode=LARGEST,
        )
        self.dropped_log_lines = counter(
            "attendant_log_lines_dropped", "Log lines dropped because stderr was too slow."
        )
        self.worker_restarts = counter("attendant_worker_restarts", "Workers that ended and were replaced.")
        self.ready_workers = gauge("attendant_ready_workers", "Workers that accept requests.")
        self.ready = gauge("attendant_ready", "1 while requests are accepted.", multiprocess_mode=LARGEST)
        self.draining = gauge("attendant_draining", "1 after SIGTERM.", multiprocess_mode=LARGEST)
        self.tls_expiry = gauge(
            "attendant_tls_certificate_expiry_timestamp_seconds",
            "Earliest expiry in a TLS file: server (the certificate and its intermediates) or client_ca.",
            ["certificate"],
            multiprocess_mode=SMALLEST,
        )
        self.tls_handshake_failures = counter(
            "attendant_tls_handshake_failures",
            "Failed TLS handshakes by port (rest or admin) and reason. gRPC handshakes are not counted.",
            ["port", "reason"],
        )
        self.build_info = gauge(
            "attendant_build_info",
            "Version and git revision of the server.",
            ["version", "revision"],
            multiprocess_mode=LARGEST,
        )
        self.model_info = gauge(
            "attendant_model_info",
            "A served model.",
            ["model", "digest", "provider", "precision"],
            multiprocess_mode=LARGEST,
        )
        # Looking up a label set takes as long as incrementing it, and the metric keeps every set in memory anyway.
        self._counters = cache(lambda *labels: partial(self.requests.labels(*labels)._value.inc, 1))
        self._observers = cache(lambda metric, *labels: metric.labels(*labels).observe)
        self._endpoints: dict[str, list[str]] = {}
        self._models: list[str] = []

    def create_requests(self, api: str, endpoints: Sequence[str]) -> None:
        """Create the label sets of an API's endpoints, for existing models and models created later.

        Rates then start from 0, so that the first error counts. Codes that may never occur are not created.
        """
        self._endpoints.setdefault(api, []).extend(endpoints)
        for reason in OTHER_REJECTIONS:
            self.rejected_requests.labels(reason, api, NO_LANE, NO_MODEL)
        for model in self._models:
            self._create_endpoints(api, endpoints, model)

    def create_reloads(self, subject: str) -> None:
        """Create the label sets of watched files."""
        self.reload_failing.labels(subject)
        for result in ("success", "error"):
            self.reloads.labels(subject, result)

    def create_model(self, model: str) -> None:
        """Create the label sets of a model."""
        if model in self._models:  # the model replaces another of the same name
            return
        self._models.append(model)
        for api, endpoints in self._endpoints.items():
            self._create_endpoints(api, endpoints, model)

    def remove_model(self, model: str) -> None:
        """Remove the label sets of a model that is no longer served."""
        self._models.remove(model)
        for metric in vars(self).values():
            if isinstance(metric, MetricWrapperBase) and "model" in metric._labelnames:
                metric.remove_by_labels({"model": model})
        self._counters.cache_clear()
        self._observers.cache_clear()

    def read_samples(self, *metrics: MetricWrapperBase) -> Iterator[Sample]:
        """Yield the samples of metrics, summed over all workers. May take seconds after many changes of models."""
        if self.totals is not None:
            families = self.totals.collect({metric._name for metric in metrics})
        else:
            families = itertools.chain.from_iterable(metric.collect() for metric in metrics)
        return itertools.chain.from_iterable(family.samples for family in families)

    def read_functions(self) -> None:
        """Store the values of gauges that call a function, because another process cannot call it."""
        for metric in vars(self).values():
            if isinstance(metric, Gauge):
                children: Iterable[Any] = list(metric._metrics.values()) if metric._labelnames else [metric]
                for child in children:
                    child.set(next(iter(child._child_samples())).value)

    def describe_model(self, model: str, digest: str, provider: str, precision: str) -> None:
        """Set a model's description, replacing that of a previous artifact."""
        self.model_info.remove_by_labels({"model": model})
        self.model_info.labels(model, digest, provider, precision).set(1)

    def _create_endpoints(self, api: str, endpoints: Sequence[str], model: str) -> None:
        for endpoint in endpoints:
            for code in GRPC_CODES if any(name in endpoint for name in GRPC_SERVICES) else HTTP_CODES:
                self.requests.labels(api, endpoint, code, model)
        self.response_bytes.labels(api, model)
        for lane in LANES if api not in FAST_APIS else (FAST_LANE,):
            self.request_seconds.labels(api, lane, model)
            for reason in LANE_REJECTIONS:
                self.rejected_requests.labels(reason, api, lane, model)

    def create_callers(self, names: Iterable[str]) -> None:
        """Create the label sets of callers."""
        for name in names:
            self.caller_tokens.labels(name)
            for outcome in CALLER_OUTCOMES:
                self.caller_requests.labels(name, outcome)

    def remove_callers(self, names: Iterable[str]) -> None:
        """Remove the label sets of callers that no longer exist."""
        for name in names:
            self.caller_tokens.remove(name)
            for outcome in CALLER_OUTCOMES:
                self.caller_requests.remove(name, outcome)

    def count_caller(self, caller: str, outcome: str, tokens: int) -> None:
        """Count a request of a caller."""
        self.caller_requests.labels(caller, outcome).inc()
        if tokens:
            self.caller_tokens.labels(caller).inc(tokens)

    def describe_caller(self, name: str) -> dict[str, int]:
        """Return a caller's numbers of requests by outcome, and of tokens, since the server started."""
        totals = {f"{outcome}_requests": self.caller_requests.labels(name, outcome) for outcome in CALLER_OUTCOMES}
        totals["tokens"] = self.caller_tokens.labels(name)
        return {key: int(counter._value.get()) for key, counter in totals.items()}

    def count_rejection(self, reason: str, api: str, lane: str, model: str) -> None:
        """Count a rejection by the label of its error."""
        self.rejected_requests.labels(reason, api, lane, model).inc()

    def count_request(self, api: str, endpoint: str, code: str, model: str) -> None:
        """Count a response."""
        self._counters(api, endpoint, code, model)()

    def observe_size(self, api: str, model: str, size: int) -> None:
        """Count the bytes of a response."""
        self._observers(self.response_bytes, api, model)(size)

    def observe_duration(self, api: str, lane: str, model: str, started: float, trace_id: str = "") -> None:
        """Count the duration of a successful request; `started` is a time.perf_counter() reading.

        A trace ID becomes an exemplar of the bucket in the OpenMetrics format.
        """
        exemplar = {"trace_id": trace_id} if trace_id else None
        self._observers(self.request_seconds, api, lane, model)(time.perf_counter() - started, exemplar)
