"""Lanes: a queue, limits, workers and metrics for one kind of work.

Callers run on one event loop; workers are threads. A job is the tasks of one request. Metric labels are bound at
construction, because looking them up costs as much as counting.
"""

import asyncio
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Self, TypeVar

from attendant_client.types import Usage
from prometheus_client import Gauge

from model.artifact.tokenizer import TokenizedInput
from service.callers import ANONYMOUS, Caller
from service.engine.backends.base import Backend, FittedBatch, Task
from service.engine.scheduling import (
    INLINE_COST,
    Admission,
    Batch,
    BatchPolicy,
    Cost,
    FairQueue,
    HostQueue,
    Job,
)
from service.engine.tasks import EncodeTask, ExplainTask, TextVectors, ids_of, tokens_of, truncated_of
from service.errors import BackendFailed, Draining, Internal, NonFiniteOutput, QueueFull, ServiceError
from service.metrics import Metrics
from service.process import lower_thread_priority
from service.request_log import RequestRecord, current_caller, current_record

STALL_FACTOR = 20.0
"""A batch or preparation that takes this many times its expected time has stalled."""
MIN_STALL_S = 10.0
"""Minimum time until a batch counts as stalled, in seconds. The first batch of a session also opens the session."""


class Watchdog:
    """Tracks a lane's running batches, because a thread that is stuck in the runtime cannot report an error.

    `observe` accumulates the run time of a batch. A difference of two clock readings would count batches as stalled
    after the process was suspended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._remaining: dict[int, float] = {}

    def start(self, expected_s: float) -> None:
        """Watch the calling thread, which starts a batch with this expected duration."""
        with self._lock:
            self._remaining[threading.get_ident()] = max(MIN_STALL_S, STALL_FACTOR * expected_s)

    def stop(self) -> None:
        """Stop watching the calling thread."""
        with self._lock:
            del self._remaining[threading.get_ident()]

    def observe(self, seconds: float) -> None:
        """Add `seconds` to the run time of every running batch."""
        with self._lock:
            for thread in self._remaining:
                self._remaining[thread] -= seconds

    @property
    def stalled(self) -> int:
        """The number of batches that have stalled."""
        with self._lock:
            return sum(seconds < 0 for seconds in self._remaining.values())


class LaneObserver:
    """The counters, histograms and gauges of one lane of a model."""

    def __init__(self, metrics: Metrics, lane: str, model: str) -> None:
        self.metrics, self.lane, self.model = metrics, lane, model
        metrics.create_model(model)
        self.cancelled_in_queue = metrics.cancelled_inputs.labels("queue", model)
        self.cancelled_in_batch = metrics.cancelled_inputs.labels("batch", model)
        self._tokens = metrics.tokens.labels(model)
        self._inputs = metrics.request_inputs.labels(model)
        self._request_tokens = metrics.request_tokens.labels(model)
        self._truncated_inputs = metrics.truncated_inputs.labels(model)
        self.observe_tokenize = metrics.stage_seconds.labels("tokenize", lane, model).observe
        self.observe_queue = metrics.stage_seconds.labels("queue", lane, model).observe
        self.observe_postprocess = metrics.stage_seconds.labels("postprocess", lane, model).observe
        self.inference_errors = metrics.inference_errors.labels(lane, model)
        self.batch_retries = metrics.batch_retries.labels(lane, model)
        self.nonfinite_outputs = metrics.nonfinite_outputs.labels(lane, model)
        self._observe_inference = metrics.stage_seconds.labels("inference", lane, model).observe
        self._observe_size = metrics.batch_size.labels(lane, model).observe
        self._observe_tokens = metrics.batch_tokens.labels(lane, model).observe
        self._observe_padding = metrics.batch_padding.labels(lane, model).observe
        self._thread_seconds = metrics.inference_thread_seconds.labels(lane, model)

    def observe_request(self, inputs: int, tokens: int, truncated: int) -> None:
        """Count the inputs, tokens and truncated inputs of a request."""
        self._inputs.observe(inputs)
        self._request_tokens.observe(tokens)
        if truncated:
            self._truncated_inputs.inc(truncated)

    def watch(
        self, gauge: Gauge, lane: "Lane[Any, Any]", read: Callable[["Lane[Any, Any]"], float], deleted: float = 0.0
    ) -> None:
        """Read a gauge from the lane at each scrape, without keeping the lane or its backend alive.

        The gauge reads `deleted` once the lane is gone: a model of the same name without such a lane has replaced its
        model.
        """
        reference = weakref.ref(lane)

        def value() -> float:
            lane = reference()
            return deleted if lane is None else read(lane)

        gauge.labels(self.lane, self.model).set_function(value)

    def observe_batch(self, sizes: Sequence[int], padded_tokens: int, seconds: float, threads: int) -> None:
        """Count one batch of sequences of these sizes, run on `threads` threads."""
        tokens = sum(sizes)
        self._observe_inference(seconds)
        self._observe_size(len(sizes))
        self._observe_tokens(tokens)
        self._observe_padding(1 - tokens / padded_tokens)
        self._thread_seconds.inc(seconds * threads)
        self._tokens.inc(tokens)


class Timing(NamedTuple):
    """Duration of each stage of a request, in seconds; `run` includes `queue`, the wait for the first batch."""

    tokenize: float
    run: float
    postprocess: float
    queue: float = 0.0

    def describe(self) -> str:
        """Return the value of the Server-Timing header, in milliseconds; `run` excludes `queue`."""
        return (
            f"tokenize;dur={self.tokenize * 1e3:.2f}, queue;dur={self.queue * 1e3:.2f}, "
            f"run;dur={(self.run - self.queue) * 1e3:.2f}, postprocess;dur={self.postprocess * 1e3:.2f}"
        )


TaskT = TypeVar("TaskT", bound=Task)
ResultT = TypeVar("ResultT")

JOIN_TIMEOUT_S = 5.0

log = logging.getLogger("attendant.scheduler")


MAX_WAIT_S = 24 * 3600.0


class Reservation:
    """The reserved cost of a request in preparation. Released once the request is queued or has failed."""

    __slots__ = ("_caller", "_cost", "_lane")

    def __init__(self, lane: "Lane[Any, Any]", cost: Cost, caller: Caller) -> None:
        self._lane = lane
        self._cost = cost
        self._caller = caller

    def release(self) -> None:
        if self._caller.quota is not None:
            self._caller.quota.charge(-self._cost.tokens)
        self._lane.release(self._cost, self._caller)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        self.release()


class AdmittedRequest(Generic[TaskT, ResultT]):
    """An admitted request. Holds its reservation, if any, until its tasks are queued; records its stages in metrics.

    Use it as a context manager around the preparation of the tasks and `run`.
    """

    def __init__(
        self,
        lane: "Lane[TaskT, ResultT]",
        reservation: Reservation | None,
        deadline: float,
        caller: Caller,
        record: RequestRecord | None,
    ) -> None:
        self._lane = lane
        self._observer = lane.observer
        self._reservation = reservation
        self._deadline = deadline
        self._caller = caller
        self._record = record
        if record is not None:
            record.lane = lane.name
        self._started = self._tokenized = self._ran = time.perf_counter()
        self._first_job: Job[TaskT, ResultT] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._reservation is not None:
            self._release(self._reservation)

    def tokenized(self, inputs: Sequence[TokenizedInput]) -> Usage:
        """Count the inputs; return the numbers of tokens and of truncated inputs."""
        self._tokenized = time.perf_counter()
        tokens = sum(map(len, map(ids_of, inputs)))
        truncated = sum(map(truncated_of, inputs))
        self._observer.observe_request(len(inputs), tokens, truncated)
        if self._record is not None:
            self._record.inputs += len(inputs)
            self._record.tokens += tokens
        return Usage(tokens, truncated)

    async def run(self, tasks: Sequence[TaskT], *, more: bool = False) -> Sequence[ResultT]:
        """Queue tasks and return their results, as `Lane.wait` does.

        `more`: more tasks will follow, so keep the reservation.
        """
        job = self._lane.submit(tasks, self._deadline, self._caller)
        self._first_job = self._first_job or job
        if self._reservation is not None and not more:
            self._release(self._reservation)
        results = await self._lane.wait(job)
        self._ran = time.perf_counter()
        return results

    def finish(self) -> Timing:
        """Count the stages and return them."""
        job = self._first_job
        assert job is not None
        timing = Timing(
            self._tokenized - self._started, self._ran - self._tokenized, time.perf_counter() - self._ran, job.queue_s
        )
        if self._record is not None:
            self._record.batch_size = job.batch_size
            self._record.tokenize_started = self._started
            self._record.stages_s = (timing.tokenize, timing.queue, timing.run - timing.queue, timing.postprocess)
        self._observer.observe_tokenize(timing.tokenize)
        self._observer.observe_postprocess(timing.postprocess)
        return timing

    def _release(self, reservation: Reservation) -> None:
        reservation.release()
        self._reservation = None


class Lane(Generic[TaskT, ResultT]):
    """A queue and the worker threads that take tasks from it.

    Construct it on the event loop that submits to it; construction starts the threads. `yields_to` returns True while
    a higher-priority lane has queued tasks; the threads then pause after each batch for half its duration. `_lock`
    guards `queue`, `failure`, and `_stopped`, which is True after a failure or `close`.
    """

    def __init__(
        self,
        backend: Backend[TaskT, ResultT],
        admission: Admission,
        observer: LaneObserver,
        host: HostQueue,
        yields_to: Callable[[], bool] | None = None,
    ) -> None:
        self.name = observer.lane
        self.precision = backend.choice.precision
        self.admission = admission
        self.observer = observer
        self.watchdog = Watchdog()  # watches batches and preparations
        self.queue = FairQueue(admission.quantum, admission.backlog)
        self.failure: BaseException | None = None
        self._policy: BatchPolicy[TaskT, ResultT] = BatchPolicy(self.queue, backend, admission.quantum)
        self._backend = backend
        self._host = host
        self._streams = backend.choice.streams
        self._yields_to = yields_to
        self._loop = asyncio.get_running_loop()
        self._stopped = self._wake_scheduled = False
        self._lock = threading.Lock()
        self._tasks_available = threading.Condition(self._lock)
        self._drained = threading.Condition(self._lock)
        self._draining = False
        self._recovery_lock = threading.Lock()
        self._sessions = 1  # sessions opened so far
        self._reserved = 0
        metrics, watch = observer.metrics, observer.watch
        watch(metrics.queue_size, self, lambda lane: lane.queue.size)
        watch(metrics.queue_tokens, self, lambda lane: lane.queue.tokens)
        watch(metrics.queue_utilization, self, lambda lane: lane.utilization)
        watch(metrics.lane_up, self, lambda lane: lane.healthy, 1.0)  # a deleted lane has not failed
        watch(metrics.stalled_batches, self, lambda lane: lane.watchdog.stalled)
        self._threads = [
            threading.Thread(target=self._work, name=f"attendant-{self.name}-{number}", daemon=True)
            for number in range(backend.workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def near_capacity(self) -> bool:
        """True if the next request may be rejected."""
        admission = self.admission
        return admission.backlog.near or self._host.wait_s() > admission.near_wait_s

    @property
    def utilization(self) -> float:
        """The estimated wait of a small request, as a fraction of the limit."""
        return self.admission.utilization(self._host.wait_s())

    @property
    def has_queued_tasks(self) -> bool:
        """True while tasks are queued."""
        return self.queue.size > 0

    @property
    def healthy(self) -> bool:
        """False once the backend or a worker thread has failed. Every later request is then rejected."""
        return self.failure is None

    @property
    def stalled(self) -> bool:
        """True while a batch runs far beyond its expected time."""
        return self.watchdog.stalled > 0

    def share(self, models: int) -> None:
        """Set the number of models that share the machine, for run-time estimates."""
        with self._lock:
            self.admission.share(models)

    def reserve(
        self,
        sizes: Sequence[int],
        deadline: float = math.inf,
        preparation: int = 0,
        more_tokens: int = 0,
        caller: Caller | None = None,
    ) -> "Reservation":
        """Admit a request and reserve its estimated cost during preparation.

        `sizes` are the estimated numbers of tokens of its tasks, `preparation` the cost of their preparation, and
        `more_tokens` the tokens of other short tasks.
        `caller` defaults to the caller of the current request. Raises `QueueFull`, `QuotaExceeded` or `Unavailable` if
        it cannot be admitted now, and `DeadlineExceeded` after the deadline or if the request would run beyond it.
        """
        caller = caller or current_caller()
        return self._hold(self._check(sizes, deadline, preparation, more_tokens, caller), caller)

    def _check(self, sizes: Sequence[int], deadline: float, preparation: int, more_tokens: int, caller: Caller) -> Cost:
        """Return the estimated cost of a request that can be admitted; arguments and errors are as in `reserve`."""
        admission = self.admission
        cost = admission.cost(sizes, more_tokens)
        longest_us = admission.task_cost(max(sizes)).us if sizes else 0
        with self._lock:
            if self._stopped:
                raise self._stopped_error()
            if caller.quota is not None:
                caller.quota.check()
            blocked_s = self._policy.blocked_s(longest_us, self._streams / admission.speed.value)
            try:
                admission.check(cost, deadline, longest_us, blocked_s, caller, self._host.wait_s(preparation))
            except QueueFull as error:
                error.pause_s = admission.pause_s(caller)
                raise
            self._policy.expect(cost)
        return cost

    def _hold(self, cost: Cost, caller: Caller) -> Reservation:
        """Count a request in preparation until its reservation is released."""
        with self._lock:
            self.admission.backlog.count(cost, caller)
            self._reserved += 1
        if caller.quota is not None:
            caller.quota.charge(cost.tokens)
        return Reservation(self, cost, caller)

    def release(self, cost: Cost, caller: Caller) -> None:
        """Remove a request that was in preparation."""
        with self._lock:
            self.admission.backlog.count(cost, caller, -1)
            self._reserved -= 1
            self._notify_if_drained()

    def admit(
        self, sizes: Sequence[int], deadline: float, preparation: int, more_tokens: int = 0
    ) -> AdmittedRequest[TaskT, ResultT]:
        """Admit a request of the current caller; arguments and errors are as in `reserve`.

        A request whose preparation costs at most `INLINE_COST` needs no reservation: `Engine.run` prepares it on the
        event loop, so its tasks are queued before any other request is admitted.
        """
        record = current_record()
        caller = ANONYMOUS if record is None else record.caller
        cost = self._check(sizes, deadline, preparation, more_tokens, caller)
        is_inline = preparation <= INLINE_COST and not more_tokens
        return AdmittedRequest(self, None if is_inline else self._hold(cost, caller), deadline, caller, record)

    def submit(self, tasks: Sequence[TaskT], deadline: float, caller: Caller | None = None) -> Job[TaskT, ResultT]:
        """Queue the tasks of one request. Pass the job to `wait`.

        `deadline` is a time.monotonic() reading. `caller` defaults to the caller of the current request.
        """
        caller = caller or current_caller()
        costs = [*map(self.admission.task_cost, map(len, map(tokens_of, tasks)))]
        job: Job[TaskT, ResultT] = Job(tasks, costs, deadline, caller)
        if not tasks:
            return job
        if caller.quota is not None:
            caller.quota.charge(job.cost.tokens)
        with self._lock:
            if self._stopped:
                raise self._stopped_error()
            self.queue.add(job)
        if not self._wake_scheduled:
            self._wake_scheduled = True
            # Wake workers in the next loop iteration, so that requests from this iteration share a batch.
            self._loop.call_soon(self._wake, time.perf_counter())
        return job

    def _wake(self, scheduled: float) -> None:
        """Wake a worker after tasks were queued. A worker that takes a batch wakes the next one if more can start.

        `scheduled`: when this call was scheduled, a time.perf_counter() reading.
        """
        self._wake_scheduled = False
        self._host.turns.observe(time.perf_counter() - scheduled)
        with self._lock:
            self._tasks_available.notify()

    async def wait(self, job: Job[TaskT, ResultT]) -> Sequence[ResultT]:
        """Return the results of a job in the order of its tasks.

        If the caller is cancelled or the deadline passes, tasks that have not started are dropped. Every failure raises
        a `ServiceError`.
        """
        if not job.done:
            finished: asyncio.Future[None] = self._loop.create_future()
            job.on_done = lambda: None if finished.done() else finished.set_result(None)
            remaining = min(job.deadline - time.monotonic(), MAX_WAIT_S)
            expiry = self._loop.call_later(max(0.0, remaining), job.expire)  # five times as fast as asyncio.timeout
            try:
                await finished
            finally:
                expiry.cancel()
                if not job.done:
                    job.finish()
                if job.missing:
                    self._discard(job)
        error = job.error
        if error is None:
            return job.results
        if isinstance(error, NonFiniteOutput):
            self.observer.nonfinite_outputs.inc()
        if isinstance(error, ServiceError):
            raise error
        raise Internal from error

    def _discard(self, job: Job[TaskT, ResultT]) -> None:
        """Drop the tasks of a job that have not started."""
        with self._lock:
            dropped = self.queue.discard(job)
            self._notify_if_drained()
        if dropped:
            self.observer.cancelled_in_queue.inc(dropped)

    async def drain(self) -> None:
        """Wait until no request is in preparation, queued or running."""

        def wait_until_drained() -> None:
            with self._drained:
                self._drained.wait_for(lambda: not self._busy)

        self._draining = True
        while self._busy:  # again, because a request without a reservation may have been in preparation
            await asyncio.to_thread(wait_until_drained)

    @property
    def _busy(self) -> bool:
        return bool(self.queue.size or self._policy.running or self._reserved)

    def _notify_if_drained(self) -> None:
        """Wake `drain`, if it waits, after the lane may have become idle. Called under the lock."""
        if self._draining and not self._busy:
            self._drained.notify_all()

    async def close(self) -> None:
        """Reject new tasks, fail queued ones, and stop the workers after their current batches."""
        for job in self._stop(None):
            job.finish(Draining("Server shut down before this request ran", "Retry on another instance."))
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for thread in self._threads:
            await asyncio.to_thread(thread.join, max(0.0, deadline - time.monotonic()))

    def _stop(self, failure: BaseException | None) -> list[Job[TaskT, ResultT]]:
        """Stop the threads after their current batches; return the queued jobs, which will not run."""
        with self._lock:
            self.failure, self._stopped = self.failure or failure, True
            left = self.queue.clear()
            self._tasks_available.notify_all()
            self._notify_if_drained()
        return left

    def _stopped_error(self) -> Draining | BackendFailed:
        if self.failure is None:
            return Draining("Server is shutting down", "Retry on another instance.")
        return BackendFailed("Inference backend failed", "Retry on another instance.")

    def _call_soon(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing awaits the result
            self._loop.call_soon_threadsafe(callback, *arguments)

    # Runs on a worker thread.

    def _work(self) -> None:
        lower_thread_priority()
        batch: Batch[TaskT, ResultT] | None = None
        try:
            while (batch := self._take()) is not None:
                self._run_batch(batch)
        except BaseException as error:
            self._stop_serving(() if batch is None else batch.jobs, error)
            raise

    def _run_batch(self, batch: Batch[TaskT, ResultT]) -> None:
        started = time.perf_counter()
        try:
            if batch.tasks:
                self._run(batch)
        finally:
            seconds = time.perf_counter() - started
            with self._lock:
                self._policy.finish(batch)
                self.admission.observe(batch.work_s, saturated=self.queue.size > 0)
                if self.queue.size and self._policy.may_take():
                    self._tasks_available.notify()
                self._notify_if_drained()
        if batch.tasks and self._yields_to is not None and self._yields_to():
            time.sleep(seconds / 2)

    def _take(self) -> Batch[TaskT, ResultT] | None:
        """Wait for tasks and a free stream; return the next batch, or None once the lane closes or has failed."""
        with self._lock:
            while not (self._stopped or self._policy.may_take()):
                self._tasks_available.wait()
            if self._stopped:
                return None
            batch, dropped = self._policy.take()
            queued = self._start_jobs(batch)
            if self.queue.size and self._policy.may_take():
                self._tasks_available.notify()
        if dropped:
            self.observer.cancelled_in_queue.inc(dropped)
        for seconds in queued:
            self.observer.observe_queue(seconds)
        return batch

    def _start_jobs(self, batch: Batch[TaskT, ResultT]) -> list[float]:
        """Mark the jobs of a batch as started; return the queue time of each newly started job, in seconds."""
        now, queued = time.perf_counter(), []
        for job in batch.jobs:
            if not job.started:
                job.started, job.queue_s, job.batch_size = True, now - job.submitted, len(batch.tasks)
                queued.append(job.queue_s)
        return queued

    def _run(self, batch: Batch[TaskT, ResultT]) -> None:
        started, session = time.perf_counter(), self._sessions
        try:
            fitted = self._backend.fit(batch.sizes)
            results = self._execute(batch, fitted)
        except NonFiniteOutput as error:
            self.observer.inference_errors.inc()
            self._bisect(batch, error)
            return
        except Exception as error:  # noqa: BLE001  # a backend may raise anything
            self.observer.inference_errors.inc()
            self._recover(batch, error, session)
            return
        seconds = time.perf_counter() - started
        self.observer.observe_batch(batch.sizes, fitted.tokens, seconds, self._backend.choice.threads_per_stream)
        self._call_soon(self._deliver, batch, results)

    def _execute(self, batch: Batch[TaskT, ResultT], fitted: FittedBatch | None = None) -> Sequence[ResultT]:
        self.watchdog.start(batch.work_s * self._streams / self.admission.speed.value)
        try:
            results = self._backend.run(batch.tasks, fitted)
        finally:
            self.watchdog.stop()
        if len(results) != len(batch.tasks):
            raise RuntimeError(f"backend returned {len(results)} results for {len(batch.tasks)} tasks")
        return results

    def _recover(self, batch: Batch[TaskT, ResultT], error: Exception, session: int) -> None:
        """Run a tiny valid batch to determine whether the session or an input caused the error.

        If that batch fails too, retry once on a new session; if the retry fails, the lane fails permanently. `session`
        is the number of the session that ran the batch; another worker may have replaced it since.
        """
        with self._recovery_lock:
            if self.failure is not None:
                self._reject(batch.jobs)
                return
            if session == self._sessions and not self._probe():
                try:
                    self._backend.reopen()
                    self._backend.probe()
                    self._sessions += 1
                except Exception as fatal:  # noqa: BLE001
                    self._stop_serving(batch.jobs, fatal)
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
            log.exception("inference session failed, reopening lane=%s", self.name)
            return False
        return True

    def _bisect(self, batch: Batch[TaskT, ResultT], error: Exception) -> None:
        """Run both halves of a failed batch, so that only the faulty task fails."""
        if len(batch.tasks) == 1:
            self._call_soon(batch.runs[0][0].finish, error)
            return
        self.observer.batch_retries.inc(2)
        for half in batch.halves():
            if self.failure is None:
                self._run(half)
            else:
                self._reject(half.jobs)

    def _stop_serving(self, jobs: Iterable[Job[TaskT, ResultT]], error: BaseException) -> None:
        log.critical("lane failed model=%s lane=%s", self.observer.model, self.name, exc_info=error)
        self._reject({*jobs, *self._stop(error)})

    def _reject(self, jobs: Iterable[Job[TaskT, ResultT]]) -> None:
        for job in jobs:
            error = BackendFailed("Inference backend failed", "Retry on another instance.")
            self._call_soon(job.finish, error)

    # Runs on the event loop.

    def _deliver(self, batch: Batch[TaskT, ResultT], results: Sequence[ResultT]) -> None:
        for job, places, own in batch.by_run(results):
            if not job.add_results(places, own):
                self.observer.cancelled_in_batch.inc(len(places))


FastLane = Lane[EncodeTask, TextVectors]
ExplainLane = Lane[ExplainTask, Any]
