"""Lanes on a fake backend, and requests to them."""

import asyncio
import math
from collections.abc import Callable, Sequence

from service.engine.lane import Lane
from tests.service.engine.fake_backend import HANG_TIMEOUT_S, FakeBackend, FakeTask

FOREVER = math.inf
StartLane = Callable[..., Lane[FakeTask, int]]


def send(
    lane: Lane[FakeTask, int], values: Sequence[int], sizes: Sequence[int] | None = None, deadline: float = FOREVER
) -> "asyncio.Task[Sequence[int]]":
    tasks = [FakeTask(value, size) for value, size in zip(values, sizes or [1] * len(values), strict=True)]
    return asyncio.create_task(lane.wait(lane.submit(tasks, deadline)))


async def hold(lane: Lane[FakeTask, int], backend: FakeBackend, value: int = 1) -> "asyncio.Task[Sequence[int]]":
    """Occupy one stream with a task, and return once it is running."""
    backend.gate.clear()
    held = send(lane, [value])
    assert await asyncio.to_thread(backend.entered.acquire, True, HANG_TIMEOUT_S)
    return held
