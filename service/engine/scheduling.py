"""Lane scheduling: admission, order and batching.

Admission rejects requests whose estimated wait exceeds `max_queue_ms` or their deadline. The wait includes time in the
process outside of the lane (`HostQueue`).

The order is deficit round robin over callers, then over the requests of each, in microseconds of run time (Shreedhar
and Varghese, Efficient Fair Queueing Using Deficit Round Robin, 1995). Callers share the time by their weights, however
many requests each has queued. Each queued request of a caller gets a quantum per round, so a request of 256 passages
delays a short request by a few batches, not by its full duration, and a stream of short requests cannot starve it. A
task larger than the quantum waits for several rounds. Tasks that do not fit in a batch are skipped, and come first in
the next batch.

Batching is dynamic and work-conserving: an idle backend stream takes all queued tasks, up to `max_batch_tokens`, and
under load batches grow with the queue. There is no batching delay. While short and long requests are mixed, batches are
short, so that a short request does not wait for a full batch of other tasks.

Nothing here is thread-safe: workers hold their lock around every call. Only the event loop calls `LoopTurns`,
`HostQueue` and `TokenizerAdmission`, which need no lock.
"""

import asyncio
import math
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from model.artifact.packing import BatchFill
from service.callers import ANONYMOUS, MAX_PAUSE_S, Caller
from service.engine.backends.base import Backend, Task
from service.engine.tasks import gather
from service.errors import DeadlineExceeded, QueueFull, response_too_late

SHARED_FOR_S = 1.0
"""A client that sends requests one after another is assumed to send the next one within this time, in seconds."""


class Cost(NamedTuple):
    """The cost of a task or request: tokens, which need memory, and microseconds of estimated run time."""

    tokens: int
    us: int

    @classmethod
    def total(cls, costs: Iterable["Cost"]) -> "Cost":
        """Return the sum."""
        columns = [*zip(*costs, strict=True)]
        return cls(*map(sum, columns)) if columns else cls(0, 0)

    def plus(self, other: "Cost") -> "Cost":
        """Return the sum."""
        return Cost(self.tokens + other.tokens, self.us + other.us)

    def minus(self, other: "Cost") -> "Cost":
        """Return the difference."""
        return Cost(self.tokens - other.tokens, self.us - other.us)


class Backlog:
    """Histogram of request run times in power-of-two bins. Estimates take constant time.

    `held` is the number of tokens that count against the queue limit: at most `slice_tokens` per request. `near` is
    True while `held` exceeds `near_held` or `us` exceeds `near_us`: the next request may be rejected.
    """

    BINS = 48

    def __init__(self, slice_tokens: int | None = None) -> None:
        self.slice_tokens = slice_tokens
        self.near_held = self.near_us = math.inf
        self.tokens = self.us = self.held = 0
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

    @property
    def near(self) -> bool:
        return self.held > self.near_held or self.us > self.near_us

    def held_tokens(self, tokens: int) -> int:
        """Return how many tokens of a request count against the queue limit."""
        return tokens if self.slice_tokens is None else min(tokens, self.slice_tokens)

    def us_ahead_of(self, us: int) -> int:
        """Return an upper bound on the microseconds of queued work that run before a new request of `us` finishes.

        Under round robin, the exact value is the sum over queued requests of min(run time, `us`). The bound is at most
        twice as high, because requests in the same bin are treated alike.
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
        self._near_callers = 0
        self._latest = ""
        self._others_until = -math.inf

    @property
    def shared(self) -> bool:
        """True if requests of more than one named caller are queued, or were within the last `SHARED_FOR_S`."""
        return time.monotonic() < self._others_until

    @property
    def near(self) -> bool:
        """True if the next request of at least one caller may be rejected."""
        return self._near_callers > 0 or self.held > self.near_held or self.us > self.near_us

    def count(self, cost: Cost, caller: Caller, count: int = 1) -> None:
        """Count a request of a caller; with `count=-1`, remove it again."""
        self.add(cost, count)
        if caller is ANONYMOUS:  # no named callers
            return
        name = caller.name
        if count > 0 and name != self._latest:
            if self._latest:
                self._others_until = time.monotonic() + SHARED_FOR_S
            self._latest = name
        if name not in self._callers:
            own = Backlog(self.slice_tokens)
            own.near_held = self.near_held / 2
            self._callers[name] = caller, own
        own = self._callers[name][1]
        was_near = own.near
        own.add(cost, count)
        self._near_callers += own.near - was_near
        if not own.us:
            del self._callers[name]

    @property
    def tokens_by_caller(self) -> dict[str, int]:
        """The number of tokens per named caller."""
        return {name: backlog.tokens for name, (_, backlog) in list(self._callers.items())}

    def held_by(self, caller: Caller) -> int:
        """Return how many tokens of a named caller count against the queue limit."""
        entry = self._callers.get(caller.name)
        return 0 if entry is None else entry[1].held

    def us_ahead_for(self, caller: Caller, us: int, quantum: int) -> int:
        """Return an upper bound on the microseconds that run before a caller's new request of `us` finishes.

        Meanwhile, each other caller gets time in proportion to its weight, and at least one turn of `quantum`
        microseconds.
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


TaskT = TypeVar("TaskT", bound=Task)
ResultT = TypeVar("ResultT")


class Job(Generic[TaskT, ResultT]):
    """One request: its tasks in order, their costs, and their results as they arrive.

    The event loop creates it and stores results. The queue changes `waiting`, `cost`, `deficit` and `in_turn`, and
    workers set `started`, `queue_s` and `batch_size`, all under their lock; they also read `done` and `deadline`.

    Attributes:
        waiting: The positions of the tasks that have not started.
        cost: The total cost of these tasks.
        deficit: The microseconds that remain in its turn.
        in_turn: The end of the batch or of its caller's turn has interrupted its turn, which will continue without a
            new quantum.
        missing: The number of tasks without a result.
        done: True once all results are known, a task has failed, or nothing waits for the results anymore.
        error: Why the job failed.
        on_done: Called when `done` becomes True.
        queue_s: The time until the first batch with one of its tasks started, in seconds.
        batch_size: The number of tasks in that batch.
    """

    __slots__ = (
        "_parts", "batch_size", "caller", "cost", "costs", "deadline", "deficit", "done", "error", "in_turn", "missing",
        "on_done", "queue_s", "started", "submitted", "tasks", "waiting",
    )  # fmt: skip

    def __init__(
        self, tasks: Sequence[TaskT], costs: Sequence[Cost], deadline: float = math.inf, caller: Caller = ANONYMOUS
    ) -> None:
        self.tasks = tasks
        self.costs = costs
        self.caller = caller
        self.deadline = deadline
        self.waiting = deque(range(len(tasks)))
        self.cost = Cost.total(costs)
        self.deficit = 0
        self.in_turn = False
        self._parts: list[tuple[Sequence[int], Sequence[ResultT]]] = []
        self.missing = len(tasks)
        self.done = not tasks
        self.error: Exception | None = None
        self.on_done: Callable[[], None] | None = None
        self.started = False
        self.submitted = time.perf_counter()
        self.queue_s = 0.0
        self.batch_size = 0

    @property
    def results(self) -> Sequence[ResultT]:
        """One result per task of a finished job."""
        return self._parts[0][1] if len(self._parts) == 1 else gather(self._parts)

    def add_results(self, places: Sequence[int], results: Sequence[ResultT]) -> bool:
        """Store the results of some tasks; return False if the job was already done and they are unused."""
        if self.done:
            return False
        self._parts.append((places, results))
        self.missing -= len(places)
        if not self.missing:
            self.finish()
        return True

    def finish(self, error: Exception | None = None) -> None:
        """Mark the job as done, with an error if it failed. Does nothing if it is already done."""
        if self.done:
            return
        self.done, self.error = True, error
        if self.on_done is not None:
            self.on_done()

    def expire(self) -> None:
        """Fail the job because its deadline has passed."""
        self.finish(response_too_late())

    def is_stale(self) -> bool:
        """Return whether tasks that have not started need not run."""
        return self.done or self.deadline <= time.monotonic()


AnyJob = Job[Any, Any]
Run = tuple[AnyJob, Sequence[int]]
"""Tasks of a job in a batch: their positions in its request, ascending."""

LOOKAHEAD = 16
"""Maximum number of tasks that batch selection skips because they do not fit."""


class _Caller:
    """The queued jobs of one caller, served round robin, and the caller's deficit in microseconds.

    `in_turn`: its turn has begun. During batch selection, `passed` holds its first jobs, set aside for the next batch,
    and `cut_short` tells whether one of them did not fit.
    """

    __slots__ = ("cut_short", "deficit", "in_turn", "jobs", "passed", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.deficit = 0
        self.in_turn = self.cut_short = False
        self.jobs: OrderedDict[int, AnyJob] = OrderedDict()
        self.passed: list[AnyJob] = []

    def pass_over(self, job: AnyJob) -> None:
        """Keep a job for the next batch."""
        self.passed.append(self.jobs.pop(id(job)))

    def restore(self) -> None:
        """Put the jobs that were passed over back at the head of the queue."""
        self.cut_short = False
        while self.passed:
            job = self.passed.pop()
            self.jobs[id(job)] = job
            self.jobs.move_to_end(id(job), last=False)


class FairQueue:
    """Queued jobs, served round robin by caller and then by job, with `quantum` microseconds per turn.

    `backlog` counts these jobs and others. The queue contains `size` tasks, with `tokens` tokens and `us` microseconds.
    `arrivals` is the number of jobs added so far.
    """

    def __init__(self, quantum: int, backlog: LaneBacklog | None = None) -> None:
        self.backlog = backlog or LaneBacklog()
        self.size = self.tokens = self.us = self.arrivals = 0
        self._quantum = quantum
        self._callers: OrderedDict[str, _Caller] = OrderedDict()

    def __contains__(self, job: AnyJob) -> bool:
        """Return whether tasks of a job are queued."""
        caller = self._callers.get(job.caller.name)
        return caller is not None and id(job) in caller.jobs

    def add(self, job: AnyJob) -> None:
        """Append a job to its caller's queue. It is dropped if it is stale when its turn comes."""
        name = job.caller.name
        if name not in self._callers:
            self._callers[name] = _Caller(job.caller.weight)
        self._callers[name].jobs[id(job)] = job
        self.arrivals += 1
        self.size += len(job.waiting)
        self.tokens += job.cost.tokens
        self.us += job.cost.us
        self.backlog.count(job.cost, job.caller)

    def discard(self, job: AnyJob) -> int:
        """Remove a job; return the number of its tasks that have not started."""
        caller = self._callers.get(job.caller.name)
        if caller is None or caller.jobs.pop(id(job), None) is None:
            return 0
        if not (caller.jobs or caller.passed):
            del self._callers[job.caller.name]
        dropped = len(job.waiting)
        job.waiting.clear()
        self._remove(job, dropped, job.cost)
        return dropped

    def clear(self) -> list[AnyJob]:
        """Remove and return every queued job."""
        jobs = [job for caller in self._callers.values() for job in caller.jobs.values()]
        for job in jobs:
            self.discard(job)
        return jobs

    def select_batch(
        self, fill: BatchFill, max_size: int, quantum: int | None = None, max_us: float = math.inf
    ) -> tuple[list[Run], int]:
        """Remove and return the next batch, and the number of stale tasks discarded during selection.

        A task that does not fit is skipped, and comes first in the next batch. `quantum` overrides the default.
        Jobs whose next task takes more than `max_us` keep their place.
        """
        quantum = self._quantum if quantum is None else quantum
        selection = _Selection(fill, max_size, max_us)
        dropped = 0
        top_weight = 1
        for caller in self._callers.values():
            top_weight = max(top_weight, caller.weight)
        credit = 0  # once a caller's next task does not fit, other callers may fill the rest of the batch on credit
        passing: dict[str, _Caller] = {}  # callers with jobs that were passed over
        while self._callers and selection.room:
            name, caller = next(iter(self._callers.items()))
            if not caller.jobs:
                passing[name] = self._callers.pop(name)
                continue
            job = next(iter(caller.jobs.values()))
            if job.is_stale():
                dropped += self.discard(job)
                continue
            on_credit = 0 if caller.cut_short else credit
            if job.costs[job.waiting[0]].us <= max_us:
                # The caller with the largest weight gets the full quantum, so no turn is longer.
                caller_quantum = max(1, quantum * caller.weight // top_weight)
                self._take_turn(caller, job, selection, quantum, caller_quantum, on_credit)
                credit = quantum if caller.cut_short else credit
            else:
                caller.pass_over(job)
            if caller.passed:
                passing[name] = caller
            if not (caller.in_turn or on_credit) and name in self._callers:
                self._callers.move_to_end(name)
        for name, caller in reversed(passing.items()):
            caller.restore()
            if name not in self._callers:
                self._callers[name] = caller
                self._callers.move_to_end(name, last=False)
        return selection.runs, dropped

    def _take_turn(
        self, caller: _Caller, job: AnyJob, selection: "_Selection", quantum: int, caller_quantum: int, credit: int
    ) -> None:
        """Move tasks of a job to the batch, within its deficit and the caller's deficit plus credit."""
        first_us = job.costs[job.waiting[0]].us
        for turn, own_quantum in ((caller, caller_quantum), (job, quantum))[bool(credit) :]:
            if not turn.in_turn:
                turn.deficit += own_quantum
                turn.in_turn = True
            elif not caller.cut_short:  # a turn continued from an earlier batch may have begun with a larger quantum
                turn.deficit = min(turn.deficit, own_quantum + first_us)
        before = len(job.waiting)
        taken = selection.take(job, caller.deficit + credit)
        caller.deficit -= taken.us
        self._remove(job, before - len(job.waiting), taken)
        if not job.waiting:
            del caller.jobs[id(job)]
            if not (caller.jobs or caller.passed):
                del self._callers[job.caller.name]
            return
        next_us = job.costs[job.waiting[0]].us
        if next_us > job.deficit:
            job.in_turn = False
            caller.jobs.move_to_end(id(job))
        elif next_us > caller.deficit and not (caller.cut_short or credit):
            caller.in_turn = False
        else:  # the batch is full, but the job's turn, and thus its caller's turn, is not over
            caller.pass_over(job)
            caller.cut_short = True

    def _remove(self, job: AnyJob, tasks: int, cost: Cost) -> None:
        """Update the counters after removing tasks of a job."""
        self.size -= tasks
        self.tokens -= cost.tokens
        self.us -= cost.us
        self.backlog.count(job.cost, job.caller, -1)
        if job.waiting:
            job.cost = job.cost.minus(cost)
            self.backlog.count(job.cost, job.caller)


class _Selection:
    """A batch during task selection. No task may take more than `max_us`. `room`: the number of tasks it may take."""

    def __init__(self, fill: BatchFill, max_size: int, max_us: float) -> None:
        self.runs: list[Run] = []
        self.max_us = max_us
        self.room = max_size
        self._fill = fill
        self._passed_over = 0

    def take(self, job: AnyJob, limit_us: int) -> Cost:
        """Move tasks of a job to the batch, limited by its deficit and `limit_us`, and return their cost."""
        waiting, fill, room = job.waiting, self._fill, self.room
        allowed, longest = min(job.deficit, limit_us), self.max_us
        if (
            fill.by_total
            and job.cost.us <= min(allowed, longest)
            and job.cost.tokens <= fill.free
            and len(waiting) <= room
        ):
            fill.add(job.cost.tokens)
            self.runs.append((job, [*waiting]))
            self.room = room - len(waiting) if fill.free else 0
            waiting.clear()
            job.deficit -= job.cost.us
            return job.cost
        costs, add, next_place = job.costs, fill.add, waiting.popleft
        tokens = us = 0
        taken: list[int] = []
        skipped: list[int] = []
        while waiting and room:
            place = next_place()
            task_tokens, task_us = costs[place]
            if task_us > allowed - us or task_us > longest:
                waiting.appendleft(place)
                break  # the deficit is carried to the next round
            if add(task_tokens):
                taken.append(place)
                tokens += task_tokens
                us += task_us
                room = fill.free and room - 1
            else:
                skipped.append(place)
                self._passed_over += 1
                if self._passed_over == LOOKAHEAD:
                    room = 0
        self.room = room
        waiting.extendleft(reversed(skipped))
        if taken:
            self.runs.append((job, taken))
        job.deficit -= us
        return Cost(tokens, us)


class Batch(Generic[TaskT, ResultT]):
    """Tasks that run together.

    Attributes:
        runs: The tasks by job.
        tasks: All tasks.
        sizes: The number of tokens of each task.
        work_s: The estimated run time on one stream, in seconds.
        longest_us: The run time of the longest task in microseconds.
    """

    __slots__ = ("longest_us", "runs", "sizes", "tasks", "work_s")

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.tasks: list[TaskT] = []
        costs: list[Cost] = []
        for job, places in runs:
            self.tasks += map(job.tasks.__getitem__, places)
            costs += map(job.costs.__getitem__, places)
        us: tuple[int, ...]
        self.sizes: tuple[int, ...]
        self.sizes, us = zip(*costs, strict=True) if runs else ((), ())
        self.work_s = sum(us) / 1e6
        self.longest_us = max(us, default=0)

    @property
    def jobs(self) -> set[Job[TaskT, ResultT]]:
        """The jobs with tasks in this batch."""
        return {job for job, _ in self.runs}

    def halves(self) -> tuple["Batch[TaskT, ResultT]", "Batch[TaskT, ResultT]"]:
        """Return the first and the second half of a batch of several tasks."""
        middle = len(self.tasks) // 2
        single: list[Run] = [(job, (place,)) for job, places in self.runs for place in places]
        return Batch(single[:middle]), Batch(single[middle:])

    def by_run(
        self, results: Sequence[ResultT]
    ) -> Iterator[tuple[Job[TaskT, ResultT], Sequence[int], Sequence[ResultT]]]:
        """Yield the job of each run, the positions of its tasks, and their results."""
        start = 0
        for job, places in self.runs:
            end = start + len(places)
            yield job, places, results if len(self.runs) == 1 else results[start:end]
            start = end


SHORT_US = 25_000
"""Run time of a short batch, and of the longest request for which batches are kept short."""
SHORT_FOR_S = 1.0
"""Batches stay short this long after the last short request: a client that sends requests one after another may send
the next.
"""
SHARED_US = 12_000
"""Run time of a batch while several callers share the lane. Each caller waits for about two batches of the others."""
LONG_BATCHES = 2
"""Tasks that run for longer than this many full batches leave one stream to shorter tasks."""


class BatchPolicy(Generic[TaskT, ResultT]):
    """Takes batches from a lane's queue. `full_us`: the run time of a full batch.

    Of two or more streams, the last one is never occupied by a task of more than `LONG_BATCHES` full batches, even if
    nothing else is queued: the next short request would have to wait until it finishes. Such tasks still run one after
    another on the other streams. With one stream, a short request has to wait for a long task that is running.
    """

    def __init__(self, queue: FairQueue, backend: Backend[TaskT, ResultT], full_us: int) -> None:
        self.running = 0
        self._queue = queue
        self._backend = backend
        self._streams = backend.choice.streams
        self._full_us = full_us
        self._long_us = LONG_BATCHES * full_us
        self._long_running: dict[int, tuple[float, float]] = {}  # start and estimated work in seconds, by batch
        self._only_long_at = -1  # the queue's `arrivals` when no task was short enough for the last stream
        self._short_until = 0.0

    def expect(self, cost: Cost) -> None:
        """Register a request that will be queued."""
        if cost.us <= SHORT_US:
            self._short_until = time.monotonic() + SHORT_FOR_S

    def may_take(self) -> bool:
        """Return whether a worker may take a batch.

        It may if a stream is free, or if a full batch is queued and can be prepared in advance. A batch prepared in
        advance would run before a short request that arrives in the meantime.
        """
        queue = self._queue
        if queue.arrivals == self._only_long_at and self._last_is_reserved:
            return False
        if queue.size and self.running < self._streams:
            return True
        return queue.tokens >= self._backend.max_batch_tokens and self._quantum() == self._full_us

    def take(self) -> tuple[Batch[TaskT, ResultT], int]:
        """Return the next batch, which counts as running until `finish`, and the number of dropped stale tasks."""
        quantum, max_size = self._quantum(), self._backend.max_batch_size
        prefers_short = 0 < len(self._long_running) >= self._streams - 1
        max_us = self._long_us if prefers_short else math.inf
        runs, dropped = self._queue.select_batch(self._fill(quantum), max_size, quantum, max_us)
        if prefers_short and not runs:
            if self._last_is_reserved:
                self._only_long_at = self._queue.arrivals
            else:
                runs, stale = self._queue.select_batch(self._fill(quantum), max_size, quantum)
                dropped += stale
        self.running += 1
        batch: Batch[TaskT, ResultT] = Batch(runs)
        if batch.longest_us > self._long_us:
            self._long_running[id(batch)] = time.monotonic(), batch.work_s
        return batch, dropped

    def finish(self, batch: Batch[TaskT, ResultT]) -> None:
        """Count a batch as finished."""
        self.running -= 1
        self._long_running.pop(id(batch), None)

    def blocked_s(self, longest_us: int, seconds_per_work: float) -> float:
        """Return how long a new task of `longest_us` waits until long tasks leave a stream that it may use.

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

        While several callers share the lane, batches take `SHARED_US`. If requests longer than a full batch are queued,
        and short requests are waiting or arrived within `SHORT_FOR_S`, batches take `SHORT_US`, or as long as all
        queued short requests.
        """
        backlog = self._queue.backlog
        if backlog.shared:
            return min(self._full_us, SHARED_US)
        if time.monotonic() >= self._short_until or not backlog.count_above(self._full_us):
            return self._full_us
        return min(self._full_us, max(SHORT_US, backlog.us_up_to(SHORT_US)))

    def _fill(self, quantum: int) -> BatchFill:
        """Return an empty fill: for a full batch, or for a smaller one if the queue cannot fill every free stream."""
        queue, free_streams = self._queue, max(1, self._streams - self.running)
        short = quantum < self._full_us
        # A full batch fills every row. A smaller batch passes tasks over only to limit padding.
        if short and queue.us >= free_streams * quantum:
            return self._backend.full_batch_fill(quantum / 1e6)
        if not short and queue.tokens >= free_streams * self._backend.max_batch_tokens:
            return self._backend.full_batch_fill(math.inf)
        return self._backend.partial_fill(min(self._backend.max_batch_tokens, -(-queue.tokens // free_streams)))


SPEED_TIME_CONSTANT_S = 2.0
"""Time constant of the moving average, in seconds."""
MAX_SLOWDOWN = 4.0
"""A batch counts as at most this many times slower than expected, to keep one pause from distorting the speed."""
SLICES = 4
"""A large request counts as at most 1 / `SLICES` of the token limit, and the last slice is kept for small requests."""
OVERESTIMATE = 2.0
"""An idle lane rejects a request whose estimated run time is this many times its timeout.

Run times measured during warm-up on a busy machine can be twice the actual ones.
"""
NEAR_CAPACITY = 0.9
"""Fraction of a limit above which requests are checked early."""
TOKENIZER_RETRY_S = 1.0
SENTENCE_TOKENS = 23
"""Mean number of tokens per sentence."""
SMALL_REQUEST_TOKENS = 32
"""Size of the request whose wait `queue_utilization` reports, in tokens."""
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
        """Scale the estimate after the number of models on the machine has changed."""
        self.value *= factor
        self._work *= factor

    def observe(self, work_s: float, *, saturated: bool) -> None:
        """Record a finished batch of `work_s` estimated seconds. `saturated`: whether tasks are still queued."""
        now = time.perf_counter()
        if self._saturated_since is not None:
            seconds = min(now - self._saturated_since, MAX_SLOWDOWN * work_s / self.value)
            keep = math.exp(-seconds / SPEED_TIME_CONSTANT_S)
            self._work = self._work * keep + work_s
            self._seconds = self._seconds * keep + seconds
            self.value = self._work / self._seconds
        self._saturated_since = now if saturated else None


INLINE_COST = 2048
"""Work of at most this cost runs on the event loop; operations/inputs.py defines the unit of costs."""
UNIT_S = 5e-7
"""Upper bound on the time per cost unit, in seconds."""
LOOP_TURNS = 4
"""Number of iterations of a busy event loop that a request waits for: to be read, admitted, queued and answered."""


class LoopTurns:
    """Event loop lag: how long the latest callbacks of any model waited to run."""

    def __init__(self) -> None:
        self._previous_s = self._turn_s = 0.0  # lag in two consecutive turns
        self._measured = -math.inf

    def observe(self, seconds: float) -> None:
        """Record how long a callback waited for the turn that has just begun."""
        now = time.perf_counter()
        if now - seconds < self._measured:  # another lane has measured this turn
            self._turn_s = max(self._turn_s, seconds)
        else:
            is_recent = now - seconds - self._measured < LOOP_TURNS * self._turn_s
            self._previous_s, self._turn_s = self._turn_s if is_recent else 0.0, seconds
        self._measured = now

    @property
    def wait_s(self) -> float:
        """How long a new request is expected to wait for the loop, in seconds.

        A single long turn may mean that the process was suspended, so both of the last two turns must be long. The wait
        decays over time, because rejected requests measure no turns.
        """
        elapsed = time.perf_counter() - self._measured
        return max(0.0, LOOP_TURNS * min(self._previous_s, self._turn_s) - elapsed)


class HostQueue:
    """A model's requests outside of its lanes, waiting for a preparation thread or the event loop.

    If the device is faster than the process, requests wait longer here than in the lane's queue. `turns` measures the
    event loop.
    """

    def __init__(self, threads: int, turns: LoopTurns | None = None) -> None:
        self.turns = turns or LoopTurns()
        self._threads = threads
        self._pending = 0
        self._pending_s = 0.0
        self._speed = Speed(threads)

    @contextmanager
    def running(self, cost: int) -> Iterator[None]:
        """Count work of this cost while it waits for a thread and while it runs."""
        seconds = cost * UNIT_S
        self._pending += 1
        self._pending_s += seconds
        try:
            yield
            self._speed.observe(seconds, saturated=self._pending > self._threads)
        finally:
            self._pending -= 1
            self._pending_s -= seconds

    def wait_s(self, cost: float = math.inf) -> float:
        """Return how long a new request with this preparation cost is expected to wait, in seconds."""
        wait = self.turns.wait_s
        if cost > INLINE_COST and self._pending >= self._threads:
            wait += self._pending_s / self._speed.value
        return wait


class Admission:
    """Admission limits of one lane, and the cost of its requests on the backend.

    Attributes:
        backlog: Queued requests and requests in preparation.
        quantum: Microseconds per turn, the run time of a full batch.
        near_wait_s: An estimated wait above which the next request may be rejected, in seconds.
    """

    def __init__(self, backend: Backend[Any, Any], max_queue_ms: int, max_queue_tokens: int) -> None:
        @lru_cache(maxsize=8192)
        def task_cost(tokens: int) -> Cost:
            return Cost(tokens, max(1, round(1e6 * backend.seconds(tokens))))

        max_batch_tokens = backend.max_batch_tokens
        self.task_cost = task_cost
        self._streams = self._all_streams = float(backend.choice.streams)
        self.speed = Speed(self._streams)
        self._token_us = 1e6 * backend.seconds(SMALL_REQUEST_TOKENS) / SMALL_REQUEST_TOKENS
        self.quantum = max(1, round(max_batch_tokens * self._token_us))
        self._slice = max(max_batch_tokens, max_queue_tokens // SLICES)
        self.backlog = LaneBacklog(self._slice)
        self.backlog.near_held = NEAR_CAPACITY * max_queue_tokens
        self._max_wait_s = max_queue_ms / 1000
        self.near_wait_s = NEAR_CAPACITY * self._max_wait_s
        self.backlog.near_us = 1e6 * self.near_wait_s * self.speed.value
        self._max_tokens = max_queue_tokens
        self._max_batch_tokens = max_batch_tokens

    @property
    def texts_per_second(self) -> float:
        """The number of texts of `SENTENCE_TOKENS` that all streams process per second, as estimated during warm-up."""
        return 1e6 * self._all_streams / (SENTENCE_TOKENS * self._token_us)

    def share(self, models: int) -> None:
        """Scale estimates to a fraction of the streams, because this many models share the machine."""
        streams = self._all_streams / models
        self.speed.scale(streams / self._streams)
        self._streams = streams
        self.backlog.near_us = 1e6 * self.near_wait_s * self.speed.value

    def utilization(self, host_s: float) -> float:
        """Return the estimated wait of a small request, as a fraction of the limit; `host_s`: outside of the lane."""
        return (self.wait_s(self.task_cost(SMALL_REQUEST_TOKENS)) + host_s) / self._max_wait_s

    def observe(self, work_s: float, *, saturated: bool) -> None:
        """Record a finished batch; see `Speed.observe`."""
        self.speed.observe(work_s, saturated=saturated)
        # The whole backlog is an upper bound on any wait.
        self.backlog.near_us = 1e6 * self.near_wait_s * self.speed.value

    def cost(self, sizes: Iterable[int], more_tokens: int = 0) -> Cost:
        """Return the cost of a request with tasks of these sizes in tokens, and of `more_tokens` in short tasks."""
        cost = Cost.total(map(self.task_cost, sizes))
        return cost.plus(Cost(more_tokens, round(more_tokens * self._token_us))) if more_tokens else cost

    def run_s(self, us: float) -> float:
        """Return the seconds that the lane needs for `us` microseconds of work."""
        return us / 1e6 / self.speed.value

    def wait_s(self, cost: Cost, caller: Caller = ANONYMOUS) -> float:
        """Return the estimated wait of a new request of a caller, in seconds.

        Under round robin, each queued request gets at most as many turns as the new request needs.
        """
        us = -(-cost.us // self.quantum) * self.quantum
        return self.run_s(self.backlog.us_ahead_for(caller, us, self.quantum))

    def own_s(self, cost: Cost, longest_us: int) -> float:
        """Return how many seconds an idle lane needs for a request. The longest task occupies one stream."""
        return self.run_s(max(cost.us, longest_us * self._streams))

    def pause_s(self, caller: Caller) -> float:
        """Return how long to stop reading from a rejected caller's connection, in seconds.

        Otherwise, a caller with a thousand connections could occupy the event loop with rejections and delay other
        callers. Jitter keeps the connections from sending their next requests all at the same time.
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
        host_s: float = 0.0,
    ) -> None:
        """Raise `QueueFull` if a request of this cost cannot be queued now. An idle lane admits any request.

        Raises `DeadlineExceeded` after `deadline`, a time.monotonic() reading, and if a request would run beyond it
        even on an idle lane. An idle lane rejects only requests of more than a batch that would run far beyond it. The
        wait limit is `max_queue_ms` plus the run time of the request itself. A request of several batches counts as one
        slice of the token limit, and leaves one slice free, so that no large request locks out small ones. A named
        caller may hold at most as many queued tokens as are still free, so that no caller locks out others (Choudhury
        and Hahne, Dynamic Queue Length Thresholds for Shared-Memory Packet Switches, 1998).

        Args:
            cost: of the whole request.
            deadline: a time.monotonic() reading.
            longest_us: the run time of its longest task in microseconds.
            blocked_s: the time until running long tasks leave a stream that the request may use, in seconds.
            caller: who sent it.
            host_s: the estimated wait outside of the lane, in seconds.
        """
        remaining = remaining_s(deadline)
        own = self.own_s(cost, longest_us)
        if own > OVERESTIMATE * remaining and cost.us > self.quantum:  # smaller estimates are too imprecise
            raise too_large_for_deadline(own, remaining)
        queued = self.backlog.held
        if not (queued or blocked_s) and host_s <= min(self._max_wait_s, remaining):
            return
        blocked_s += host_s
        wait = self.run_s(self.backlog.us) + blocked_s
        if wait > min(self._max_wait_s, remaining - own):  # else even the upper bound is short enough
            wait = self.wait_s(cost, caller) + blocked_s
        requested = self.backlog.held_tokens(cost.tokens)
        limit = self._max_tokens - (self._slice if cost.tokens > self._max_batch_tokens else 0)
        held = self.backlog.held_by(caller)
        excess = queued + requested + held - limit
        if queued and excess > 0:
            is_full = queued + requested > limit
            whose, count, free = ("", queued, limit) if is_full else (" for this caller", held, limit - queued)
            raise QueueFull(
                f"Queue full{whose} ({count} tokens queued, {requested} requested, limit {free})",
                "Retry later.",
                retry_after_s=self.run_s(round(excess * self._token_us)),
            )
        if wait > self._max_wait_s + own:
            raise QueueFull(
                f"Server busy (estimated wait {wait * 1000:.0f} ms, limit {self._max_wait_s * 1000:.0f} ms)",
                "Retry later.",
                retry_after_s=wait - self._max_wait_s,
            )
        if own > remaining:  # not for lack of capacity
            raise too_large_for_deadline(own, remaining)
        if wait + own > remaining:
            raise QueueFull(
                f"Server too busy for the deadline (estimated wait {wait * 1000:.0f} ms, run time {own * 1000:.0f} ms, "
                f"remaining {remaining * 1000:.0f} ms)",
                "Retry later, or increase the timeout.",
                retry_after_s=wait,
            )


class TokenizerAdmission:
    """Admission limit for requests that are only tokenized, which use no lane.

    Together, they may contain up to `max_tokens` estimated tokens; a single request may contain more. Not thread-safe.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def reserve(self, characters: int, deadline: float) -> Iterator[None]:
        """Count a request of this many characters while it is tokenized. Raises the errors of `Admission.check`."""
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


def too_large_for_deadline(run_s: float, remaining: float) -> DeadlineExceeded:
    """Return the error for a request that needs longer than the remaining time, both in seconds."""
    return DeadlineExceeded(
        f"Request too large for the deadline (estimated run time {run_s * 1000:.0f} ms, "
        f"remaining {remaining * 1000:.0f} ms)",
        "Increase the timeout, or send fewer or shorter inputs.",
    )


def remaining_s(deadline: float) -> float:
    """Return the seconds until a deadline, a time.monotonic() reading. Raises `DeadlineExceeded` after it."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise DeadlineExceeded("Deadline exceeded before the request was queued", "Increase the timeout.")
    return remaining
