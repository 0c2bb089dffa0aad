"""A backend for tests of lanes whose tasks are numbers. A result is ten times its task's value."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from model.artifact.packing import BatchFill, BatchShape, TokenLimit
from service.callers import ANONYMOUS, Caller
from service.engine.backends.base import BackendChoice
from service.engine.scheduling import AnyJob, Cost, FairQueue, Job
from service.errors import NonFiniteOutput

HANG_TIMEOUT_S = 20  # limits how long a broken test hangs


def cost_of(tokens: int) -> Cost:
    """Return the cost of a sequence on a `FakeBackend`: one microsecond per token."""
    return Cost(tokens, tokens)


class ItemQueue(FairQueue):
    """A queue of tasks of any type."""

    def put(
        self, items: Sequence[Any], costs: Sequence[Cost], caller: Caller = ANONYMOUS, deadline: float = math.inf
    ) -> AnyJob:
        """Queue a job with these tasks."""
        job: AnyJob = Job(items, costs, deadline, caller)
        self.add(job)
        return job

    def take(
        self, fill: BatchFill, max_size: int, quantum: int | None = None, max_us: float = math.inf
    ) -> tuple[list[Any], int]:
        """Return the tasks of the next batch, and the number of stale tasks dropped."""
        runs, dropped = self.select_batch(fill, max_size, quantum, max_us)
        return [job.tasks[place] for job, places in runs for place in places], dropped


@dataclass(frozen=True)
class FakeTask:
    """A value below 0 raises NonFiniteOutput, and 13 raises ValueError."""

    value: int
    size: int = 1

    @property
    def tokens(self) -> Any:
        return range(self.size)


class FakeBackend:
    """Records its batches, waits while `gate` is closed, and can lose its session or its device."""

    length_buckets = (64,)
    gpu_memory_bytes = 0

    def __init__(
        self, *, streams: int = 1, max_batch_tokens: int = 8, max_batch_size: int = 64, token_seconds: float = 1e-6
    ) -> None:
        self.choice = BackendChoice("cpu", "float32", "fast", streams, 1, max_batch_tokens, "test")
        self.workers = streams + 1
        self.max_batch_tokens = max_batch_tokens
        self.max_batch_size = max_batch_size
        self.token_seconds = token_seconds
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.session_lost = self.device_lost = False
        self.probes = self.reopened = 0

    def full_batch_fill(self, max_seconds: float) -> BatchFill:
        return self.partial_fill(round(min(self.max_batch_tokens, max_seconds / self.token_seconds)))

    def partial_fill(self, tokens: int) -> BatchFill:
        return TokenLimit(tokens)

    def seconds(self, size: int) -> float:
        return size * self.token_seconds

    def fit(self, sizes: Sequence[int]) -> BatchShape:
        return BatchShape(1, max(64, sum(sizes)))

    def run(self, tasks: Sequence[FakeTask], fitted: object = None) -> list[int]:
        self.batches.append([task.value for task in tasks])
        self.entered.release()
        assert self.gate.wait(HANG_TIMEOUT_S)
        if self.session_lost or self.device_lost:
            raise RuntimeError("session lost")
        if any(task.value < 0 for task in tasks):
            raise NonFiniteOutput
        if any(task.value == 13 for task in tasks):
            raise ValueError("thirteen")
        return [task.value * 10 for task in tasks]

    def warm_up(self) -> None:
        pass

    def probe(self) -> None:
        self.probes += 1
        if self.session_lost or self.device_lost:
            raise RuntimeError("session lost")

    def reopen(self) -> None:
        self.reopened += 1
        self.session_lost = False
