"""A job: the tasks of one request in a lane, and their results. It knows no event loop."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.engine.backends.base import Task
from service.engine.backlog import Cost
from service.engine.fair_queue import WaitingRequest
from service.errors import response_too_late

TaskT = TypeVar("TaskT", bound=Task)
Result = TypeVar("Result")


class Job(Generic[TaskT, Result]):
    """One request's tasks.

    The event loop changes it. Workers read `done`, `deadline` and `submitted`, and set `started`, `queue_s` and
    `batch_size` under their lock.

    Attributes:
        request: Its tasks in the queue; None if it has no tasks.
        results: One result per task, None until it is known.
        pending: The number of tasks without a result.
        done: True once all results are known, a task has failed, or nobody waits for the results any more.
        error: Why the job failed.
        on_done: Called when `done` becomes True.
        queue_s: The time until the first batch with one of the tasks started, in seconds.
        batch_size: The number of tasks in that batch.
    """

    __slots__ = (
        "batch_size", "deadline", "done", "error", "on_done", "pending", "queue_s", "request", "results", "started",
        "submitted",
    )  # fmt: skip

    def __init__(self, count: int, deadline: float) -> None:
        self.request: WaitingRequest[Entry[TaskT, Result]] | None = None
        self.results: list[Result | None] = [None] * count
        self.pending = count
        self.deadline = deadline
        self.done = not count
        self.error: Exception | None = None
        self.on_done: Callable[[], None] | None = None
        self.started = False
        self.submitted = time.perf_counter()
        self.queue_s = 0.0
        self.batch_size = 0

    def set_result(self, index: int, result: Result) -> bool:
        """Store the result of one task; return False if the job was done before, so that the result is unused."""
        if self.done:
            return False
        self.results[index] = result
        self.pending -= 1
        if not self.pending:
            self.finish()
        return True

    def finish(self, error: Exception | None = None) -> None:
        """End the job, with an error if it failed, unless it is done."""
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


@dataclass(slots=True)  # frozen ones take three times as long to create
class Entry(Generic[TaskT, Result]):
    """One task of a job in the queue; `index` is its place in the request."""

    job: Job[TaskT, Result]
    index: int
    task: TaskT
    cost: Cost
