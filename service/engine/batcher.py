"""A queue whose workers never wait for company.

An idle worker takes the oldest item at once, and under load rows fill themselves. Generic: it knows that items have a
size and that some can run together, and nothing of texts or models. Workers are threads; callers live on one event
loop. Every item belongs to a job (one request's items), and a job has one future.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.errors import QueueFull, Unavailable
from service.metrics import Metrics

Item = TypeVar("Item")
Result = TypeVar("Result")

WINDOW = 64
"""How many waiting items a worker looks at for its next row: enough for rows of a few hundred tokens."""
CROWDED = 0.9


class _Job(Generic[Result]):
    """One request's items. Its future is done early when the caller left or an item failed; the rest is dropped."""

    __slots__ = ("deadline", "future", "missing", "results", "started", "submitted")

    def __init__(self, count: int, deadline: float, future: "asyncio.Future[list[Result]]") -> None:
        self.results: list[Result | None] = [None] * count
        self.missing = count
        self.deadline = deadline
        self.future = future
        self.started = False
        self.submitted = time.perf_counter()


@dataclass(slots=True)
class _Entry(Generic[Item, Result]):
    job: _Job[Result]
    index: int
    item: Item
    size: int


@dataclass(slots=True)
class _Row(Generic[Item, Result]):
    """What a worker took: its entries, none when all that waited were dropped, and the threads they are run by."""

    entries: list[_Entry[Item, Result]]
    threads: int


@dataclass(frozen=True)
class Plan(Generic[Item, Result]):
    """What a batcher is for.

    `run` runs a row of items. `choose` picks, from the sizes that wait and the number of workers that could start
    now (this one included), which share the next row. `row_length` says how long the row of some items is.
    `gives_way` says whether more urgent work waits elsewhere: then a worker rests after a row, half as long as it ran.
    `window` is how many waiting items a worker looks at for its next row.
    """

    lane: str
    run: Callable[[Sequence[Item]], list[Result]]
    choose: Callable[[Sequence[int], int], list[int]]
    row_length: Callable[[Sequence[Item]], int]
    workers: int
    max_queue_tokens: int
    run_wide: Callable[[Sequence[Item]], list[Result]]
    gives_way: Callable[[], bool] = lambda: False
    wide_threads: int = 1
    wide_tokens: int = 0
    window: int = WINDOW


class Batcher(Generic[Item, Result]):
    """Start it on the loop that will submit; `close` it there too."""

    def __init__(self, plan: Plan[Item, Result], metrics: Metrics) -> None:
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        lock = threading.Lock()
        self._filled = threading.Condition(lock)
        self._idle = threading.Condition(lock)
        self._queue: deque[_Entry[Item, Result]] = deque()
        self._queued_tokens = 0
        self._reserved_tokens = 0
        self._closing = False
        self._waking = False
        self._running = 0
        self._tokens_per_second = 0.0
        self._metrics = metrics
        lane = plan.lane
        metrics.create_lane(lane)
        self._observe_queue = metrics.stage_seconds.labels("queue", lane).observe
        self._observe_inference = metrics.stage_seconds.labels("inference", lane).observe
        self._observe_texts = metrics.row_texts.labels(lane).observe
        self._observe_tokens = metrics.row_tokens.labels(lane).observe
        self._observe_padding = metrics.row_padding.labels(lane).observe
        metrics.queue_texts.labels(lane).set_function(lambda: len(self._queue))
        metrics.queue_tokens.labels(lane).set_function(lambda: self._queued_tokens)
        metrics.queue_utilization.labels(lane).set_function(lambda: self.waiting_tokens / plan.max_queue_tokens)
        self._threads = [
            threading.Thread(target=self._work, name=f"attendant-{lane}-{number}", daemon=True)
            for number in range(plan.workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting_tokens(self) -> int:
        return self._queued_tokens + self._reserved_tokens

    @property
    def crowded(self) -> bool:
        """Whether so much waits that the next request may well be refused."""
        return self.waiting_tokens > CROWDED * self._plan.max_queue_tokens

    def check_room(self, tokens: int) -> None:
        """Raise `QueueFull` or `Unavailable` unless so many tokens may be queued now.

        A request larger than the whole queue is let in when nothing waits.
        """
        if self._closing:
            raise Unavailable("The server is stopping; send the request to another.", reason="draining")
        waiting = self.waiting_tokens
        if waiting and waiting + tokens > self._plan.max_queue_tokens:
            raise QueueFull(
                f"The queue holds {waiting} tokens of {self._plan.max_queue_tokens}, "
                f"and this request's {tokens} do not fit. Try again later.",
                retry_after_s=self._seconds_to_drain(),
            )

    @contextmanager
    def reserve(self, tokens: int) -> Iterator[None]:
        """Hold room in the queue while a request is made ready; raises what `check_room` does, at once."""
        with self._filled:
            self.check_room(tokens)
            self._reserved_tokens += tokens
        try:
            yield
        finally:
            with self._filled:
                self._reserved_tokens -= tokens
                self._tell_idle()

    def submit(self, items: Sequence[Item], sizes: Sequence[int], deadline: float) -> "asyncio.Future[list[Result]]":
        """Queue one request's items; the future has their results in order, or the first error.

        Cancelling the future, or `deadline` (a time.monotonic() reading) passing, drops what has not run yet.
        """
        job: _Job[Result] = _Job(len(items), deadline, self._loop.create_future())
        entries = [_Entry(job, index, item, size) for index, (item, size) in enumerate(zip(items, sizes, strict=True))]
        with self._filled:
            if self._closing:
                raise Unavailable("The server is stopping; send the request to another.", reason="draining")
            self._queue.extend(entries)
            self._queued_tokens += sum(sizes)
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self._wake)
        return job.future

    def _wake(self) -> None:
        """Wake the workers, one turn of the loop after what was queued: requests that came together run together."""
        self._waking = False
        with self._filled:
            self._filled.notify(len(self._queue))

    async def drain(self) -> None:
        """Return when nothing is being made ready, nothing waits and nothing runs."""
        await asyncio.to_thread(self._wait_until_idle)

    async def close(self) -> None:
        """Refuse what comes, fail what waits, and let the workers end with the rows they are running."""
        with self._filled:
            self._closing = True
            left, self._queue = self._queue, deque()
            self._queued_tokens = 0
            self._filled.notify_all()
            self._tell_idle()
        for entry in left:
            self._fail(entry.job, Unavailable("The server stopped before this ran.", reason="draining"))
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _wait_until_idle(self) -> None:
        with self._filled:
            self._idle.wait_for(self._is_idle)

    def _is_idle(self) -> bool:
        return not (self._queue or self._running or self._reserved_tokens)

    def _tell_idle(self) -> None:
        if self._is_idle():
            self._idle.notify_all()

    def _seconds_to_drain(self) -> float:
        return self.waiting_tokens / self._tokens_per_second if self._tokens_per_second else 1.0

    # On a worker's thread.

    def _work(self) -> None:
        while (row := self._take()) is not None:
            started = time.perf_counter()
            if row.entries:
                self._run(row)
            seconds = time.perf_counter() - started
            tokens = sum(entry.size for entry in row.entries)
            with self._filled:
                self._running -= row.threads
                if tokens:
                    rate = tokens / seconds * self._plan.workers / row.threads
                    self._tokens_per_second += (rate - self._tokens_per_second) * 0.1
                if row.threads > 1:
                    self._filled.notify(len(self._queue))
                self._tell_idle()
            if row.entries and self._plan.gives_way():
                time.sleep(seconds / 2)

    def _take(self) -> _Row[Item, Result] | None:
        """Wait for items and for a thread to run them, and take the next row; None when closing."""
        with self._filled:
            while not self._closing and not (self._queue and self._running < self._plan.workers):
                self._filled.wait()
            if not self._queue:
                return None
            window: list[_Entry[Item, Result]] = []
            now, dropped = time.monotonic(), 0
            while self._queue and len(window) < self._plan.window:
                entry = self._queue.popleft()
                if entry.job.future.done() or entry.job.deadline <= now:
                    self._queued_tokens -= entry.size
                    dropped += 1
                else:
                    window.append(entry)
            chosen, threads = self._share([entry.size for entry in window])
            self._running += threads
            self._queue.extendleft(reversed([entry for at, entry in enumerate(window) if at not in chosen]))
            row = _Row([window[at] for at in sorted(chosen)], threads)
            self._queued_tokens -= sum(entry.size for entry in row.entries)
        if dropped:
            self._metrics.cancelled.labels("queue").inc(dropped)
        return row

    def _share(self, sizes: list[int]) -> tuple[set[int], int]:
        """Which of the items in the window go into the next row, and how many threads run it."""
        if not sizes:
            return set(), 1
        free, wide = self._plan.workers - self._running, self._plan.wide_threads
        if 1 < wide <= free and not self._queue and sum(sizes) <= self._plan.wide_tokens:
            return set(range(len(sizes))), wide
        return set(self._plan.choose(sizes, free)), 1

    def _run(self, row: _Row[Item, Result]) -> None:
        started = time.perf_counter()
        for job in {entry.job for entry in row.entries}:
            if not job.started:
                job.started = True
                self._observe_queue(started - job.submitted)
        items = [entry.item for entry in row.entries]
        lane = self._plan.lane
        run = self._plan.run if row.threads == 1 else self._plan.run_wide
        try:
            results = run(items)
            if len(results) != len(items):
                raise RuntimeError(f"{len(items)} items gave {len(results)} results; this is a bug")
        except Exception as error:  # noqa: BLE001  # whatever it is belongs to the callers of this row
            self._metrics.inference_errors.labels(lane).inc()
            self._isolate(row, error)
            return
        seconds = time.perf_counter() - started
        self._observe_inference(seconds)
        self._metrics.busy_seconds.labels(lane).inc(seconds * row.threads)
        tokens = sum(entry.size for entry in row.entries)
        self._metrics.tokens.inc(tokens)
        self._observe_texts(len(items))
        self._observe_tokens(tokens)
        self._observe_padding(1 - tokens / self._plan.row_length(items))
        self._call_loop(self._deliver, row.entries, results)

    def _isolate(self, row: _Row[Item, Result], error: Exception) -> None:
        """A row failed: run its halves, so that only the item at fault fails and its mates get their answers."""
        if len(row.entries) > 1:
            self._metrics.row_retries.labels(self._plan.lane).inc(2)
            middle = len(row.entries) // 2
            for half in (row.entries[:middle], row.entries[middle:]):
                self._run(_Row(half, row.threads))
            return
        self._call_loop(self._fail, row.entries[0].job, error)

    def _call_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(callback, *arguments)

    # On the loop.

    def _deliver(self, row: list[_Entry[Item, Result]], results: list[Result]) -> None:
        for entry, result in zip(row, results, strict=True):
            job = entry.job
            job.results[entry.index] = result
            job.missing -= 1
            if job.future.done():
                self._metrics.cancelled.labels("batch").inc()
            elif not job.missing:
                job.future.set_result(job.results)  # type: ignore[arg-type]  # none is missing any more

    def _fail(self, job: _Job[Result], error: Exception) -> None:
        if not job.future.done():
            job.future.set_exception(error)
