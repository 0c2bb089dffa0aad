"""Concurrent processing of a request stream: bounded window, responses in request order."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

Request = TypeVar("Request")
Response = TypeVar("Response")


async def respond_in_order(
    requests: AsyncIterator[Request], respond: Callable[[Request], Awaitable[Response]], window: int
) -> AsyncGenerator[Response, None]:
    """Yield the responses in request order, with at most `window` requests in progress.

    An exception from `requests` is raised after the responses to all earlier requests. Closing the iterator cancels
    all remaining tasks.
    """
    slots = asyncio.Semaphore(window)
    tasks: asyncio.Queue[asyncio.Task[Response] | None] = asyncio.Queue()  # bounded by the slots

    async def run(request: Request) -> Response:
        return await respond(request)

    async def read() -> None:
        try:
            async for request in requests:
                await slots.acquire()
                tasks.put_nowait(asyncio.create_task(run(request)))
        finally:
            tasks.put_nowait(None)

    reader = asyncio.create_task(read())
    try:
        while (task := await tasks.get()) is not None:
            yield await task
            slots.release()
        await reader
    finally:
        left = [reader]
        while not tasks.empty():
            if (task := tasks.get_nowait()) is not None:
                left.append(task)  # type: ignore[arg-type]  # tasks of any result
        for unfinished in left:
            unfinished.cancel()
        await asyncio.gather(*left, return_exceptions=True)
