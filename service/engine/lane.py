"""Lanes: a queue, limits and workers for one kind of work, as the event loop sees them.

Callers run on one event loop, workers are threads; every task belongs to a job, the tasks of one request.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from service.callers import Caller
from service.engine.admission import Admission
from service.engine.backends.base import Backend, Task
from service.engine.backlog import Cost
from service.engine.jobs import Entry, Job
from service.engine.observer import LaneObserver, ModelObserver
from service.engine.schema.tasks import EncodeTask, ExplainTask, TextVectors
from service.engine.watchdog import Watchdog
from service.engine.workers import Workers
from service.errors import BackendFailed, Draining, Internal, NonFiniteOutput, QueueFull, ServiceError
from service.request_log import current_caller

TaskT = TypeVar("TaskT", bound=Task)
Result = TypeVar("Result")


MAX_WAIT_S = 24 * 3600.0


class Reservation:
    """The reserved cost of a request in preparation, to release once the request is queued or has failed."""

    __slots__ = ("_caller", "_cost", "_workers")

    def __init__(self, workers: Workers[Any, Any], cost: Cost, caller: Caller) -> None:
        self._workers = workers
        self._cost = cost
        self._caller = caller

    def release(self) -> None:
        if self._caller.quota is not None:
            self._caller.quota.charge(-self._cost.tokens)
        self._workers.release(self._cost, self._caller)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        self.release()


class Lane(Generic[TaskT, Result]):
    """A queue with its workers.

    Construct it on the event loop that submits to it; construction starts the workers. `yields_to` returns True while
    a higher-priority lane has queued tasks.
    """

    def __init__(
        self,
        name: str,
        backend: Backend[TaskT, Result],
        admission: Admission,
        observer: ModelObserver,
        yields_to: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self.precision = backend.choice.precision
        self.admission = admission
        self.observer = LaneObserver(observer, name)
        self._loop = asyncio.get_running_loop()
        self._workers = Workers(name, backend, admission, self.observer, self._call_soon, yields_to)
        queue = self._workers.queue
        self.observer.watch_queue(lambda: queue.size, lambda: queue.tokens, lambda: admission.utilization)
        self.observer.watch_health(lambda: self.healthy, lambda: self._workers.watchdog.stalled)

    @property
    def near_capacity(self) -> bool:
        """True if the next request may be rejected."""
        return self.admission.backlog.near

    @property
    def watchdog(self) -> Watchdog:
        """The watchdog of the lane's workers, which also watches preparations."""
        return self._workers.watchdog

    @property
    def has_queued_tasks(self) -> bool:
        """True while tasks are queued."""
        return self._workers.queue.size > 0

    @property
    def healthy(self) -> bool:
        """False once the backend or a worker thread has failed. Every later request is then rejected."""
        return self._workers.failure is None

    @property
    def stalled(self) -> bool:
        """True while a batch runs far beyond its expected time."""
        return self._workers.watchdog.stalled > 0

    def share(self, models: int) -> None:
        """Expect a part of the machine: this many models share it."""
        with self._workers.lock:
            self.admission.share(models)

    def watch(self, seconds: float) -> None:
        """Count `seconds` of run time for the running batches."""
        self._workers.watchdog.observe(seconds)

    def reserve(
        self, sizes: Sequence[int], deadline: float = math.inf, more_tokens: int = 0, caller: Caller | None = None
    ) -> "Reservation":
        """Admit a request and reserve its estimated cost during preparation.

        `sizes` are the estimated numbers of tokens of its tasks, and `more_tokens` the tokens of other short tasks.
        `caller` defaults to the caller of the current request. Raises `QueueFull`, `QuotaExceeded` or `Unavailable` if
        it cannot be admitted now, and `DeadlineExceeded` after the deadline or if the request would run beyond it.
        """
        caller = caller or current_caller()
        workers, admission = self._workers, self.admission
        cost = admission.cost(sizes, more_tokens)
        longest_us = admission.task_cost(max(sizes)).us if sizes else 0
        with workers.lock:
            if workers.stopped:
                raise self._stopped_error()
            if caller.quota is not None:
                caller.quota.check()
            try:
                admission.check(cost, deadline, longest_us, workers.blocked_s(longest_us), caller)
            except QueueFull as error:
                error.pause_s = admission.pause_s(caller)
                raise
            workers.reserve(cost, caller)
        if caller.quota is not None:
            caller.quota.charge(cost.tokens)
        return Reservation(workers, cost, caller)

    def submit(self, tasks: Sequence[TaskT], deadline: float, caller: Caller | None = None) -> Job[TaskT, Result]:
        """Queue the tasks of one request. Pass the job to `wait`.

        `deadline` is a time.monotonic() reading. `caller` defaults to the caller of the current request.
        """
        caller = caller or current_caller()
        job: Job[TaskT, Result] = Job(len(tasks), deadline)
        if not tasks:
            return job
        entries, costs, task_cost = [], [], self.admission.task_cost
        for index, task in enumerate(tasks):
            cost = task_cost(len(task.tokens))
            costs.append(cost)
            entries.append(Entry(job, index, task, cost))
        if caller.quota is not None:
            caller.quota.charge(sum(cost.tokens for cost in costs))
        workers = self._workers
        with workers.lock:
            if workers.stopped:
                raise self._stopped_error()
            job.request = workers.queue.add(entries, costs, job.is_stale, caller)
        if not workers.wake_scheduled:
            workers.wake_scheduled = True
            self._loop.call_soon(workers.wake)  # in the next iteration, so that requests of this one share a batch
        return job

    async def wait(self, job: Job[TaskT, Result]) -> list[Result]:
        """Return the results of a job in the order of its tasks.

        Tasks that have not started are dropped if the caller is cancelled or the deadline passes. Raises a
        `ServiceError` for every failure.
        """
        if not job.done:
            finished: asyncio.Future[None] = self._loop.create_future()
            job.on_done = lambda: None if finished.done() else finished.set_result(None)
            remaining = min(job.deadline - time.monotonic(), MAX_WAIT_S)
            expiry = self._loop.call_later(max(0.0, remaining), job.expire)  # a fifth of the time of asyncio.timeout
            try:
                await finished
            finally:
                expiry.cancel()
                if not job.done:
                    job.finish()
                if job.pending and job.request is not None:
                    self._workers.discard(job.request)
        error = job.error
        if error is None:
            return job.results  # type: ignore[return-value]  # every task has a result
        if isinstance(error, NonFiniteOutput):
            self.observer.nonfinite_outputs.inc()
        if isinstance(error, ServiceError):
            raise error
        raise Internal from error

    async def drain(self) -> None:
        """Wait until no request is in preparation, queued or running."""
        await asyncio.to_thread(self._workers.wait_until_idle)

    async def close(self) -> None:
        """Reject new tasks, fail queued ones, and stop the workers after their current batches."""
        for entry in self._workers.close():
            error = Draining("Server shut down before this request ran", "Retry on another instance.")
            entry.job.finish(error)
        await asyncio.to_thread(self._workers.join)

    def _stopped_error(self) -> Draining | BackendFailed:
        if self._workers.failure is None:
            return Draining("Server is shutting down", "Retry on another instance.")
        return BackendFailed("Inference backend failed", "Retry on another instance.")

    def _call_soon(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nothing awaits the result
            self._loop.call_soon_threadsafe(callback, *arguments)


FastLane = Lane[EncodeTask, TextVectors]
ExplainLane = Lane[ExplainTask, Any]
