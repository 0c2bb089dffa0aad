"""Admission control: rejects requests whose estimated wait exceeds `max_queue_ms` or their deadline."""

import math
import time
from collections.abc import Iterable

from service.engine.fair_queue import Backlog
from service.engine.schema.encode import Input
from service.errors import QueueFull

RATE_TIME_CONSTANT_S = 2.0
"""Time constant of the moving average, in seconds."""
MAX_SLOWDOWN = 4.0
"""A batch counts as at most this many times slower than expected, so that one pause does not distort the rate."""
SLICES = 4
"""A large request counts as at most this fraction of the token limit, and the last slice is kept for small requests."""
NEAR_CAPACITY = 0.9
"""Fraction of a limit above which requests are checked early."""
SMALL_REQUEST_TOKENS = 32
"""Size of the request whose wait `queue_utilization` reports."""
CHARACTERS_PER_TOKEN = 4
"""Assumed characters per token, for admission before tokenization."""
SPECIAL_TOKENS = 2
"""Assumed special tokens per input."""


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
            seconds = min(now - self._saturated_since, MAX_SLOWDOWN * tokens / self.tokens_per_second)
            keep = math.exp(-seconds / RATE_TIME_CONSTANT_S)
            self._tokens = self._tokens * keep + tokens
            self._seconds = self._seconds * keep + seconds
        self._saturated_since = now if saturated else None


class Admission:
    """The limits of one lane.

    `backlog`: sizes of queued requests and requests in preparation. `quantum`: tokens per turn, and the maximum size of
    a small request.
    """

    def __init__(self, initial_rate: float, max_queue_ms: int, max_queue_tokens: int, quantum: int) -> None:
        self.rate = ServiceRate(initial_rate)
        self.quantum = quantum
        self._slice = max(quantum, max_queue_tokens // SLICES)
        self.backlog = Backlog(self._slice)
        self._max_wait_s = max_queue_ms / 1000
        self._max_tokens = max_queue_tokens

    @property
    def utilization(self) -> float:
        """The estimated wait of a small request, as a fraction of the limit."""
        return self.wait_s(SMALL_REQUEST_TOKENS) / self._max_wait_s

    @property
    def near_capacity(self) -> bool:
        """True if the next request may be rejected."""
        return self.utilization > NEAR_CAPACITY or self.backlog.held > NEAR_CAPACITY * self._max_tokens

    def wait_s(self, tokens: int) -> float:
        """Return the estimated wait of a new request of `tokens`, in seconds.

        Under round robin, each queued request gets at most as many turns as the new request needs.
        """
        turns = -(-tokens // self.quantum)
        return self.backlog.tokens_ahead_of(turns * self.quantum) / self.rate.tokens_per_second

    def check(self, tokens: int, deadline: float) -> None:
        """Raise `QueueFull` if a request of this many tokens cannot be queued now. An empty queue admits any request.

        The wait limit is `max_queue_ms` plus the time the request itself takes; `deadline` is a
        time.monotonic() reading. A request of several turns counts against the token limit with one slice, and leaves
        one slice free, so that no large request locks out small ones.
        """
        queued = self.backlog.held
        if not queued:
            return
        wait, own = self.wait_s(tokens), tokens / self.rate.tokens_per_second
        requested = self.backlog.held_tokens(tokens)
        limit = self._max_tokens - (self._slice if tokens > self.quantum else 0)
        if queued + requested > limit:
            raise QueueFull(
                f"Queue full ({queued} tokens queued, {requested} requested, limit {limit})",
                "Retry later.",
                retry_after_s=(queued + requested - limit) / self.rate.tokens_per_second,
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


def count_characters(item: Input) -> int:
    """Return the number of characters of an input; a token id counts as `CHARACTERS_PER_TOKEN` characters."""
    source = item.source
    return len(source.text) + len(source.pair or "") + CHARACTERS_PER_TOKEN * len(source.token_ids or ())


def estimate_tokens(lengths: Iterable[int], max_tokens: int, prompt_tokens: int = 0) -> int:
    """Return the estimated number of tokens of inputs with these numbers of characters.

    Longer inputs than `max_tokens` are truncated or rejected before inference.
    """
    extra = SPECIAL_TOKENS + prompt_tokens
    return sum(min(max_tokens, extra + length // CHARACTERS_PER_TOKEN) for length in lengths)
