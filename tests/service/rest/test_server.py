"""The HTTP server: timeouts for slow clients, disconnects, load shedding, and memory."""

import asyncio
import json
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from attendant_client.types import EncodeRequest, EncodeResponse
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.config import Settings
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.operations.inputs import Call
from service.operations.table import OPERATIONS
from service.rest.app import make_app
from service.rest.bodies import allow_cancellation
from service.rest.middleware import LoadShedder, Rejection
from service.rest.protocol import MAX_BUFFERED_BYTES, ConnectionLimits, HttpProtocol
from service.rest.server import Server
from tests.certificates import Identity
from tests.service.conftest import fast_lane, garbage, open_harness

HELLO: ASGIApp = PlainTextResponse("hello")


async def until(holds: Callable[[], bool]) -> None:
    """Run the event loop until the condition holds."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # the server sets no event for this
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    header_timeout_s: float = 10,
    load_shedder: Any = None,
    max_connections: int | None = None,
    **limits: Any,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve `app` and open a connection to it."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = Server(app, ConnectionLimits(header_timeout_s, max_connections, **limits), load_shedder)
    await server.start(bound)
    reader, writer = await asyncio.open_connection(*bound.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        await server.stop(5)


def record_protocols(monkeypatch: pytest.MonkeyPatch) -> list[HttpProtocol]:
    """Return a list to which every new connection's protocol is added."""
    protocols: list[HttpProtocol] = []
    connection_made = HttpProtocol.connection_made

    def record(self: HttpProtocol, transport: object) -> None:
        connection_made(self, transport)
        protocols.append(self)

    monkeypatch.setattr(HttpProtocol, "connection_made", record)
    return protocols


async def test_server_responds() -> None:
    """There must be no Server header."""
    async with serving(HELLO, 10) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        response = await reader.read()
    assert response.startswith(b"HTTP/1.1 200")
    assert response.endswith(b"hello")
    assert b"server:" not in response.lower()


async def test_slow_headers_close_the_connection() -> None:
    async with serving(HELLO, 0.05) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: ")
        assert await asyncio.wait_for(reader.read(), 20) == b""


def server_context() -> ssl.SSLContext:
    identity = Identity.make_ca("CA").issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(identity.pem + identity.key_pem)
        file.flush()
        context.load_cert_chain(file.name)
    return context


@asynccontextmanager
async def serving_tls(
    limits: ConnectionLimits, context: ssl.SSLContext | None = None, app: ASGIApp = HELLO
) -> AsyncIterator[tuple[str, int]]:
    """Serve `app` with TLS, and yield the address."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = Server(app, limits, tls=context or server_context())
    await server.start(bound)
    try:
        yield bound.getsockname()
    finally:
        await server.stop(5)


async def test_slow_handshake_closes_the_connection() -> None:
    async with serving_tls(ConnectionLimits(0.05)) as address:
        reader, writer = await asyncio.open_connection(*address)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


async def test_incomplete_handshakes_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop and asyncio report a connection only after its handshake, so these are found among the sockets."""
    monkeypatch.setattr("service.sockets.PERIOD_S", 0.05)
    client = ssl._create_unverified_context()
    closed: list[str] = []
    limits = ConnectionLimits(20, max_connections=8, on_closed=lambda reason, _: closed.append(reason))
    async with serving_tls(limits, app=echo) as address:
        idle = [await asyncio.open_connection(*address) for _ in range(8)]
        reader, writer = await asyncio.open_connection(*address, ssl=client)
        await until(lambda: len(closed) == 4)
        await asyncio.sleep(0.2)
        writer.write(post(b"a"))
        assert await read_response(reader) == (200, b"echo a")
        for _, stream in [*idle, (reader, writer)]:
            stream.close()
    assert closed == ["limit"] * 4


async def test_connections_over_the_limit_are_rejected_with_tls() -> None:
    client = ssl._create_unverified_context()
    async with serving_tls(ConnectionLimits(10, max_connections=1), app=echo) as address:
        _, first = await asyncio.open_connection(*address, ssl=client)
        first.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n")
        reader, second = await asyncio.open_connection(*address, ssl=client)
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 503 ")
        for writer in (first, second):
            writer.close()


async def test_header_timer_ends_with_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer may run while the app handles the request."""
    protocols = record_protocols(monkeypatch)
    timers: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        timers.append(protocols[0]._header_timer)
        await HELLO(scope, receive, send)

    async with serving(app) as (reader, writer):
        await until(lambda: len(protocols) == 1)
        assert protocols[0]._header_timer is not None
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"hello")
    assert timers == [None]


async def test_slow_body_is_rejected(model: LoadedModel) -> None:
    async with open_harness(model) as harness:
        app = make_app(harness.lifecycle, Settings(body_timeout_ms=50), harness.metrics)
        async with serving(app, 10) as (reader, writer):
            writer.write(b"POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         b"Content-Length: 100\r\n\r\n{")  # fmt: skip
            response = await asyncio.wait_for(reader.read(), 20)
    assert response.startswith(b"HTTP/1.1 408")
    assert b"REQUEST_TIMEOUT" in response
    assert b"50 ms" in response


async def test_disconnected_client_is_counted_as_499(model: LoadedModel) -> None:
    async with open_harness(model) as harness:
        app = make_app(harness.lifecycle, Settings(), harness.metrics)
        async with serving(app, 10) as (_, writer):
            writer.write(b"POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         b"Content-Length: 100\r\n\r\n{")  # fmt: skip
            await writer.drain()
            await until(lambda: harness.sample("attendant_requests_in_flight") == 1)
            writer.close()
            await until(lambda: harness.sample("attendant_requests_in_flight") == 0)
        assert harness.sample("attendant_requests_total", api="rest", endpoint="/v1/encode", code="499") == 1


@pytest.mark.parametrize(
    ("api", "path", "sent"), [("rest", "/v1/encode", "//v1/encode"), ("tei", "/embed", "/embed"), ("tei", "/", "/")]
)
@pytest.mark.parametrize("characters", [4, 300_000], ids=["small", "large"])
async def test_work_is_cancelled_when_the_client_disconnects(
    model: LoadedModel, api: str, path: str, sent: str, characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path with an extra slash, too, belongs to the route."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def never(engine: Engine, request: EncodeRequest, call: Call) -> EncodeResponse:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with open_harness(model) as harness:
        monkeypatch.setitem(OPERATIONS, "encode", replace(OPERATIONS["encode"], run=never))
        monkeypatch.setattr("service.tei.encode", never)
        async with serving(make_app(harness.lifecycle, Settings(), harness.metrics), 10) as (_, writer):
            request = post(b'{"inputs": "%s"}' % (b"b" * characters), b"Content-Type: application/json")
            writer.write(request.replace(b"/x", sent.encode()))
            await writer.drain()
            await asyncio.wait_for(started.wait(), 20)
            writer.close()
            await asyncio.wait_for(cancelled.wait(), 20)
            await until(lambda: harness.sample("attendant_requests_in_flight") == 0)
        assert harness.sample("attendant_requests_total", api=api, endpoint=path, code="499") == 1


@pytest.mark.parametrize("path", ["/v1/embeddings", "/openai/deployments/all-MiniLM-L6-v2/embeddings"])
async def test_request_that_does_not_end_before_the_server_stops_gets_an_error_of_its_api(
    model: LoadedModel, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI runs the routes with path parameters, and the middleware the others."""
    protocols, started = record_protocols(monkeypatch), asyncio.Event()

    async def never(engine: Engine, request: EncodeRequest, call: Call) -> EncodeResponse:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with open_harness(model) as harness:
        monkeypatch.setitem(OPERATIONS, "encode", replace(OPERATIONS["encode"], run=never))
        async with serving(make_app(harness.lifecycle, Settings(), harness.metrics)) as (reader, writer):
            writer.write(post(b'{"input": "a"}', b"Content-Type: application/json").replace(b"/x", path.encode()))
            await asyncio.wait_for(started.wait(), 20)
            for task in protocols[0].tasks:  # as uvicorn does after the drain timeout
                task.cancel()
            status, body = await read_response(reader)
        assert (status, json.loads(body)["error"]["code"]) == (503, "draining")
        assert harness.sample("attendant_rejected_requests_total", reason="draining", api="openai") == 1


async def test_running_request_is_cancelled_with_its_pipelined_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn marks only the last request of a connection as disconnected."""
    protocols, started, cancelled = record_protocols(monkeypatch), asyncio.Event(), asyncio.Event()

    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        allow_cancellation(scope)
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()

    async with serving(never) as (_, writer):
        writer.write(post(b"first") + post(b"second"))
        await asyncio.wait_for(started.wait(), 20)
        await until(lambda: len(protocols[0].pipeline) == 1)
        protocols[0].transport.abort()
        await asyncio.wait_for(cancelled.wait(), 20)


async def test_idle_connection_is_closed_after_an_empty_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.rest.protocol.UNKNOWN_IDLE_S", 1)
    async with serving(echo) as (reader, writer):
        writer.write(post(b"a"))
        assert await read_response(reader) == (200, b"echo a")
        writer.write(b"\r\n")
        assert await asyncio.wait_for(reader.read(), 20) == b""


class RejectingShedder:
    """Always near capacity; rejects bodies that contain `no`."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.near_capacity = True
        self.pause_s = pause_s
        self.requests: list[tuple[bytes, bytes]] = []

    def try_reject(
        self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], body: bytes, address: str = ""
    ) -> Rejection | None:
        self.requests.append((path, body))
        if b"no" not in body:
            return None
        response = PlainTextResponse("rejected", 429, {"x-kind": headers.get(b"x-kind", b"").decode()})
        return Rejection(response, self.pause_s)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(b"echo " + await Request(scope, receive).body())(scope, receive, send)


def post(body: bytes, *headers: bytes) -> bytes:
    return b"".join(
        (b"POST /x HTTP/1.1\r\nHost: localhost\r\n", *(header + b"\r\n" for header in headers),
         b"Content-Length: %d\r\n\r\n" % len(body), body)
    )  # fmt: skip


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read the next response: status and body."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).lower()
    size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head[9:12]), await reader.readexactly(size)


async def test_load_shedder_rejects_and_admits_requests() -> None:
    """All requests use one connection. Accepted requests must reach the app with their entire body."""
    shedder = RejectingShedder()
    async with serving(echo, 10, shedder) as (reader, writer):
        for body in (b"no", b"yes", b"no no", b"", b"yes yes"):
            writer.write(post(body))
            assert await read_response(reader) == ((429, b"rejected") if b"no" in body else (200, b"echo " + body))
        shedder.near_capacity = False
        writer.write(post(b"no"))
        assert await read_response(reader) == (200, b"echo no")
    assert shedder.requests == [(b"/x", body) for body in (b"no", b"yes", b"no no", b"", b"yes yes")]


async def test_load_shedder_handles_partial_and_pipelined_requests() -> None:
    """Responses must be in request order."""
    async with serving(echo, 10, RejectingShedder()) as (reader, writer):
        for byte in post(b"no, thank you", b"X-Kind: slow"):
            writer.write(bytes([byte]))
            await writer.drain()
        assert await read_response(reader) == (429, b"rejected")
        writer.write(post(b"no") + post(b"yes") + post(b"no 2") + post(b"yes 2"))
        # The shedder skips a request behind an unanswered one, because its rejection would be sent before the earlier
        # response.
        responses = [await read_response(reader) for _ in range(4)]
    assert responses == [(429, b"rejected"), (200, b"echo yes"), (200, b"echo no 2"), (200, b"echo yes 2")]


@pytest.mark.parametrize("head", [b"Expect: 100-continue", b"Transfer-Encoding: chunked"])
async def test_load_shedder_skips_requests_that_cannot_be_buffered(head: bytes) -> None:
    """Their body is sent after 100 Continue, has no length, or is too large."""
    shedder = RejectingShedder()
    async with serving(echo, 10, shedder) as (reader, writer):
        if head.startswith(b"Expect"):
            writer.write(post(b"no", head).removesuffix(b"no"))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            writer.write(b"no")
        else:
            writer.write(b"POST /x HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n2\r\nno\r\n0\r\n\r\n")
        assert await read_response(reader) == (200, b"echo no")
        writer.write(post(b"n" * (MAX_BUFFERED_BYTES + 1)))
        assert (await read_response(reader))[0] == 200
    assert shedder.requests == []


async def test_rejection_closes_the_connection_when_requested() -> None:
    async with serving(echo, 10, RejectingShedder()) as (reader, writer):
        writer.write(post(b"no", b"Connection: close"))
        response = await asyncio.wait_for(reader.read(), 20)
    assert response.startswith(b"HTTP/1.1 429")
    assert b"\r\nconnection: close\r\n" in response


async def test_pause_delays_the_next_request_of_the_connection() -> None:
    shedder = RejectingShedder(pause_s=0.4)
    async with serving(echo, 10, shedder) as (reader, writer):
        writer.write(post(b"no"))
        assert (await read_response(reader))[0] == 429
        started = time.monotonic()
        writer.write(post(b"yes"))
        assert await read_response(reader) == (200, b"echo yes")
        assert 0.3 < time.monotonic() - started < 5
        started = time.monotonic()
        writer.write(post(b"yes"))
        assert await read_response(reader) == (200, b"echo yes")
        assert time.monotonic() - started < 0.3


async def test_buffered_request_ends_with_the_header_timeout() -> None:
    """Near capacity, the header timeout includes the body."""
    async with serving(echo, 0.05, RejectingShedder()) as (reader, writer):
        writer.write(post(b"no").removesuffix(b"o"))
        assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_requests_create_no_reference_cycles(model: LoadedModel) -> None:
    """Objects must be freed without the garbage collector, which rarely runs. Some requests fail."""
    async with open_harness(model, max_queue_tokens=200) as harness:
        app = make_app(harness.lifecycle, harness.settings, harness.metrics)

        shedder = LoadShedder(harness.lifecycle, harness.requests, None)

        async def send_all() -> list[int]:
            async with serving(app, 10, shedder) as (reader, writer):
                kind = b"Content-Type: application/json"
                statuses = []
                for body in (b'{"inputs": "bank"}', b'{"inputs": ""}', b'{"inputs": 3}', b"{"):
                    writer.write(post(body, kind).replace(b"/x", b"/v1/encode"))
                    statuses.append((await read_response(reader))[0])
                with fast_lane(harness).reserve([200]):
                    for path in (b"/v1/encode", b"/v1/tokenize"):
                        writer.write(post(b'{"inputs": "bank"}', kind).replace(b"/x", path))
                        statuses.append((await read_response(reader))[0])
                return statuses

        await send_all()
        with garbage() as uncollected:
            assert await send_all() == [200, 422, 422, 400, 429, 200]
    assert not {"RequestRecord", "Request", "RequestCycle", "frame", "traceback"} & set(uncollected), uncollected


async def test_kept_connection_is_served_and_closed_during_the_drain_delay(model: LoadedModel) -> None:
    """When the server stops, later requests on the connection would be lost."""
    async with open_harness(model) as harness:
        app = make_app(harness.lifecycle, harness.settings, harness.metrics)
        request = b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with serving(app) as (reader, writer):
            for draining in (False, True):
                if draining:
                    harness.lifecycle.start_draining()
                writer.write(request)
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
                assert head.startswith(b"HTTP/1.1 200")
                assert (b"connection: close" in head) == draining
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
            assert await asyncio.wait_for(reader.read(), 20) == b""
