"""A job: the tasks of one request in a lane, and the future of their results."""

import asyncio
import time
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.engine.backends.base import Task
from service.engine.fair_queue import Cost, WaitingRequest
from service.errors import response_too_late

TaskT = TypeVar("TaskT", bound=Task)
Result = TypeVar("Result")


class Job(Generic[Result]):
    """One request's tasks. Its future is done early if the client disconnected or a task failed."""

    __slots__ = ("deadline", "future", "pending", "queue_s", "results", "started", "submitted")

    def __init__(self, count: int, deadline: float, future: "asyncio.Future[list[Result]]") -> None:
        self.results: list[Result | None] = [None] * count
        self.pending = count
        self.deadline = deadline
        self.future = future
        self.started = False
        self.submitted = time.perf_counter()
        self.queue_s = 0.0

    def set_result(self, index: int, result: Result) -> bool:
        """Store the result of one task; return False if the job was done before, so that the result is unused."""
        self.results[index] = result
        self.pending -= 1
        if self.future.done():
            return False
        if not self.pending:
            self.future.set_result(self.results)  # type: ignore[arg-type]  # every task has a result
        return True

    def fail(self, error: Exception) -> None:
        """Fail the job unless it is done."""
        if not self.future.done():
            self.future.set_exception(error)

    def expire(self) -> None:
        """Fail the job because its deadline has passed."""
        if not self.future.done():
            self.future.set_exception(response_too_late())

    def is_stale(self) -> bool:
        return self.future.done() or self.deadline <= time.monotonic()


@dataclass(slots=True)  # frozen ones take three times as long to create
class Entry(Generic[TaskT, Result]):
    job: Job[Result]
    index: int
    task: TaskT
    cost: Cost


@dataclass(frozen=True, slots=True)
class Submitted(Generic[TaskT, Result]):
    """A submitted request: its job, and its queue entry (None without tasks)."""

    job: Job[Result]
    request: WaitingRequest[Entry[TaskT, Result]] | None
