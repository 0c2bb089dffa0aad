"""Admission control: rejects requests whose estimated wait exceeds `max_queue_ms` or their deadline."""

import math
import time
from collections.abc import Sequence

from service.engine.fair_queue import Backlog
from service.engine.schema.encode import Input
from service.errors import QueueFull

RATE_TIME_CONSTANT_S = 2.0
"""Time constant of the moving average, in seconds."""
NEAR_CAPACITY = 0.9
"""Fraction of a limit above which requests are checked early."""
SMALL_REQUEST_TOKENS = 32
"""Size of the request whose wait `queue_utilization` reports."""
CHARACTERS_PER_TOKEN = 4
"""Assumed characters per token, for admission before tokenization."""


class ServiceRate:
    """Throughput of a saturated lane in tokens per second, as an exponential moving average.

    `initial` comes from warm-up. Batches of an idle server are small and say nothing about its capacity.
    """

    def __init__(self, initial: float) -> None:
        self._tokens = initial * RATE_TIME_CONSTANT_S
        self._seconds = RATE_TIME_CONSTANT_S
        self._saturated_since: float | None = None

    @property
    def tokens_per_second(self) -> float:
        return self._tokens / self._seconds

    def observe(self, tokens: int, *, saturated: bool) -> None:
        """Record a finished batch. `saturated`: whether tasks are queued now."""
        now = time.perf_counter()
        if self._saturated_since is not None:
            seconds = now - self._saturated_since
            keep = math.exp(-seconds / RATE_TIME_CONSTANT_S)
            self._tokens = self._tokens * keep + tokens
            self._seconds = self._seconds * keep + seconds
        self._saturated_since = now if saturated else None


class Admission:
    """The limits of one lane.

    `backlog`: sizes of queued requests and requests in preparation. `quantum`: tokens per turn.
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

        Under round robin, each queued request gets at most as many turns as the new request needs.
        """
        turns = -(-tokens // self.quantum)
        return self.backlog.tokens_ahead_of(turns * self.quantum) / self.rate.tokens_per_second

    def check(self, tokens: int, deadline: float) -> None:
        """Raise `QueueFull` if a request of this many tokens cannot be queued now. An empty queue admits any request.

        The wait limit is `max_queue_ms` plus the time the request itself takes; `deadline` is a
        time.monotonic() reading.
        """
        queued = self.backlog.tokens
        if not queued:
            return
        wait, own = self.wait_s(tokens), tokens / self.rate.tokens_per_second
        if queued + tokens > self._max_tokens:
            raise QueueFull(
                f"Queue full ({queued} tokens queued, {tokens} requested, limit {self._max_tokens})",
                "Retry later."
                if tokens < self._max_tokens
                else "Split the request, or retry while the queue is empty.",
                retry_after_s=(queued + tokens - self._max_tokens) / self.rate.tokens_per_second,
            )
        if wait > self._max_wait_s + own:
            raise QueueFull(
                f"Queue full (estimated wait {wait * 1000:.0f} ms, limit {self._max_wait_s * 1000:.0f} ms)",
                "Retry later.",
                retry_after_s=wait - self._max_wait_s,
            )
        if wait + own > deadline - time.monotonic():
            raise QueueFull(
                f"Queue too long for the deadline (estimated wait {wait * 1000:.0f} ms)",
                "Retry later, or increase the timeout.",
                retry_after_s=wait,
            )


def count_characters(inputs: Sequence[Input]) -> int:
    """Return the number of characters; a token id counts as `CHARACTERS_PER_TOKEN` characters."""
    return sum(
        len(item.source.text) + len(item.source.pair or "") + CHARACTERS_PER_TOKEN * len(item.source.token_ids or ())
        for item in inputs
    )


def estimate_tokens(inputs: Sequence[Input]) -> int:
    """Return the estimated number of tokens of the inputs, special tokens included."""
    return 2 * len(inputs) + count_characters(inputs) // CHARACTERS_PER_TOKEN
