"""Receiving and parsing of request messages under limits of time and memory.

grpc receives a message as a whole, so its size is known only afterwards. What is being received is therefore limited by
the number of calls: each may hold a message of the maximum size.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from service.config import Settings
from service.errors import MalformedRequest, RequestTimeout
from service.limits import BodyBudget
from service.rpc.messages import Rejected

THREAD_FROM_BYTES = 64 * 1024
"""Larger messages are parsed in a thread: checking 8 MiB takes 14 ms."""
CONTENDED_TIMEOUT_S = 1.0
"""Time to receive a message while other calls wait for their turn, so that idle calls cannot hold them up."""

Parser = Callable[[bytes], Any]


class Receiver:
    """Receives the messages of all calls. `budget` counts received messages until their call ends."""

    def __init__(self, settings: Settings, budget: BodyBudget) -> None:
        self._budget = budget
        self._timeout_ms = settings.body_timeout_ms
        concurrent = max(1, settings.max_pending_request_bytes // settings.max_grpc_message_bytes)
        self._turns = asyncio.Semaphore(concurrent)
        self._receiving: set[asyncio.Timeout] = set()

    @contextlib.asynccontextmanager
    async def message(self, requests: AsyncIterator[bytes], parse: Parser) -> AsyncIterator[Any]:
        """Receive the only message of a call, and count its bytes until the block exits.

        Raises `RequestTimeout`, `Overloaded`, or `MalformedRequest` without a message.
        """
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                data = await self._receive(requests)
        except TimeoutError:
            raise RequestTimeout(
                "Message not received in time", "Retry the call.", maximum=self._timeout_ms, unit="ms"
            ) from None
        except StopAsyncIteration:
            raise MalformedRequest("Call without a message", "Send one.") from None
        self._budget.acquire(len(data))
        try:
            yield await _parse(data, parse)
        finally:
            self._budget.release(len(data))

    async def stream(self, requests: AsyncIterator[bytes], parse: Parser) -> AsyncGenerator[Any, None]:
        """Yield the messages of a stream, and count the bytes of each one until the next one is requested."""
        async for data in requests:
            self._budget.acquire(len(data))
            try:
                yield await _parse(data, parse)
            finally:
                self._budget.release(len(data))

    async def _receive(self, requests: AsyncIterator[bytes]) -> bytes:
        if self._turns.locked():
            soon = asyncio.get_running_loop().time() + CONTENDED_TIMEOUT_S
            for timeout in self._receiving:
                timeout.reschedule(min(soon, timeout.when() or soon))
        async with self._turns, asyncio.timeout(self._timeout_ms / 1000) as timeout:
            self._receiving.add(timeout)
            try:
                return await anext(requests)
            finally:
                self._receiving.discard(timeout)


async def _parse(data: bytes, parse: Parser) -> Any | Rejected:
    return parse(data) if len(data) < THREAD_FROM_BYTES else await asyncio.to_thread(parse, data)
