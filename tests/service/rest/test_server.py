"""The HTTP server itself: slow clients are not waited for, and the app is told of no signal."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import EncodeRequest, EncodeResponse
from service.rest.app import make_app
from service.rest.overload import LoadShedder
from service.rest.protocol import MAX_BUFFERED_BYTES, ConnectionLimits, HttpProtocol, Shedder
from service.rest.server import Server
from tests.service.conftest import fast_lane, garbage, open_house

HELLO: ASGIApp = PlainTextResponse("hello")


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until it holds."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # the server sets no event for this
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    header_timeout_s: float = 10,
    load_shedder: Shedder | None = None,
    max_connections: int | None = None,
    count_rejection: Callable[[str], None] = lambda label: None,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of `app`."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = Server(app, ConnectionLimits(header_timeout_s, max_connections, count_rejection), load_shedder)
    await server.start(bound)
    reader, writer = await asyncio.open_connection(*bound.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        await server.stop(5)


async def test_server_responds() -> None:
    """With the app's words, and without naming the software."""
    async with serving(HELLO, 10) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"hello")
    assert b"server:" not in answer.lower()


async def test_large_headers_are_rejected() -> None:
    """431 and the connection is closed; what is large but within the limit is fine, and so is a large body."""
    async with serving(HELLO, 10) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nx-large: " + b"a" * 50_000 + b"\r\n\r\n")
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + b"b" * 200_000)
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x-many: b\r\n" * 9_000)
        assert (await reader.readuntil(b"\r\n")) == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


async def test_slow_headers_close_the_connection() -> None:
    """The connection is closed, whatever trickles in."""
    async with serving(HELLO, 0.05) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: ")
        assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_header_timer_ends_with_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for headers alone: no timer runs while the app works."""
    protocols: list[HttpProtocol] = []
    connection_made = HttpProtocol.connection_made

    def note(self: HttpProtocol, transport: object) -> None:
        connection_made(self, transport)
        protocols.append(self)

    monkeypatch.setattr(HttpProtocol, "connection_made", note)
    timers: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        timers.append(protocols[0]._header_timer)
        await HELLO(scope, receive, send)

    async with serving(app) as (reader, writer):
        await until(lambda: len(protocols) == 1)
        assert protocols[0]._header_timer is not None
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"hello")
    assert timers == [None]


async def test_slow_body_is_rejected(model: LoadedModel) -> None:
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


async def test_disconnected_client_is_counted_as_499(model: LoadedModel) -> None:
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


async def test_work_is_cancelled_when_the_client_disconnects(model: LoadedModel) -> None:
    """However long it would have waited."""
    cancelled = asyncio.Event()

    async def never(request: EncodeRequest) -> EncodeResponse:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with open_house(model) as house:
        house.engine.encode = never  # type: ignore[method-assign]
        async with serving(make_app(house.host, Settings(), house.metrics, None), 10) as (_, writer):
            writer.write(post(b'{"inputs": "bank"}', b"Content-Type: application/json").replace(b"/x", b"/v1/encode"))
            await until(lambda: house.sample("attendant_requests_in_flight") == 1)
            writer.close()
            await asyncio.wait_for(cancelled.wait(), 20)
            await until(lambda: house.sample("attendant_requests_in_flight") == 0)
        assert house.sample("attendant_requests_total", door="rest", method="/v1/encode", code="499") == 1


class RejectingShedder:
    """Active; rejects bodies that contain `no`."""

    def __init__(self) -> None:
        self.active = True
        self.asked: list[tuple[bytes, bytes]] = []

    def try_reject(self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], body: bytes) -> Response | None:
        self.asked.append((path, body))
        return (
            PlainTextResponse("go away", 429, {"x-kind": headers.get(b"x-kind", b"").decode()})
            if b"no" in body
            else None
        )


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(b"echo " + await Request(scope, receive).body())(scope, receive, send)


def post(body: bytes, *headers: bytes) -> bytes:
    return b"".join(
        (b"POST /x HTTP/1.1\r\nHost: a\r\n", *(header + b"\r\n" for header in headers),
         b"Content-Length: %d\r\n\r\n" % len(body), body)
    )  # fmt: skip


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of the next answer."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).lower()
    size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head[9:12]), await reader.readexactly(size)


async def test_load_shedder_rejects_and_admits_requests() -> None:
    """On one connection, in any order; what is let in reaches the app whole."""
    shedder = RejectingShedder()
    async with serving(echo, 10, shedder) as (reader, writer):
        for body in (b"no", b"yes", b"no no", b"", b"yes yes"):
            writer.write(post(body))
            assert await answer_of(reader) == ((429, b"go away") if b"no" in body else (200, b"echo " + body))
        shedder.active = False
        writer.write(post(b"no"))
        assert await answer_of(reader) == (200, b"echo no")
    assert shedder.asked == [(b"/x", body) for body in (b"no", b"yes", b"no no", b"", b"yes yes")]


async def test_load_shedder_gets_request_that_arrives_in_pieces() -> None:
    """Byte by byte, and several at once; every answer in its place."""
    async with serving(echo, 10, RejectingShedder()) as (reader, writer):
        for byte in post(b"no, thank you", b"X-Kind: slow"):
            writer.write(bytes([byte]))
            await writer.drain()
        assert await answer_of(reader) == (429, b"go away")
        writer.write(post(b"no") + post(b"yes") + post(b"no 2") + post(b"yes 2"))
        # Behind one that the app has not answered yet nothing is held, or its refusal would overtake the answer.
        found = [await answer_of(reader) for _ in range(4)]
    assert found == [(429, b"go away"), (200, b"echo yes"), (200, b"echo no 2"), (200, b"echo yes 2")]


@pytest.mark.parametrize("head", [b"Expect: 100-continue", b"Transfer-Encoding: chunked"])
async def test_request_is_handled_as_usual_when_it_cannot_be_buffered(head: bytes) -> None:
    """A body that is only announced, or of unknown length."""
    shedder = RejectingShedder()
    async with serving(echo, 10, shedder) as (reader, writer):
        if head.startswith(b"Expect"):
            writer.write(post(b"no", head).removesuffix(b"no"))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            writer.write(b"no")
        else:
            writer.write(b"POST /x HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n\r\n2\r\nno\r\n0\r\n\r\n")
        assert await answer_of(reader) == (200, b"echo no")
        writer.write(post(b"n" * (MAX_BUFFERED_BYTES + 1)))
        assert (await answer_of(reader))[0] == 200
    assert shedder.asked == []


async def test_rejection_closes_the_connection_when_asked() -> None:
    """As the long way does."""
    async with serving(echo, 10, RejectingShedder()) as (reader, writer):
        writer.write(post(b"no", b"Connection: close"))
        answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(b"HTTP/1.1 429")
    assert b"\r\nconnection: close\r\n" in answer


async def test_buffered_request_ends_with_the_header_timeout() -> None:
    """A body that does not come while the gate is shut ends with the time for headers."""
    async with serving(echo, 0.05, RejectingShedder()) as (reader, writer):
        writer.write(post(b"no").removesuffix(b"o"))
        assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_requests_leave_no_garbage(model: LoadedModel) -> None:
    """Answered, invalid, refused by a full queue: every object goes at once, so collections may be rare."""
    async with open_house(model, max_queue_tokens=200) as house:
        app = make_app(house.host, house.settings, house.metrics, None)

        shedder = LoadShedder(house.host, house.metrics, None)

        async def ask_all() -> list[int]:
            async with serving(app, 10, shedder) as (reader, writer):
                kind = b"Content-Type: application/json"
                found = []
                for body in (b'{"inputs": "bank"}', b'{"inputs": ""}', b'{"inputs": 3}', b"{"):
                    writer.write(post(body, kind).replace(b"/x", b"/v1/encode"))
                    found.append((await answer_of(reader))[0])
                with fast_lane(house).reserve(200):
                    for path in (b"/v1/encode", b"/v1/tokenize"):
                        writer.write(post(b'{"inputs": "bank"}', kind).replace(b"/x", path))
                        found.append((await answer_of(reader))[0])
                return found

        await ask_all()
        with garbage() as left:
            assert await ask_all() == [200, 422, 422, 400, 429, 429]
    assert not {"RequestContext", "Request", "RequestResponseCycle", "frame", "traceback"} & set(left), left
