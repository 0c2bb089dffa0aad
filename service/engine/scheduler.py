"""Lanes: a queue, worker threads, limits and a backend for one kind of work.

Batching is dynamic and work-conserving: an idle stream of the backend takes all queued tasks at once, up to
`max_batch_tokens`, and under load batches grow with the queue. There is no batching delay. Callers run on one event
loop, workers are threads; every task belongs to a job (the tasks of one request), and a job has one future.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from model.packing import TokenLimit
from service.engine.admission import Admission
from service.engine.backends.base import Backend, Task
from service.engine.backends.cpu import lower_thread_priority
from service.engine.fair_queue import FairQueue, WaitingRequest
from service.engine.jobs import Entry, Job, Submitted
from service.engine.lane_metrics import LaneMetrics, ModelMetrics
from service.engine.watchdog import Watchdog
from service.errors import BackendFailed, Draining, Internal, NonFiniteOutput, ServiceError
from service.request_log import note_lane

TaskT = TypeVar("TaskT", bound=Task)
Result = TypeVar("Result")

JOIN_TIMEOUT_S = 5.0

log = logging.getLogger("attendant.scheduler")


class Lane(Generic[TaskT, Result]):
    """A queue with its worker threads.

    Construct it on the event loop that submits to it; construction starts the threads. `yields_to` returns True while
    a higher-priority lane has queued tasks. Workers then pause after each batch for half its duration.
    """

    def __init__(
        self,
        name: str,
        backend: Backend[TaskT, Result],
        admission: Admission,
        metrics: ModelMetrics,
        yields_to: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self.precision = backend.choice.precision
        self.admission = admission
        self._backend = backend
        self._streams = backend.choice.streams
        self._yields_to = yields_to
        self._loop = asyncio.get_running_loop()
        lock = threading.Lock()
        self._tasks_available = threading.Condition(lock)
        self._idle = threading.Condition(lock)
        self._queue: FairQueue[Entry[TaskT, Result]] = FairQueue(admission.quantum, admission.backlog)
        self._reserved = 0
        self._running = 0
        self._closing = False
        self._waking = False
        self._failure: BaseException | None = None
        self._watchdog = Watchdog()
        self._recovery_lock = threading.Lock()
        self.metrics = self._metrics = LaneMetrics(metrics, name)
        self._metrics.watch_queue(lambda: len(self._queue), lambda: self._queue.tokens, lambda: admission.utilization)
        self._metrics.watch_health(lambda: self.healthy, lambda: self._watchdog.stalled)
        self._threads = [
            threading.Thread(target=self._work, name=f"attendant-{name}-{number}", daemon=True)
            for number in range(backend.workers)
        ]
        for thread in self._threads:
            thread.start()

    # On the event loop.

    @property
    def busy(self) -> bool:
        """True while tasks are queued."""
        return len(self._queue) > 0

    @property
    def healthy(self) -> bool:
        """False once the backend or a worker thread has failed. Every later request is then rejected."""
        return self._failure is None

    @property
    def stalled(self) -> bool:
        """True while a batch runs far beyond its expected time."""
        return self._watchdog.stalled > 0

    def watch(self, seconds: float) -> None:
        """Count `seconds` of run time for the running batches."""
        self._watchdog.observe(seconds)

    def check_capacity(self, tokens: int, deadline: float) -> None:
        """Raise `QueueFull` or `Unavailable` unless a request of `tokens` would be admitted now."""
        if self._closing:
            raise Draining("Server is shutting down", "Retry on another instance.")
        if self._failure is not None:
            raise BackendFailed("Inference backend failed", "Retry on another instance.")
        self.admission.check(tokens, deadline)

    @contextmanager
    def reserve(self, tokens: int, deadline: float = math.inf) -> Iterator[None]:
        """Admit a request and reserve its estimated tokens during preparation.

        Raises the same errors as `check_capacity`.
        """
        note_lane(self.name)
        with self._tasks_available:
            self.check_capacity(tokens, deadline)
            self._queue.backlog.add(tokens)
            self._reserved += 1
        try:
            yield
        finally:
            with self._tasks_available:
                self._queue.backlog.add(tokens, -1)
                self._reserved -= 1
                self._notify_if_idle()

    def submit(self, tasks: Sequence[TaskT], deadline: float) -> "Submitted[TaskT, Result]":
        """Queue the tasks of one request. Pass the result to `wait`. `deadline` is a time.monotonic() reading."""
        job: Job[Result] = Job(len(tasks), deadline, self._loop.create_future())
        entries = [Entry(job, index, task) for index, task in enumerate(tasks)]
        if not tasks:
            job.future.set_result([])
            return Submitted(job, None)
        with self._tasks_available:
            if self._closing or self._failure is not None:
                self.check_capacity(0, deadline)
            request = self._queue.add(entries, [len(task.tokens) for task in tasks], job.is_stale)
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self._wake)
        return Submitted(job, request)

    async def wait(self, submitted: "Submitted[TaskT, Result]") -> list[Result]:
        """Return the results of a request in order.

        Tasks that have not started are dropped if the caller is cancelled. Raises a `ServiceError` for every failure.
        """
        job = submitted.job
        try:
            return await job.future
        except NonFiniteOutput:
            self._metrics.nonfinite_outputs.inc()
            raise
        except ServiceError:
            raise
        except Exception as error:
            raise Internal from error
        finally:
            if submitted.request is not None:
                self._discard(submitted.request)

    async def drain(self) -> None:
        """Wait until no request is in preparation, queued or running."""
        await asyncio.to_thread(self._wait_until_idle)

    async def close(self) -> None:
        """Reject new tasks, fail queued ones, and stop the workers after their current batches."""
        with self._tasks_available:
            self._closing = True
            left = self._queue.clear()
            self._tasks_available.notify_all()
            self._notify_if_idle()
        for entry in left:
            error = Draining("Server shut down before this request ran", "Retry on another instance.")
            entry.job.fail(error)
        await asyncio.to_thread(self._join)

    def _wake(self) -> None:
        """Wake the workers one loop iteration after submission, so that requests from one iteration share a batch."""
        self._waking = False
        with self._tasks_available:
            self._tasks_available.notify_all()

    def _discard(self, request: WaitingRequest[Entry[TaskT, Result]]) -> None:
        with self._tasks_available:
            dropped = len(self._queue.discard(request))
            self._notify_if_idle()
        if dropped:
            self._metrics.cancelled_in_queue.inc(dropped)

    def _wait_until_idle(self) -> None:
        with self._idle:
            self._idle.wait_for(self._is_idle)

    def _is_idle(self) -> bool:
        return not (len(self._queue) or self._running or self._reserved)

    def _notify_if_idle(self) -> None:
        if self._is_idle():
            self._idle.notify_all()

    def _join(self) -> None:
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # On a worker thread.

    def _work(self) -> None:
        lower_thread_priority()
        try:
            self._run_batches()
        except BaseException as error:
            self._stop_serving([], error)
            raise

    def _run_batches(self) -> None:
        while (batch := self._take()) is not None:
            started = time.perf_counter()
            try:
                if batch:
                    self._run(batch)
            finally:
                seconds = time.perf_counter() - started
                with self._tasks_available:
                    self._running -= 1
                    saturated = len(self._queue) > 0
                    self.admission.rate.observe(sum(len(entry.task.tokens) for entry in batch), saturated=saturated)
                    self._tasks_available.notify()
                    self._notify_if_idle()
            if batch and self._yields_to():
                time.sleep(seconds / 2)

    def _take(self) -> list[Entry[TaskT, Result]] | None:
        """Wait for tasks and a free stream; return the next batch, or None once the lane closes or has failed."""
        with self._tasks_available:
            while not (self._closing or self._failure or self._may_take()):
                self._tasks_available.wait()
            if self._closing or self._failure:
                return None
            free_streams = max(1, self._streams - self._running)
            share = -(-self._queue.tokens // free_streams)
            # Under load every row of a batch is filled; otherwise waiting tasks are not passed over.
            full = share >= self._backend.max_batch_tokens
            fill = self._backend.full_batch_fill() if full else TokenLimit(share)
            batch, dropped = self._queue.select_batch(fill, self._backend.max_batch_size)
            self._running += 1
        if dropped:
            self._metrics.cancelled_in_queue.inc(dropped)
        return batch

    def _may_take(self) -> bool:
        """Return whether a worker may take a batch.

        Either a stream is free, or a full batch is queued and can be prepared in advance.
        """
        if not len(self._queue):
            return False
        return self._running < self._streams or self._queue.tokens >= self._backend.max_batch_tokens

    def _run(self, batch: Sequence[Entry[TaskT, Result]]) -> None:
        started = time.perf_counter()
        for job in {entry.job for entry in batch}:
            if not job.started:
                job.started, job.queue_s = True, started - job.submitted
                self._metrics.observe_queue(job.queue_s)
        try:
            results = self._execute([entry.task for entry in batch])
        except NonFiniteOutput as error:
            self._metrics.inference_errors.inc()
            self._bisect(batch, error)
            return
        except Exception as error:  # noqa: BLE001  # a backend may raise anything
            self._metrics.inference_errors.inc()
            self._recover(batch, error)
            return
        seconds = time.perf_counter() - started
        sizes = [len(entry.task.tokens) for entry in batch]
        self._metrics.observe_batch(
            sizes, self._backend.padded_tokens(sizes), seconds, self._backend.choice.threads_per_stream
        )
        self._call_loop(self._deliver, batch, results)

    def _execute(self, tasks: Sequence[TaskT]) -> list[Result]:
        tokens = sum(len(task.tokens) for task in tasks)
        with self._watchdog.running(tokens * self._streams / self.admission.rate.tokens_per_second):
            results = self._backend.run(tasks)
        if len(results) != len(tasks):
            raise RuntimeError(f"backend returned {len(results)} results for {len(tasks)} tasks")
        return results

    def _recover(self, batch: Sequence[Entry[TaskT, Result]], error: Exception) -> None:
        """Run a tiny valid batch to determine whether the session or an input caused the error.

        If it fails too, retry once on a fresh session; if that fails, the lane fails permanently.
        """
        with self._recovery_lock:
            try:
                self._backend.probe()
            except Exception:
                log.exception("inference session failed, reopening lane=%s", self.name)
                try:
                    self._backend.reopen()
                    self._backend.probe()
                except Exception as fatal:  # noqa: BLE001
                    self._stop_serving(batch, fatal)
                    return
                try:
                    self._call_loop(self._deliver, batch, self._execute([entry.task for entry in batch]))
                    return
                except Exception as again:  # noqa: BLE001
                    error = again
        self._bisect(batch, error)

    def _bisect(self, batch: Sequence[Entry[TaskT, Result]], error: Exception) -> None:
        """Run both halves of a failed batch, so that only the faulty task fails."""
        if len(batch) == 1:
            self._call_loop(batch[0].job.fail, error)
            return
        self._metrics.batch_retries.inc(2)
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            if self._failure is None:
                self._run(half)
            else:
                self._reject(half)

    def _stop_serving(self, batch: Sequence[Entry[TaskT, Result]], error: BaseException) -> None:
        log.critical("lane failed model=%s lane=%s", self._metrics.model, self.name, exc_info=error)
        with self._tasks_available:
            self._failure = error
            left = self._queue.clear()
            self._tasks_available.notify_all()
            self._notify_if_idle()
        self._reject([*batch, *left])

    def _reject(self, entries: Sequence[Entry[TaskT, Result]]) -> None:
        for entry in entries:
            error = BackendFailed("Inference backend failed", "Retry on another instance.")
            self._call_loop(entry.job.fail, error)

    def _call_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nothing awaits the result
            self._loop.call_soon_threadsafe(callback, *arguments)

    # On the event loop again.

    def _deliver(self, batch: Sequence[Entry[TaskT, Result]], results: Sequence[Result]) -> None:
        for entry, result in zip(batch, results, strict=True):
            if not entry.job.set_result(entry.index, result):
                self._metrics.cancelled_in_batch.inc()
