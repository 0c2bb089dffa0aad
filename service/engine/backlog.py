"""The backlog of a lane: how much is queued or in preparation, in total and by caller."""

import math
import time
from collections.abc import Iterable
from typing import NamedTuple

from service.callers import ANONYMOUS, Caller

SHARED_FOR_S = 1.0
"""A client that waits for each response sends the next request within this time."""


class Cost(NamedTuple):
    """The size of a task or a request: tokens, which need memory, and microseconds of estimated run time."""

    tokens: int
    us: int

    @classmethod
    def total(cls, costs: Iterable["Cost"]) -> "Cost":
        """Return the sum."""
        tokens = us = 0
        for cost in costs:
            tokens += cost.tokens
            us += cost.us
        return cls(tokens, us)

    def plus(self, other: "Cost") -> "Cost":
        """Return the sum."""
        return Cost(self.tokens + other.tokens, self.us + other.us)

    def minus(self, other: "Cost") -> "Cost":
        """Return the difference."""
        return Cost(self.tokens - other.tokens, self.us - other.us)


class Backlog:
    """Histogram of the run times of requests in power-of-two bins, so that an estimate takes constant time.

    `held` is the number of tokens that count against the limit of the queue: at most `slice_tokens` per request. While
    `held` is over `near_held` or `us` over `near_us`, the next request may be rejected: `near` is True, and the backlog
    is in the set `near_capacity`, which several may share.
    """

    BINS = 48

    def __init__(self, slice_tokens: int | None = None) -> None:
        self.slice_tokens = slice_tokens
        self.near_capacity: set[Backlog] = set()
        self.near_held = self.near_us = math.inf
        self.tokens = self.us = self.held = 0
        self.near = False
        self._counts = [0] * self.BINS
        self._sums = [0] * self.BINS

    def add(self, cost: Cost, count: int = 1) -> None:
        """Count a request of this cost; with `count=-1`, remove it again."""
        tokens, us = cost
        number = us.bit_length()
        self._counts[number] += count
        self._sums[number] += count * us
        self.tokens += count * tokens
        self.us += count * us
        limit = self.slice_tokens
        self.held += count * (tokens if limit is None or tokens < limit else limit)
        near = self.held > self.near_held or self.us > self.near_us
        if near != self.near:
            self.near = near
            (self.near_capacity.add if near else self.near_capacity.discard)(self)

    def held_tokens(self, tokens: int) -> int:
        """Return how many tokens of a request count against the limit of the queue."""
        return tokens if self.slice_tokens is None else min(tokens, self.slice_tokens)

    def us_ahead_of(self, us: int) -> int:
        """Return an upper bound on the microseconds that run before a new request of `us` has finished.

        The exact value is the sum over queued requests of min(their run time, `us`), which is what round robin gives
        them meanwhile. The bound is at most twice as high: requests in the same bin are treated alike.
        """
        own = us.bit_length()
        smaller, larger = sum(self._sums[:own]), sum(self._counts[own + 1 :])
        return smaller + larger * us + min(self._sums[own], self._counts[own] * us)

    def count_above(self, us: int) -> int:
        """Return the number of requests in bins above the bin of `us`."""
        return sum(self._counts[us.bit_length() + 1 :])

    def us_up_to(self, us: int) -> int:
        """Return the microseconds of the requests in bins up to the bin of `us`."""
        return sum(self._sums[: us.bit_length() + 1])


class LaneBacklog(Backlog):
    """The total backlog of a lane, and the backlog per named caller."""

    def __init__(self, slice_tokens: int | None = None) -> None:
        super().__init__(slice_tokens)
        self._callers: dict[str, tuple[Caller, Backlog]] = {}
        self._latest = ""
        self._others_until = -math.inf

    @property
    def shared(self) -> bool:
        """True while requests of more than one caller with a name are queued, or were within `SHARED_FOR_S`."""
        return time.monotonic() < self._others_until

    def count(self, cost: Cost, caller: Caller, count: int = 1) -> None:
        """Count a request of a caller; with `count=-1`, remove it again."""
        self.add(cost, count)
        if caller is ANONYMOUS:  # no caller has a name
            return
        name = caller.name
        if count > 0 and name != self._latest:
            if self._latest:
                self._others_until = time.monotonic() + SHARED_FOR_S
            self._latest = name
        if name not in self._callers:
            own = Backlog(self.slice_tokens)
            own.near_capacity, own.near_held = self.near_capacity, self.near_held / 2
            self._callers[name] = caller, own
        own = self._callers[name][1]
        own.add(cost, count)
        if not own.us:
            del self._callers[name]

    @property
    def tokens_by_caller(self) -> dict[str, int]:
        """The tokens of callers with a name."""
        return {name: backlog.tokens for name, (_, backlog) in list(self._callers.items())}

    def held_by(self, caller: Caller) -> int:
        """Return how many tokens of a caller with a name count against the limit of the queue."""
        entry = self._callers.get(caller.name)
        return 0 if entry is None else entry[1].held

    def us_ahead_for(self, caller: Caller, us: int, quantum: int) -> int:
        """Return an upper bound on the microseconds that run before a new request of `us` of a caller has finished.

        While the caller gets its share, each other one gets time in proportion to its weight, and at least one turn
        of `quantum` microseconds.
        """
        ahead = self.us_ahead_of(us)
        if caller is ANONYMOUS:
            return ahead
        entry = self._callers.get(caller.name)
        own = 0 if entry is None else entry[1].us_ahead_of(us)
        beside = 0
        for name, (other, backlog) in self._callers.items():
            if name != caller.name:
                beside += min(backlog.us, max(quantum, (own + us) * other.weight // caller.weight))
        return min(ahead, own + beside)
