"""Concurrent processing of a request stream: a bounded window, responses in request order, errors per request."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from service.errors import Internal, QueueFull, ServiceError
from service.memory import Reservation
from service.metrics import NO_MODEL
from service.request_log import RequestLog, RequestRecord, current_response, set_current, set_response
from service.rpc.interceptor import log_internal

WINDOW = 16
"""Maximum number of concurrent requests per stream."""

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


async def respond_in_order(
    requests: AsyncIterator[RequestT], respond: Callable[[RequestT], Awaitable[ResponseT]], window: int = WINDOW
) -> AsyncGenerator[ResponseT, None]:
    """Yield the responses in request order, with at most `window` requests in progress.

    An exception from `requests` is raised after the responses to all earlier requests. Closing the iterator cancels
    all remaining tasks.
    """
    slots = asyncio.Semaphore(window)
    tasks: asyncio.Queue[asyncio.Task[ResponseT] | None] = asyncio.Queue()  # bounded by the slots
    memory: deque[Reservation] = deque()  # the responses to requests in progress, in request order

    async def run(request: RequestT, reservation: Reservation | None) -> ResponseT:
        set_response(reservation)
        return await respond(request)

    async def read() -> None:
        try:
            async for request in requests:
                await slots.acquire()
                tasks.put_nowait(asyncio.create_task(run(request, _fork(memory))))
        finally:
            tasks.put_nowait(None)

    reader = asyncio.create_task(read())
    try:
        while (task := await tasks.get()) is not None:
            yield await task
            if memory:
                memory.popleft().close()
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
        for reservation in memory:
            reservation.close()


def _fork(memory: deque[Reservation]) -> Reservation | None:
    """Append a reservation for another response of the current call, and return it; None without a limit."""
    if (reservation := current_response()) is None:
        return None
    memory.append(reservation.fork())
    return memory[-1]


@dataclass(frozen=True)
class Failed:
    """The error of one request in a stream."""

    error: ServiceError
    request_id: str


class StreamWork:
    """One stream's requests in progress. If the queue is full, they wait for one another."""

    def __init__(self) -> None:
        self._running = 0
        self._ended = asyncio.Event()

    async def run(self, work: Callable[[], Awaitable[ResponseT]]) -> ResponseT:
        """Return the result of one request. While the queue is full, retry whenever another request of the stream ends.

        Raises `QueueFull` if no other request is in progress.
        """
        while True:
            self._running += 1
            waits = False
            try:
                return await work()
            except QueueFull as error:
                waits = type(error) is QueueFull and self._running > 1
                if not waits:
                    raise
            finally:
                self._running -= 1
                if not waits:
                    self._ended.set()
                    self._ended = asyncio.Event()
            await self._ended.wait()


async def run_in_stream(
    work: Callable[[], Awaitable[ResponseT]], call: RequestRecord, requests: RequestLog, stream: StreamWork
) -> ResponseT | Failed:
    """Return the result of one request of a stream, or its error. Each request must run in a separate task."""
    error: ServiceError
    record = RequestRecord(
        call.api, call.request_id, call.traceparent, endpoint=call.endpoint, peer=call.peer, caller=call.caller,
        response=current_response(),
    )  # fmt: skip
    set_current(record)
    try:
        return await stream.run(work)
    except ServiceError as raised:
        error = raised.with_traceback(None)
    except Exception as exception:  # noqa: BLE001  # log_internal logs it
        error = Internal()
        error.__cause__ = exception
    finally:
        call.tokens += record.tokens
        call.model = record.model if call.model == NO_MODEL else call.model
        record.release()
    log_internal(error, record)
    record.fail(error)
    requests.reject(record, error.code, error.http_status)
    return Failed(error, record.request_id)
