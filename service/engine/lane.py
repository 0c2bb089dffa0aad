"""Lanes: a queue, limits and workers for one kind of work, as the event loop sees them.

Callers run on one event loop, workers are threads; every task belongs to a job (the tasks of one request), and a job
has one future.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from service.engine.admission import Admission
from service.engine.backends.base import Backend, Task
from service.engine.fair_queue import ANONYMOUS, Cost
from service.engine.jobs import Entry, Job, Submitted
from service.engine.observer import LaneObserver, ModelObserver
from service.engine.workers import Workers
from service.errors import BackendFailed, Draining, Internal, NonFiniteOutput, ServiceError

TaskT = TypeVar("TaskT", bound=Task)
Result = TypeVar("Result")


MAX_WAIT_S = 24 * 3600.0


class Reservation:
    """The reserved cost of a request in preparation, to release once the request is queued or has failed."""

    __slots__ = ("_cost", "_workers")

    def __init__(self, workers: Workers[Any, Any], cost: Cost) -> None:
        self._workers = workers
        self._cost = cost

    def release(self) -> None:
        self._workers.release(self._cost)

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
        yields_to: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self.precision = backend.choice.precision
        self.admission = admission
        self.observer = LaneObserver(observer, name)
        self._loop = asyncio.get_running_loop()
        self._waking = False
        self._workers = Workers(name, backend, admission, self.observer, self._call_soon, yields_to)
        queue = self._workers.queue
        self.observer.watch_queue(lambda: queue.size, lambda: queue.cost.tokens, lambda: admission.utilization)
        self.observer.watch_health(lambda: self.healthy, lambda: self._workers.watchdog.stalled)

    @property
    def busy(self) -> bool:
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

    def watch(self, seconds: float) -> None:
        """Count `seconds` of run time for the running batches."""
        self._workers.watchdog.observe(seconds)

    def reserve(self, cost: Cost, deadline: float = math.inf) -> "Reservation":
        """Admit a request and reserve its estimated cost during preparation.

        Raises `QueueFull` or `Unavailable` if it cannot be admitted now, and `DeadlineExceeded` after the deadline.
        """
        with self._workers.lock:
            self._check_running()
            self.admission.check(cost, deadline)
            self._workers.reserve(cost)
        return Reservation(self._workers, cost)

    def submit(self, tasks: Sequence[TaskT], deadline: float, caller: str = ANONYMOUS) -> "Submitted[TaskT, Result]":
        """Queue the tasks of one request of a caller. Pass the result to `wait`.

        `deadline` is a time.monotonic() reading.
        """
        job: Job[Result] = Job(len(tasks), deadline, self._loop.create_future())
        if not tasks:
            job.future.set_result([])
            return Submitted(job, None)
        costs = [self.admission.task_cost(len(task.tokens)) for task in tasks]
        entries = [Entry(job, index, task, cost) for index, (task, cost) in enumerate(zip(tasks, costs, strict=True))]
        with self._workers.lock:
            self._check_running()
            request = self._workers.queue.add(entries, costs, job.is_stale, caller)
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self._wake)
        return Submitted(job, request)

    async def wait(self, submitted: "Submitted[TaskT, Result]") -> list[Result]:
        """Return the results of a request in order.

        Tasks that have not started are dropped if the caller is cancelled or the deadline passes. Raises a
        `ServiceError` for every failure.
        """
        job = submitted.job
        remaining = min(job.deadline - time.monotonic(), MAX_WAIT_S)
        expiry = self._loop.call_later(max(0.0, remaining), job.expire)  # a fifth of the time of asyncio.timeout
        try:
            return await job.future
        except NonFiniteOutput:
            self.observer.nonfinite_outputs.inc()
            raise
        except ServiceError:
            raise
        except Exception as error:
            raise Internal from error
        finally:
            expiry.cancel()
            if submitted.request is not None:
                self._workers.discard(submitted.request)

    async def drain(self) -> None:
        """Wait until no request is in preparation, queued or running."""
        await asyncio.to_thread(self._workers.wait_until_idle)

    async def close(self) -> None:
        """Reject new tasks, fail queued ones, and stop the workers after their current batches."""
        for entry in self._workers.close():
            error = Draining("Server shut down before this request ran", "Retry on another instance.")
            entry.job.fail(error)
        await asyncio.to_thread(self._workers.join)

    def _check_running(self) -> None:
        if self._workers.closing:
            raise Draining("Server is shutting down", "Retry on another instance.")
        if self._workers.failure is not None:
            raise BackendFailed("Inference backend failed", "Retry on another instance.")

    def _wake(self) -> None:
        """Wake the workers one loop iteration after submission, so that requests from one iteration share a batch."""
        self._waking = False
        self._workers.wake()

    def _call_soon(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nothing awaits the result
            self._loop.call_soon_threadsafe(callback, *arguments)
