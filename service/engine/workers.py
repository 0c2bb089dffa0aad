"""The worker threads of a lane: they take batches from its queue, run them, and recover from failures."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from service.callers import Caller
from service.engine.admission import Admission
from service.engine.backends.base import Backend, FittedBatch, Task
from service.engine.backends.cpu import lower_thread_priority
from service.engine.backlog import Cost
from service.engine.batch_policy import BatchPolicy, work_s
from service.engine.fair_queue import FairQueue, WaitingRequest
from service.engine.jobs import Entry
from service.engine.observer import LaneObserver
from service.engine.watchdog import Watchdog
from service.errors import BackendFailed, NonFiniteOutput

TaskT = TypeVar("TaskT", bound=Task)
Result = TypeVar("Result")

JOIN_TIMEOUT_S = 5.0

log = logging.getLogger("attendant.scheduler")


class Workers(Generic[TaskT, Result]):
    """The threads of one lane, started by construction, and the queue from which they take tasks.

    `lock` guards `queue`, `failure`, and `stopped`, which is True after a failure or `close`. `call_soon` runs a
    function on the event loop of the lane's callers, which sets `wake_scheduled` when it schedules `wake`. `yields_to`
    returns True while a higher-priority lane has queued tasks; workers then pause after each batch for half its
    duration.
    """

    def __init__(
        self,
        name: str,
        backend: Backend[TaskT, Result],
        admission: Admission,
        observer: LaneObserver,
        call_soon: Callable[..., None],
        yields_to: Callable[[], bool] | None,
    ) -> None:
        self.queue: FairQueue[Entry[TaskT, Result]] = FairQueue(admission.quantum, admission.backlog)
        self._policy: BatchPolicy[TaskT, Result] = BatchPolicy(self.queue, backend, admission.quantum)
        self.lock = threading.Lock()
        self.watchdog = Watchdog()
        self.stopped = self.wake_scheduled = False
        self.failure: BaseException | None = None
        self._name = name
        self._backend = backend
        self._streams = backend.choice.streams
        self._admission = admission
        self._observer = observer
        self._call_soon = call_soon
        self._yields_to = yields_to
        self._tasks_available = threading.Condition(self.lock)
        self._idle = threading.Condition(self.lock)  # notified of every change that may leave the lane idle
        self._recovery_lock = threading.Lock()
        self._sessions = 1  # opened so far
        self._reserved = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"attendant-{name}-{number}", daemon=True)
            for number in range(backend.workers)
        ]
        for thread in self._threads:
            thread.start()

    # From the event loop.

    def reserve(self, cost: Cost, caller: Caller) -> None:
        """Count a request in preparation. Requires `lock`."""
        self.queue.backlog.count(cost, caller)
        self._reserved += 1
        self._policy.expect(cost)

    def blocked_s(self, longest_us: int) -> float:
        """See `BatchPolicy.blocked_s`. Requires `lock`."""
        return self._policy.blocked_s(longest_us, self._streams / self._admission.speed.value)

    def release(self, cost: Cost, caller: Caller) -> None:
        """Remove a request that was in preparation."""
        with self.lock:
            self.queue.backlog.count(cost, caller, -1)
            self._reserved -= 1
            self._idle.notify_all()

    def wake(self) -> None:
        """Wake a worker after tasks were queued. Each one that takes a batch wakes the next, if it can take one too."""
        self.wake_scheduled = False
        with self.lock:
            self._tasks_available.notify()

    def discard(self, request: WaitingRequest[Entry[TaskT, Result]]) -> None:
        """Drop the tasks of a request that have not started."""
        with self.lock:
            dropped = len(self.queue.discard(request))
            self._idle.notify_all()
        if dropped:
            self._observer.cancelled_in_queue.inc(dropped)

    def close(self) -> list[Entry[TaskT, Result]]:
        """Stop the threads after their current batches; return the queued tasks, which will not run."""
        with self.lock:
            self.stopped = True
            left = self.queue.clear()
            self._tasks_available.notify_all()
            self._idle.notify_all()
        return left

    # From any other thread.

    def wait_until_idle(self) -> None:
        """Wait until no request is in preparation, queued or running."""
        with self._idle:
            self._idle.wait_for(lambda: not (self.queue.size or self._policy.running or self._reserved))

    def join(self) -> None:
        """Wait for the threads after `close`, for at most `JOIN_TIMEOUT_S`."""
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # On a worker thread.

    def _work(self) -> None:
        lower_thread_priority()
        batch: list[Entry[TaskT, Result]] | None = []
        try:
            while (batch := self._take()) is not None:
                self._run_batch(batch)
        except BaseException as error:
            self._stop_serving(batch or [], error)
            raise

    def _run_batch(self, batch: list[Entry[TaskT, Result]]) -> None:
        started = time.perf_counter()
        try:
            if batch:
                self._run(batch)
        finally:
            seconds = time.perf_counter() - started
            with self.lock:
                self._policy.finish(batch)
                self._admission.observe(work_s(batch), saturated=self.queue.size > 0)
                if self.queue.size and self._policy.may_take():
                    self._tasks_available.notify()
                self._idle.notify_all()
        if batch and self._yields_to is not None and self._yields_to():
            time.sleep(seconds / 2)

    def _take(self) -> list[Entry[TaskT, Result]] | None:
        """Wait for tasks and a free stream; return the next batch, or None once the lane closes or has failed."""
        with self.lock:
            while not (self.stopped or self._policy.may_take()):
                self._tasks_available.wait()
            if self.stopped:
                return None
            batch, dropped = self._policy.take()
            queued = self._start_jobs(batch)
            if self.queue.size and self._policy.may_take():
                self._tasks_available.notify()
        if dropped:
            self._observer.cancelled_in_queue.inc(dropped)
        for seconds in queued:
            self._observer.observe_queue(seconds)
        return batch

    def _start_jobs(self, batch: Sequence[Entry[TaskT, Result]]) -> list[float]:
        """Note that the jobs of a batch have started; return how long each that had not was queued, in seconds."""
        now, queued = time.perf_counter(), []
        for entry in batch:
            job = entry.job
            if not job.started:
                job.started, job.queue_s, job.batch_size = True, now - job.submitted, len(batch)
                queued.append(job.queue_s)
        return queued

    def _run(self, batch: Sequence[Entry[TaskT, Result]]) -> None:
        started, session = time.perf_counter(), self._sessions
        sizes = [entry.cost.tokens for entry in batch]
        try:
            fitted = self._backend.fit(sizes)
            results = self._execute(batch, fitted)
        except NonFiniteOutput as error:
            self._observer.inference_errors.inc()
            self._bisect(batch, error)
            return
        except Exception as error:  # noqa: BLE001  # a backend may raise anything
            self._observer.inference_errors.inc()
            self._recover(batch, error, session)
            return
        seconds = time.perf_counter() - started
        self._observer.observe_batch(sizes, fitted.tokens, seconds, self._backend.choice.threads_per_stream)
        self._call_soon(self._deliver, batch, results)

    def _execute(self, batch: Sequence[Entry[TaskT, Result]], fitted: FittedBatch | None = None) -> list[Result]:
        with self.watchdog.running(work_s(batch) * self._streams / self._admission.speed.value):
            results = self._backend.run([entry.task for entry in batch], fitted)
        if len(results) != len(batch):
            raise RuntimeError(f"backend returned {len(results)} results for {len(batch)} tasks")
        return results

    def _recover(self, batch: Sequence[Entry[TaskT, Result]], error: Exception, session: int) -> None:
        """Run a tiny valid batch to determine whether the session or an input caused the error.

        If it fails too, retry once on a fresh session; if that fails, the lane fails permanently. `session` is the
        number of the session that ran the batch: another worker may have replaced it meanwhile.
        """
        with self._recovery_lock:
            if self.failure is not None:
                self._reject(batch)
                return
            if session == self._sessions and not self._probe():
                try:
                    self._backend.reopen()
                    self._backend.probe()
                    self._sessions += 1
                except Exception as fatal:  # noqa: BLE001
                    self._stop_serving(batch, fatal)
                    return
            if session != self._sessions:
                try:
                    self._call_soon(self._deliver, batch, self._execute(batch))
                    return
                except Exception as again:  # noqa: BLE001
                    error = again
        self._bisect(batch, error)

    def _probe(self) -> bool:
        """Return whether the session still works."""
        try:
            self._backend.probe()
        except Exception:
            log.exception("inference session failed, reopening lane=%s", self._name)
            return False
        return True

    def _bisect(self, batch: Sequence[Entry[TaskT, Result]], error: Exception) -> None:
        """Run both halves of a failed batch, so that only the faulty task fails."""
        if len(batch) == 1:
            self._call_soon(batch[0].job.finish, error)
            return
        self._observer.batch_retries.inc(2)
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            if self.failure is None:
                self._run(half)
            else:
                self._reject(half)

    def _stop_serving(self, batch: Sequence[Entry[TaskT, Result]], error: BaseException) -> None:
        log.critical("lane failed model=%s lane=%s", self._observer.model, self._name, exc_info=error)
        with self.lock:
            self.failure, self.stopped = error, True
            left = self.queue.clear()
            self._tasks_available.notify_all()
            self._idle.notify_all()
        self._reject([*batch, *left])

    def _reject(self, entries: Sequence[Entry[TaskT, Result]]) -> None:
        for entry in entries:
            error = BackendFailed("Inference backend failed", "Retry on another instance.")
            self._call_soon(entry.job.finish, error)

    # On the event loop again.

    def _deliver(self, batch: Sequence[Entry[TaskT, Result]], results: Sequence[Result]) -> None:
        for entry, result in zip(batch, results, strict=True):
            if not entry.job.set_result(entry.index, result):
                self._observer.cancelled_in_batch.inc()
