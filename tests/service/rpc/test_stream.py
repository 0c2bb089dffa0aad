"""The window of concurrent requests in a stream: order, limit, and cleanup."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from service.rpc.stream import respond_in_order


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


def other_tasks() -> set["asyncio.Task[object]"]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_responses_are_in_order_and_limited_by_the_window() -> None:
    """The requests take different amounts of time."""
    running = peak = 0

    async def respond(number: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        for _ in range(number * 7 % 5):
            await asyncio.sleep(0)
        running -= 1
        return number

    assert [number async for number in respond_in_order(numbers(50), respond, 4)] == list(range(50))
    assert 1 < peak <= 4
    assert other_tasks() == set()


async def test_closing_a_full_window_leaves_no_task() -> None:
    """No task may be created for a request that waits for a slot."""
    started = 0
    full = asyncio.Event()

    async def respond(number: int) -> int:
        nonlocal started
        started += 1
        if started == 3:
            full.set()
        if number:
            await asyncio.Event().wait()
        return number

    responses = respond_in_order(numbers(10), respond, 2)
    assert await anext(responses) == 0
    waiting = asyncio.ensure_future(anext(responses))
    await asyncio.wait_for(full.wait(), 20)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert other_tasks() == set()
    assert started == 3
