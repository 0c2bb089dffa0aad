"""Admission control: rejects requests whose estimated wait exceeds `max_queue_ms` or their deadline."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from service.callers import ANONYMOUS, MAX_PAUSE_S, Caller
from service.engine.backlog import Cost, LaneBacklog
from service.engine.schema.encode import Input
from service.errors import DeadlineExceeded, QueueFull

SPEED_TIME_CONSTANT_S = 2.0
"""Time constant of the moving average, in seconds."""
MAX_SLOWDOWN = 4.0
"""A batch counts as at most this many times slower than expected, so that one pause does not distort the speed."""
SLICES = 4
"""A large request counts as at most this fraction of the token limit, and the last slice is kept for small requests."""
OVERESTIMATE = 2.0
"""An idle lane rejects a request whose estimated run time is this many times its timeout.

Run times that a busy machine measured during warm-up can be twice too high.
"""
NEAR_CAPACITY = 0.9
"""Fraction of a limit above which requests are checked early."""
TOKENIZER_RETRY_S = 1.0
SMALL_REQUEST_TOKENS = 32
"""Size of the request whose wait `queue_utilization` reports."""
CHARACTERS_PER_TOKEN = 4
"""Assumed characters per token, for admission before tokenization."""
SPECIAL_TOKENS = 2
"""Assumed special tokens per input."""


class Speed:
    """Estimated seconds of work that a saturated lane does per second, as an exponential moving average.

    `initial` is its number of streams: each does one second of work per second if the estimates are correct. Batches
    of an idle server are small and say nothing about its capacity.
    """

    def __init__(self, initial: float) -> None:
        self.value = initial
        self._work = initial * SPEED_TIME_CONSTANT_S
        self._seconds = SPEED_TIME_CONSTANT_S
        self._saturated_since: float | None = None

    def scale(self, factor: float) -> None:
        """Expect another speed: the machine is shared with more or fewer models."""
        self.value *= factor
        self._work *= factor

    def observe(self, work_s: float, *, saturated: bool) -> None:
        """Record a finished batch of `work_s` estimated seconds. `saturated`: whether tasks are queued now."""
        now = time.perf_counter()
        if self._saturated_since is not None:
            seconds = min(now - self._saturated_since, MAX_SLOWDOWN * work_s / self.value)
            keep = math.exp(-seconds / SPEED_TIME_CONSTANT_S)
            self._work = self._work * keep + work_s
            self._seconds = self._seconds * keep + seconds
            self.value = self._work / self._seconds
        self._saturated_since = now if saturated else None


class Admission:
    """The limits of one lane, and the cost of its requests.

    `seconds` estimates the run time of a sequence of some tokens in a full batch, on one stream. `backlog` counts
    queued requests and requests in preparation. `quantum`: microseconds per turn, the run time of a full batch.
    """

    def __init__(
        self,
        seconds: Callable[[int], float],
        speed: float,
        max_queue_ms: int,
        max_queue_tokens: int,
        max_batch_tokens: int,
    ) -> None:
        @lru_cache(maxsize=8192)
        def task_cost(tokens: int) -> Cost:
            return Cost(tokens, max(1, round(1e6 * seconds(tokens))))

        self.task_cost = task_cost
        self.speed = Speed(speed)
        self._streams = self._all_streams = speed
        self._token_us = 1e6 * seconds(SMALL_REQUEST_TOKENS) / SMALL_REQUEST_TOKENS
        self.quantum = max(1, round(max_batch_tokens * self._token_us))
        self._slice = max(max_batch_tokens, max_queue_tokens // SLICES)
        self.backlog = LaneBacklog(self._slice)
        self.backlog.near_held = NEAR_CAPACITY * max_queue_tokens
        self._max_wait_s = max_queue_ms / 1000
        self._near_us = NEAR_CAPACITY * 1e6 * self._max_wait_s
        self.backlog.near_us = self._near_us * speed
        self._max_tokens = max_queue_tokens
        self._max_batch_tokens = max_batch_tokens

    def share(self, models: int) -> None:
        """Estimate with a part of the streams: this many models share the machine."""
        streams = self._all_streams / models
        self.speed.scale(streams / self._streams)
        self._streams = streams
        self.backlog.near_us = self._near_us * self.speed.value

    @property
    def utilization(self) -> float:
        """The estimated wait of a small request, as a fraction of the limit."""
        return self.wait_s(self.task_cost(SMALL_REQUEST_TOKENS)) / self._max_wait_s

    def observe(self, work_s: float, *, saturated: bool) -> None:
        """Record a finished batch; see `Speed.observe`."""
        self.speed.observe(work_s, saturated=saturated)
        # No wait is longer than the whole backlog.
        self.backlog.near_us = self._near_us * self.speed.value

    def cost(self, sizes: Iterable[int], more_tokens: int = 0) -> Cost:
        """Return the cost of a request with tasks of these sizes in tokens, and of `more_tokens` in short tasks."""
        cost = Cost.total(map(self.task_cost, sizes))
        return cost.plus(Cost(more_tokens, round(more_tokens * self._token_us))) if more_tokens else cost

    def run_s(self, us: int) -> float:
        """Return the seconds in which the lane does `us` microseconds of work."""
        return us / 1e6 / self.speed.value

    def wait_s(self, cost: Cost, caller: Caller = ANONYMOUS) -> float:
        """Return the estimated wait of a new request of a caller, in seconds.

        Under round robin, each queued request gets at most as many turns as the new request needs.
        """
        us = -(-cost.us // self.quantum) * self.quantum
        return self.run_s(self.backlog.us_ahead_for(caller, us, self.quantum))

    def own_s(self, cost: Cost, longest_us: int) -> float:
        """Return the seconds in which an idle lane runs a request, whose longest task occupies one stream."""
        return max(self.run_s(cost.us), self.run_s(round(longest_us * self._streams)))

    def pause_s(self, caller: Caller) -> float:
        """Return for how long not to read a connection of a rejected caller, in seconds.

        A thousand connections of one caller would otherwise occupy the event loop with rejections, and delay others.
        The time is random, so that they do not send their next requests all at once.
        """
        if caller is ANONYMOUS or not self.backlog.shared:
            return 0.0
        return random.uniform(MAX_PAUSE_S / 2, MAX_PAUSE_S)  # noqa: S311  # not a secret

    def check(
        self,
        cost: Cost,
        deadline: float,
        longest_us: int = 0,
        blocked_s: float = 0.0,
        caller: Caller = ANONYMOUS,
    ) -> None:
        """Raise `QueueFull` if a request of this cost cannot be queued now. An idle lane admits any request.

        Raises `DeadlineExceeded` after `deadline`, a time.monotonic() reading, and if a request of more than a batch
        would run far beyond it even on an idle lane. The wait limit is `max_queue_ms` plus the time the request itself
        takes. A request of several batches counts against the token limit with one slice, and leaves one slice free, so
        that no large request locks out small ones. The queued tokens of a caller with a name are at most as many as
        are free, so that no caller locks out others (Choudhury and Hahne, Dynamic Queue Length Thresholds for
        Shared-Memory Packet Switches, 1998).

        Args:
            cost: of the whole request.
            deadline: a time.monotonic() reading.
            longest_us: the run time of its longest task in microseconds.
            blocked_s: until running long tasks leave a stream that the request may use, in seconds.
            caller: who sent it.
        """
        remaining = remaining_s(deadline)
        own = self.own_s(cost, longest_us)
        if own > OVERESTIMATE * remaining and cost.us > self.quantum:  # of a smaller one, the estimate is too imprecise
            raise DeadlineExceeded(
                f"Request too large for the deadline (estimated run time {own * 1000:.0f} ms, "
                f"remaining {remaining * 1000:.0f} ms)",
                "Increase the timeout, or send fewer or shorter inputs.",
            )
        queued = self.backlog.held
        if not (queued or blocked_s):
            return
        wait = self.run_s(self.backlog.us) + blocked_s
        if wait > min(self._max_wait_s, remaining - own):  # else even this upper bound is short enough
            wait = self.wait_s(cost, caller) + blocked_s
        requested = self.backlog.held_tokens(cost.tokens)
        limit = self._max_tokens - (self._slice if cost.tokens > self._max_batch_tokens else 0)
        limit -= self.backlog.held_by(caller)
        if queued + requested > limit:
            raise QueueFull(
                f"Queue full ({queued} tokens queued, {requested} requested, limit {limit})",
                "Retry later.",
                retry_after_s=self.run_s(round((queued + requested - limit) * self._token_us)),
            )
        if wait > self._max_wait_s + own:
            raise QueueFull(
                f"Queue full (estimated wait {wait * 1000:.0f} ms, limit {self._max_wait_s * 1000:.0f} ms)",
                "Retry later.",
                retry_after_s=wait - self._max_wait_s,
            )
        if wait + own > remaining:
            raise QueueFull(
                f"Queue too long for the deadline (estimated wait {wait * 1000:.0f} ms)",
                "Retry later, or increase the timeout.",
                retry_after_s=wait,
            )


class TokenizerAdmission:
    """The limit of requests that are tokenized but not run: they do not depend on the queue of a lane.

    They have at most `max_tokens` estimated tokens unless there is only one. Not thread-safe.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def reserve(self, characters: int, deadline: float) -> Iterator[None]:
        """Count a request of this many characters while it is tokenized. Raises as `Admission.check` does."""
        remaining_s(deadline)
        tokens = 1 + characters // CHARACTERS_PER_TOKEN
        if self._tokens and self._tokens + tokens > self._max_tokens:
            raise QueueFull(
                f"Tokenizer busy ({self._tokens} tokens in progress, {tokens} requested, limit {self._max_tokens})",
                "Retry later.",
                retry_after_s=TOKENIZER_RETRY_S,
            )
        self._tokens += tokens
        self._idle.clear()
        try:
            yield
        finally:
            self._tokens -= tokens
            if not self._tokens:
                self._idle.set()

    async def drain(self) -> None:
        """Wait until no request is in tokenization."""
        await self._idle.wait()


def remaining_s(deadline: float) -> float:
    """Return the seconds until a deadline, a time.monotonic() reading. Raises `DeadlineExceeded` after it."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise DeadlineExceeded("Deadline exceeded before the request was queued", "Increase the timeout.")
    return remaining


def count_characters(item: Input) -> int:
    """Return the number of characters of an input; a token id counts as `CHARACTERS_PER_TOKEN` characters."""
    source = item.source
    return len(source.text) + len(source.pair or "") + CHARACTERS_PER_TOKEN * len(source.token_ids or ())


def estimate_tokens(lengths: Iterable[int], max_tokens: int, prompt_tokens: int = 0) -> list[int]:
    """Return the estimated number of tokens of each input, given their numbers of characters.

    Longer inputs than `max_tokens` are truncated or rejected before inference.
    """
    extra = SPECIAL_TOKENS + prompt_tokens
    return [min(max_tokens, extra + length // CHARACTERS_PER_TOKEN) for length in lengths]
