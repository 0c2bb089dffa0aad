"""The HTTP server itself: slow clients are not waited for, and the app is told of no signal."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from service.config import Settings
from service.engine.loaded import LoadedModel
from service.rest.edge import make_app
from service.rest.server import Server
from tests.service.conftest import open_house

HELLO: ASGIApp = PlainTextResponse("hello")


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until it holds."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # the server sets no event for this
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(app: ASGIApp, header_timeout_s: float) -> AsyncIterator[tuple[asyncio.StreamReader,
                                                                               asyncio.StreamWriter]]:  # fmt: skip
    """A connection to a server of `app`."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = Server(app, header_timeout_s, 5)
    task = asyncio.create_task(server.serve([bound]))
    await server.started_event.wait()
    reader, writer = await asyncio.open_connection(*bound.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await task


async def test_it_answers() -> None:
    """With the app's words, and without naming the software."""
    async with serving(HELLO, 10) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"hello")
    assert b"server:" not in answer.lower()


async def test_large_headers_are_not_read_to_the_end() -> None:
    """431 and the connection is closed; what is large but within the limit is fine, and so is a large body."""
    async with serving(HELLO, 10) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nx-large: " + b"a" * 50_000 + b"\r\n\r\n")
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + b"b" * 200_000)
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x-many: b\r\n" * 9_000)
        assert (await reader.readuntil(b"\r\n")) == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


async def test_slow_headers_are_not_waited_for() -> None:
    """The connection is closed, whatever trickles in."""
    async with serving(HELLO, 0.05) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: ")
        assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_headers_in_time_end_the_wait() -> None:
    """The limit is for headers alone: the answer may take longer, and the connection lives on."""

    async def slow(scope: object, receive: object, send: object) -> None:
        await asyncio.wait_for(asyncio.Event().wait(), 0.2)

    async def app(scope: object, receive: object, send: object) -> None:
        try:
            await slow(scope, receive, send)
        except TimeoutError:
            await HELLO(scope, receive, send)  # type: ignore[arg-type]

    async with serving(app, 0.05) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"hello")


async def test_a_slow_body_is_not_waited_for(model: LoadedModel) -> None:
    """408 in our own words, and the connection is closed."""
    async with open_house(model) as house:
        app = make_app(house.host, Settings(body_timeout_ms=50), house.metrics, None)
        async with serving(app, 10) as (reader, writer):
            writer.write(b"POST /v1/encode HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                         b"Content-Length: 100\r\n\r\n{")  # fmt: skip
            answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"slow_client" in answer
    assert b"50 ms" in answer


async def test_a_caller_who_hangs_up_is_counted_as_gone(model: LoadedModel) -> None:
    """Its work is dropped, and nothing is left in flight."""
    async with open_house(model) as house:
        app = make_app(house.host, Settings(), house.metrics, None)
        async with serving(app, 10) as (_, writer):
            writer.write(b"POST /v1/encode HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                         b"Content-Length: 100\r\n\r\n{")  # fmt: skip
            await writer.drain()
            await until(lambda: house.sample("attendant_requests_in_flight") == 1)
            writer.close()
            await until(lambda: house.sample("attendant_requests_in_flight") == 0)
        assert house.sample("attendant_requests_total", door="rest", method="/v1/encode", code="499") == 1
