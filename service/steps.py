"""Divides long work on the event loop into short steps, so that other tasks run in between."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeVar

STEP_S = 0.001

T = TypeVar("T")
U = TypeVar("U")


class Steps:
    """Lets other tasks run after every `STEP_S`. Nested loops share one object."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items. After an item, let other tasks run if the step has lasted for `STEP_S`."""
        for item in items:
            yield item
            if time.perf_counter() - self._started >= STEP_S:
                await asyncio.sleep(0)
                self._started = time.perf_counter()


async def convert(function: Callable[[T], U], items: Sequence[T]) -> list[U]:
    """Return `[function(item) for item in items]`, computed in steps."""
    if len(items) == 1:
        return [function(items[0])]
    return [function(item) async for item in Steps().each(items)]
