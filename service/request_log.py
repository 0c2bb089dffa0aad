"""Request records, the source of request metrics and access log lines.

A record keeps the client's request ID and trace context if they are valid, to correlate client and server logs.
"""

import logging
import math
import random
import re
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from service.callers import ANONYMOUS, ANONYMOUS_NAME, Caller
from service.config import Settings
from service.errors import Cancelled, DeadlineExceeded, ServiceError
from service.logs import LineLimit
from service.memory import MemoryBudget, Reservation
from service.metrics import NO_LANE, NO_MODEL, OBJECTIVE_S, Metrics

if TYPE_CHECKING:
    from service.engine.engine import Engine
    from service.spans import Tracing

OTHER = "_OTHER"
"""The endpoint label for unknown paths and methods. Otherwise, a scanner could create unlimited series."""

SHORT_DEADLINE = "short_deadline"
"""The label for a deadline shorter than the latency objective: the client's choice, not a failure."""

SAMPLED = 1
"""The flag of a trace context whose trace is recorded (W3C Trace Context, section 3.2.3)."""
STAGES = ("tokenize", "queue", "run", "postprocess")
AccessLog = Literal["errors", "all", "none"]

HEADER = "x-request-id"
TRACE_HEADER, TRACE_STATE_HEADER = "traceparent", "tracestate"
_IDS = random.Random()  # noqa: S311  # seeded by the operating system: IDs are unique, but no secrets
_HARMLESS = re.compile(r"[A-Za-z0-9._-]{1,128}")
# W3C Trace Context, section 3.2: version, trace ID, parent ID and flags; later versions may append fields.
_TRACEPARENT = re.compile(
    r"(?!ff)(?!00-.{52}-)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[A-Za-z0-9._-]{1,64})?"
)

log = logging.getLogger("attendant.access")


def request_id(value: str) -> str:
    """Return the request ID in a header value, or a random ID if the value is not safe to log."""
    return value if _HARMLESS.fullmatch(value) else f"{_IDS.getrandbits(64):016x}"


def traceparent(value: str) -> str:
    """Return a valid trace context unchanged, and "" for any other value, which W3C Trace Context says to ignore."""
    return value if _TRACEPARENT.fullmatch(value) else ""


def sampled_trace(value: str) -> str:
    """Return the trace ID of a trace context whose trace is recorded; "" otherwise."""
    parts = value.split("-")
    return parts[1] if value and int(parts[3], 16) & SAMPLED else ""


@dataclass(slots=True)
class RequestRecord:
    """Data about one request for metrics, logs and traces. It never contains input text.

    `method` is the HTTP method, "" for gRPC. `stages_s` are the durations of the consecutive `STAGES`; the first one
    starts at `tokenize_started`, a time.perf_counter() reading. `bytes` is the size of the response. `batch_size` is
    the number of sequences in the first batch with one of the request's sequences. `response` is the memory reserved
    for the response; None sets no limit. `is_known`: whether a caller sent the request, with an accepted key if the
    server uses keys.

    Stores the label and reason of an error, not the exception: its traceback references every frame and would keep the
    request in memory until the next garbage collection.
    """

    api: str
    request_id: str
    traceparent: str = ""
    tracestate: str = ""
    method: str = ""
    endpoint: str = ""
    lane: str = NO_LANE
    model: str = NO_MODEL
    inputs: int = 0
    tokens: int = 0
    batch_size: int = 0
    stages_s: tuple[float, float, float, float] | None = None
    tokenize_started: float = 0.0
    peer: str = ""
    bytes: int = 0
    rejection: str = ""
    reason: str = ""
    cancelled: bool = False
    pause_s: float = 0.0
    timeout_s: float | None = None
    caller: Caller = ANONYMOUS
    admin: str = ""
    engine: "Engine | None" = None
    response: Reservation | None = None
    is_known: bool = False
    started: float = field(default_factory=time.perf_counter)

    def stages(self) -> Iterator[tuple[str, float, float]]:
        """Yield each stage's name, start and end, as time.perf_counter() readings; none if there are no stages."""
        start = self.tokenize_started
        for name, seconds in zip(STAGES, self.stages_s or (), strict=False):
            yield name, start, start + seconds
            start += seconds

    def use(self, engine: "Engine") -> None:
        """Acquire an engine until the request is finished, or until it uses another one."""
        if engine is not self.engine:
            self.release()
            engine.acquire()
            self.engine = engine

    def release(self) -> None:
        """Release the engine, if any."""
        if self.engine is not None:
            self.engine.release()
            self.engine = None

    @property
    def holder(self) -> str:
        """The holder that the request's memory is charged to: the named caller, else the client address."""
        return self.peer if self.caller.name == ANONYMOUS_NAME else self.caller.name

    def fail(self, error: ServiceError) -> None:
        """Record the error that the client receives."""
        self.rejection, self.reason, self.cancelled = error.label, error.reason, isinstance(error, Cancelled)
        self.pause_s = error.pause_s


_current: ContextVar[RequestRecord | None] = ContextVar("current request", default=None)
_response: ContextVar[Reservation | None] = ContextVar("memory of the response", default=None)


def set_current(record: RequestRecord) -> None:
    """Set the record that `current_record` returns in this task and the tasks it starts."""
    _current.set(record)
    _response.set(record.response)


def set_response(reservation: Reservation | None) -> None:
    """Set the reservation, one of several per call, for `reserve_response` in this task and the tasks it starts."""
    _response.set(reservation)


def current_response() -> Reservation | None:
    """Return the reservation of the current response; None without a limit."""
    return _response.get()


def reserve_response(size: int) -> None:
    """Reserve memory for the current response of at most `size` bytes. Raises the errors of `MemoryBudget.acquire`."""
    if (reservation := _response.get()) is not None:
        reservation.grow(size)


def current_record() -> RequestRecord | None:
    """Return the record of the current request, if any."""
    return _current.get()


def current_caller() -> Caller:
    """Return the caller of the current request; `ANONYMOUS` without one."""
    record = _current.get()
    return ANONYMOUS if record is None else record.caller


def current_admin() -> str:
    """Return the name of the admin who sent the current request; "" for other requests."""
    record = _current.get()
    return "" if record is None else record.admin


def caller_outcome(http_status: int) -> str:
    """Return the outcome of a request in the caller's metrics, one of `CALLER_OUTCOMES`."""
    if http_status in (429, 503):
        return "rejected"
    if http_status == Cancelled.http_status:
        return "cancelled"
    return "error" if http_status >= 400 else "ok"


class RequestLog:
    """Counts finished requests and writes the access log: one line per request, or per rejected or failed request."""

    def __init__(
        self,
        metrics: Metrics,
        access_log: AccessLog,
        slow_log_ms: int = 0,
        tracing: "Tracing | None" = None,
        responses: MemoryBudget | None = None,
    ) -> None:
        """`responses`: the memory of all responses; None sets no limit."""
        self.metrics = metrics
        self.responses = responses
        self._tracing = tracing
        self._lines = LineLimit()
        self._slow_s = slow_log_ms / 1000 or math.inf
        self._lowest_status = {"all": 0, "errors": 400, "none": 1000}[access_log]

    @classmethod
    def of(cls, settings: Settings, metrics: Metrics, tracing: "Tracing | None" = None) -> "RequestLog":
        """Create the log that the options describe."""
        responses = MemoryBudget(settings.max_pending_response_bytes, "responses")
        return cls(metrics, settings.access_log, settings.slow_log_ms, tracing, responses)

    def reservation(self) -> Reservation | None:
        """Return a reservation for a new request."""
        return None if self.responses is None else Reservation(self.responses)

    def finish(self, record: RequestRecord, code: str, http_status: int) -> None:
        """Count a request and log it. `code` is the HTTP status or the name of the gRPC status."""
        self.metrics.count_request(record.api, record.endpoint, code, record.model)
        if record.caller is not ANONYMOUS:
            self.metrics.count_caller(record.caller.name, caller_outcome(http_status), record.tokens)
        is_stream = "Stream" in record.endpoint  # open for as long as the client wants
        is_slow = not is_stream and time.perf_counter() - record.started > self._slow_s
        if http_status < 400 and record.lane != NO_LANE and not is_stream:
            self.metrics.observe_duration(
                record.api, record.lane, record.model, record.started, sampled_trace(record.traceparent)
            )
        if self._tracing is not None:
            self._tracing.record(record, code, http_status, is_slow=is_slow)
        if record.rejection or is_slow or http_status >= self._lowest_status:
            self.reject(record, code, http_status, is_slow=is_slow)
        record.release()

    def reject(self, record: RequestRecord, code: str, http_status: int, *, is_slow: bool = False) -> None:
        """Log a failed stream message, or a request without a valid head, and count it if it is a rejection."""
        if record.rejection == DeadlineExceeded.label and (record.timeout_s or OBJECTIVE_S) < OBJECTIVE_S:
            record.rejection = SHORT_DEADLINE
        if record.rejection:
            self.metrics.count_rejection(record.rejection, record.api, record.lane, record.model)
        if is_slow or http_status >= self._lowest_status:
            self._write(record, code, http_status, is_slow=is_slow)

    def reject_connection(self, error: ServiceError, request_id: str, address: str) -> None:
        """Count and log the rejection of a connection, or of a request with an invalid head."""
        record = RequestRecord("rest", request_id, endpoint=OTHER, peer=address)
        record.fail(error)
        self.metrics.count_request(record.api, OTHER, str(error.http_status), record.model)
        self.reject(record, str(error.http_status), error.http_status)

    def close_connection(self, api: str, reason: str, address: str) -> None:
        """Count and log a connection that the server closes."""
        self.metrics.closed_connections.labels(api, reason).inc()
        if (suppressed := self._lines.admit((api, reason))) is not None:
            fields = {"api": api, "reason": reason, "peer": address} | (
                {"suppressed_lines": suppressed} if suppressed else {}
            )
            log.warning("connection closed", extra={"fields": fields})

    def _write(self, record: RequestRecord, code: str, http_status: int, *, is_slow: bool) -> None:
        if http_status in (429, 503, 504) or (
            is_slow and http_status < 500
        ):  # load, a restart, or a short client timeout
            level = logging.WARNING
        else:
            level = logging.ERROR if http_status >= 500 and http_status != 501 else logging.INFO
        if not log.isEnabledFor(level):
            return
        suppressed = 0
        if self._lowest_status and http_status >= 400:  # "all" promises every line
            admitted = self._lines.admit((code, record.reason, record.caller.name))
            if admitted is None:
                return
            suppressed = admitted
        fields: dict[str, str | int | float] = {
            "api": record.api,
            "endpoint": record.endpoint,
            "caller": "" if record.caller is ANONYMOUS else record.caller.name,
            "model": "" if record.model == NO_MODEL else record.model,
            "status": code,
            "reason": record.reason,
            "ms": round((time.perf_counter() - record.started) * 1000, 1),
            "inputs": record.inputs,
            "tokens": record.tokens,
            "bytes": record.bytes,
            "peer": record.peer,
            "traceparent": record.traceparent,
        }
        if record.stages_s is not None:
            fields |= {
                f"{stage}_ms": round(seconds * 1000, 1) for stage, seconds in zip(STAGES, record.stages_s, strict=True)
            }
            fields["batch_size"] = record.batch_size
        if suppressed:
            fields["suppressed_lines"] = suppressed
        present = {name: value for name, value in fields.items() if value != ""}
        log.log(
            level, "slow request" if is_slow else "request", extra={"request_id": record.request_id, "fields": present}
        )
