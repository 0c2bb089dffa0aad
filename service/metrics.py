"""Every metric, declared once on the registry that is passed in. Base units; label sets exist from the start."""

import time
from collections.abc import Callable, Iterable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
STAGE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
POWERS_OF_TWO = tuple(2**n for n in range(11))  # 1 to 1024
TOKENS = tuple(2**n for n in range(14))  # 1 to 8192
RESPONSE_BYTES = tuple(2**n for n in range(10, 27, 2))  # 1 KiB to 64 MiB
SHARE = tuple(n / 20 for n in range(1, 20))  # 0.05 to 0.95

STAGES = ("tokenize", "queue", "inference", "postprocess")
REJECTIONS = ("queue_full", "deadline", "draining", "overload", "auth", "too_large", "invalid")


class Metrics:
    """The instruments. `door` is a protocol at the edge, `method` a route template or RPC, never a raw path."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "attendant_requests", "Requests answered, by status.", ["door", "method", "code"], registry=registry
        )
        self.request_seconds = Histogram(
            "attendant_request_duration_seconds",
            "From the request's arrival to its answer.",
            ["door", "method", "outcome"],
            buckets=LATENCY_S,
            registry=registry,
        )
        self.in_flight = Gauge("attendant_requests_in_flight", "Requests being answered.", registry=registry)
        self.request_inputs = Histogram(
            "attendant_request_inputs", "Inputs in a request.", buckets=POWERS_OF_TWO, registry=registry
        )
        self.request_tokens = Histogram(
            "attendant_request_tokens", "Tokens in a request.", buckets=TOKENS, registry=registry
        )
        self.response_bytes = Histogram(
            "attendant_response_bytes", "Bytes of an answer.", ["door"], buckets=RESPONSE_BYTES, registry=registry
        )
        self.tokens = Counter("attendant_tokens", "Tokens read by the model, padding left out.", registry=registry)
        self.truncated_inputs = Counter(
            "attendant_truncated_inputs", "Inputs cut to the model's limit.", registry=registry
        )
        self.rejected = Counter("attendant_rejected", "Requests refused, by reason.", ["reason"], registry=registry)
        self.cancelled = Counter(
            "attendant_cancelled",
            "Texts dropped because nobody waited for them any more.",
            ["where"],
            registry=registry,
        )
        self.stage_seconds = Histogram(
            "attendant_stage_duration_seconds",
            "Time in each stage: tokenize and postprocess of a request, queue until its first row, inference of a row.",
            ["stage", "lane"],
            buckets=STAGE_S,
            registry=registry,
        )
        self.queue_texts = Gauge("attendant_queue_texts", "Texts waiting for a row.", ["lane"], registry=registry)
        self.queue_tokens = Gauge("attendant_queue_tokens", "Tokens waiting for a row.", ["lane"], registry=registry)
        self.queue_utilization = Gauge(
            "attendant_queue_utilization", "Waiting tokens as a share of the limit.", ["lane"], registry=registry
        )
        self.row_texts = Histogram(
            "attendant_batch_size", "Texts in a row.", ["lane"], buckets=POWERS_OF_TWO, registry=registry
        )
        self.row_tokens = Histogram(
            "attendant_batch_tokens", "Tokens in a row, padding left out.", ["lane"], buckets=TOKENS, registry=registry
        )
        self.row_padding = Histogram(
            "attendant_batch_padding_ratio",
            "Share of a row that is padding.",
            ["lane"],
            buckets=SHARE,
            registry=registry,
        )
        self.busy_seconds = Counter(
            "attendant_inference_busy_seconds",
            "Time spent running rows, times the threads that ran them.",
            ["lane"],
            registry=registry,
        )
        self.inference_errors = Counter(
            "attendant_inference_errors", "Rows that the runtime failed.", ["lane"], registry=registry
        )
        self.row_retries = Counter(
            "attendant_batch_retries", "Parts of a failed row that were run again.", ["lane"], registry=registry
        )
        self.nonfinite_outputs = Counter(
            "attendant_nonfinite_outputs", "Texts whose vectors were not finite.", ["lane"], registry=registry
        )
        self.loop_lag_seconds = Histogram(
            "attendant_event_loop_lag_seconds",
            "How late the event loop turned.",
            buckets=LATENCY_S,
            registry=registry,
        )
        self.ready = Gauge("attendant_ready", "1 while requests are taken.", registry=registry)
        self.draining = Gauge("attendant_draining", "1 from SIGTERM on.", registry=registry)
        self.build_info = Gauge("attendant_build_info", "The version.", ["version"], registry=registry)
        self.model_info = Gauge(
            "attendant_model_info",
            "What is served.",
            ["model", "sha256", "provider", "precision"],
            registry=registry,
        )
        # Looking a label set up costs as much as counting; every set that is counted is kept by the metric anyway.
        self._counters = cache(self._find_counters)
        for reason in REJECTIONS:
            self.rejected.labels(reason)
        for where in ("queue", "batch"):
            self.cancelled.labels(where)

    def create_requests(self, door: str, methods: Iterable[str]) -> None:
        """Make a door's label sets exist before its first request, so that rates start from 0.

        Only those of a good outcome: a histogram has fifteen series a label set, and the bad ones may never come.
        """
        for method in methods:
            self.request_seconds.labels(door, method, "ok")
            self.requests.labels(door, method, "OK" if door == "grpc" else "200")
        self.response_bytes.labels(door)

    def create_lane(self, lane: str) -> None:
        """The same for a lane."""
        for stage in STAGES:
            self.stage_seconds.labels(stage, lane)
        for metric in (
            self.queue_texts, self.queue_tokens, self.queue_utilization, self.row_texts, self.row_tokens,
            self.row_padding, self.busy_seconds, self.inference_errors, self.row_retries, self.nonfinite_outputs,
        ):  # fmt: skip
            metric.labels(lane)

    def count_rejection(self, label: str) -> None:
        """Count a rejection by the label of its error; "" is no rejection."""
        if label:
            self.rejected.labels(label).inc()

    def observe_request(self, door: str, method: str, code: str, http_status: int, started: float) -> None:
        """Count one answer; `started` is a time.perf_counter() reading."""
        count, observe = self._counters(door, method, code, http_status)
        count()
        observe(time.perf_counter() - started)

    def _find_counters(
        self, door: str, method: str, code: str, http_status: int
    ) -> tuple[Callable[[], None], Callable[[float], None]]:
        if http_status < 400:
            outcome = "ok"
        elif http_status in (429, 503):
            outcome = "shed"
        elif http_status < 500 or http_status == 501:
            outcome = "client_error"
        else:
            outcome = "error"
        return self.requests.labels(door, method, code).inc, self.request_seconds.labels(door, method, outcome).observe
