"""Selection of the tasks of a lane's next batch.

Batching is dynamic and work-conserving: an idle stream of the backend takes all queued tasks at once, up to
`max_batch_tokens`, and under load batches grow with the queue. There is no batching delay. While short requests arrive
beside long ones, batches are short, so that a short request does not wait for a full batch of other work.

Not thread-safe: the workers hold their lock around every call.
"""

import math
import time
from collections.abc import Sequence
from typing import Generic, TypeVar

from model.artifact.packing import BatchFill, TokenLimit
from service.engine.backends.base import Backend, Task
from service.engine.backlog import Cost
from service.engine.fair_queue import FairQueue
from service.engine.jobs import Entry

TaskT = TypeVar("TaskT", bound=Task)
Result = TypeVar("Result")

SHORT_US = 25_000
"""Run time of a short batch, and of the largest request for which batches are kept short."""
SHORT_FOR_S = 1.0
"""Batches stay short this long after the last short request: a client that waits for each response sends the next."""
SHARED_US = 12_000
"""Run time of a batch while several callers share the lane: each waits for about two batches of the others."""
LONG_BATCHES = 2
"""Tasks that run for longer than this many full batches leave one stream to shorter ones."""


class BatchPolicy(Generic[TaskT, Result]):
    """Takes batches from the queue of a lane. `full_us`: the run time of a full batch.

    Of two or more streams, the last one is never occupied by a task of more than `LONG_BATCHES` full batches, even if
    nothing else is queued: a short request that arrives next would wait for all of it. Such tasks still run one after
    another on the other streams. With one stream, a short request has to wait for a long task that is running.
    """

    def __init__(self, queue: FairQueue[Entry[TaskT, Result]], backend: Backend[TaskT, Result], full_us: int) -> None:
        self.running = 0
        self._queue = queue
        self._backend = backend
        self._streams = backend.choice.streams
        self._full_us = full_us
        self._long_us = LONG_BATCHES * full_us
        self._long_running: dict[int, tuple[float, float]] = {}  # start and estimated work in seconds, by batch
        self._only_long_at = -1  # arrivals in the queue when no task was short enough for the last stream
        self._short_until = 0.0

    def expect(self, cost: Cost) -> None:
        """Note a request that will be queued."""
        if cost.us <= SHORT_US:
            self._short_until = time.monotonic() + SHORT_FOR_S

    def may_take(self) -> bool:
        """Return whether a worker may take a batch.

        Either a stream is free, or a full batch is queued and can be prepared in advance. A batch prepared in advance
        would run before a short request that arrives meanwhile.
        """
        queue = self._queue
        if self._last_is_reserved and queue.arrivals == self._only_long_at:
            return False
        if queue.size and self.running < self._streams:
            return True
        return queue.tokens >= self._backend.max_batch_tokens and self._quantum() == self._full_us

    def take(self) -> tuple[list[Entry[TaskT, Result]], int]:
        """Return the next batch, which counts as running until `finish`, and the number of stale tasks dropped."""
        quantum, max_size = self._quantum(), self._backend.max_batch_size
        batch: list[Entry[TaskT, Result]] = []
        dropped = 0
        if 0 < len(self._long_running) >= self._streams - 1:
            batch, dropped = self._queue.select_batch(self._fill(quantum), max_size, quantum, self._long_us)
        if not batch and self._last_is_reserved:
            self._only_long_at = self._queue.arrivals
        elif not batch:
            batch, stale = self._queue.select_batch(self._fill(quantum), max_size, quantum)
            dropped += stale
        self.running += 1
        if is_longer(batch, self._long_us):
            self._long_running[id(batch)] = time.monotonic(), work_s(batch)
        return batch, dropped

    def finish(self, batch: Sequence[Entry[TaskT, Result]]) -> None:
        """Count a batch as finished."""
        self.running -= 1
        self._long_running.pop(id(batch), None)

    def blocked_s(self, longest_us: int, seconds_per_work: float) -> float:
        """Return how long running long tasks still occupy all streams that a new task of `longest_us` may use.

        `seconds_per_work`: measured run time per estimated second of work.
        """
        streams = self._streams if longest_us <= self._long_us else max(1, self._streams - 1)
        if not self._long_running or len(self._long_running) < streams:
            return 0.0
        first_end = min(started + seconds_per_work * work for started, work in self._long_running.values())
        return max(0.0, first_end - time.monotonic())

    @property
    def _last_is_reserved(self) -> bool:
        """True while long tasks occupy all streams but one."""
        return 0 < len(self._long_running) >= self._streams - 1 > 0

    def _quantum(self) -> int:
        """Return the microseconds per turn and batch.

        While several callers share the lane, batches take `SHARED_US`. Beside requests longer than a full batch, short
        requests that are waiting or arrived within `SHORT_FOR_S` wait only for batches of `SHORT_US`, or for each
        other's.
        """
        backlog = self._queue.backlog
        if backlog.shared:
            return min(self._full_us, SHARED_US)
        if time.monotonic() >= self._short_until or not backlog.count_above(self._full_us):
            return self._full_us
        return min(self._full_us, max(SHORT_US, backlog.us_up_to(SHORT_US)))

    def _fill(self, quantum: int) -> BatchFill:
        """Return an empty batch: a full one, or a share of the queue if that is too little for all free streams."""
        queue, free_streams = self._queue, max(1, self._streams - self.running)
        short = quantum < self._full_us
        # In a full batch every row is filled; otherwise waiting tasks are not passed over.
        if short and queue.us >= free_streams * quantum:
            return self._backend.full_batch_fill(quantum / 1e6)
        if not short and queue.tokens >= free_streams * self._backend.max_batch_tokens:
            return self._backend.full_batch_fill(math.inf)
        return TokenLimit(min(self._backend.max_batch_tokens, -(-queue.tokens // free_streams)))


def is_longer(batch: Sequence[Entry[TaskT, Result]], us: int) -> bool:
    """Return whether a task of the batch takes more than `us` microseconds."""
    for entry in batch:  # noqa: SIM110  # a generator costs a call per task
        if entry.cost.us > us:
            return True
    return False


def work_s(batch: Sequence[Entry[TaskT, Result]]) -> float:
    """Return the estimated run time of a batch on one stream, in seconds."""
    total = 0
    for entry in batch:  # as above
        total += entry.cost.us
    return total / 1e6
