"""Admission by time: a request is rejected if it would wait longer than `max_queue_ms`, or than its deadline."""

import math
import time

from service.engine.fair_queue import Backlog
from service.errors import QueueFull

RATE_MEMORY_S = 2.0
"""Time constant over which the measured rate forgets."""
NEAR_CAPACITY = 0.5
"""One step of a busy event loop may read hundreds of requests, enough to fill the rest of the queue."""
SMALL_REQUEST_TOKENS = 32
"""Size of the request whose wait `queue_utilization` reports."""


class ServiceRate:
    """Tokens per second of a lane while it is saturated, averaged over about two seconds of saturation.

    `initial` comes from warm-up. Batches of an idle server are small and say nothing about its capacity.
    """

    def __init__(self, initial: float) -> None:
        self._tokens = initial * RATE_MEMORY_S
        self._seconds = RATE_MEMORY_S
        self._saturated_since: float | None = None

    @property
    def tokens_per_second(self) -> float:
        return self._tokens / self._seconds

    def observe(self, tokens: int, *, saturated: bool) -> None:
        """Note a finished batch; `saturated` tells whether tasks wait now."""
        now = time.perf_counter()
        if self._saturated_since is not None:
            seconds = now - self._saturated_since
            keep = math.exp(-seconds / RATE_MEMORY_S)
            self._tokens = self._tokens * keep + tokens
            self._seconds = self._seconds * keep + seconds
        self._saturated_since = now if saturated else None


class Admission:
    """The limits of one lane.

    `backlog`: sizes of the requests that wait or are being prepared. `quantum`: tokens of a turn.
    """

    def __init__(self, initial_rate: float, max_queue_ms: int, max_queue_tokens: int) -> None:
        self.rate = ServiceRate(initial_rate)
        self.backlog = Backlog()
        self.quantum = 1
        self._max_wait_s = max_queue_ms / 1000
        self._max_tokens = max_queue_tokens

    @property
    def utilization(self) -> float:
        """The estimated wait of a small request, as a fraction of the limit."""
        return self.wait_s(SMALL_REQUEST_TOKENS) / self._max_wait_s

    @property
    def near_capacity(self) -> bool:
        """True if the next request may be rejected."""
        return self.utilization > NEAR_CAPACITY or self.backlog.tokens > NEAR_CAPACITY * self._max_tokens

    def wait_s(self, tokens: int) -> float:
        """Return the estimated wait of a new request of `tokens`, in seconds.

        Until it has finished, every waiting request gets as many turns as it needs itself.
        """
        turns = -(-tokens // self.quantum)
        return self.backlog.ahead_of(turns * self.quantum) / self.rate.tokens_per_second

    def check(self, tokens: int, deadline: float) -> None:
        """Raise `QueueFull` unless a request of `tokens` may wait now. An empty queue admits any request.

        The limit of the wait is `max_queue_ms` plus the time the request itself takes; `deadline` is a
        time.monotonic() reading.
        """
        queued = self.backlog.tokens
        if not queued:
            return
        wait, own = self.wait_s(tokens), tokens / self.rate.tokens_per_second
        if queued + tokens > self._max_tokens:
            raise QueueFull(
                f"Queue full ({queued} tokens queued, {tokens} requested, limit {self._max_tokens}). Retry later.",
                retry_after_s=(queued + tokens - self._max_tokens) / self.rate.tokens_per_second,
            )
        if wait > self._max_wait_s + own:
            raise QueueFull(
                f"Queue full (estimated wait {wait * 1000:.0f} ms, limit {self._max_wait_s * 1000:.0f} ms). "
                "Retry later.",
                retry_after_s=wait - self._max_wait_s,
            )
        if wait + own > deadline - time.monotonic():
            raise QueueFull(
                f"Queue too long for the deadline (estimated wait {wait * 1000:.0f} ms). Increase the timeout.",
                retry_after_s=wait,
            )
