"""The HTTP protocol: limits, request head checks, and response order."""

import asyncio
import json
from collections.abc import Mapping

import orjson
import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from service.auth import Access
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.errors import Overloaded
from service.memory import MemoryBudget
from service.metrics import Metrics
from service.request_log import RequestLog
from service.rest.app import make_admin_app, make_app
from service.rest.middleware import LoadShedder, Rejection
from service.rest.protocol import MAX_HEADER_BYTES, HttpProtocol
from tests.keys import make_keys
from tests.service.conftest import GOLDEN, fast_lane, open_harness
from tests.service.rest.test_server import echo, serving, until

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: localhost\r\n"


async def read_response(
    reader: asyncio.StreamReader, *, has_body: bool = True
) -> tuple[int, dict[bytes, bytes], bytes]:
    """Read the next response: status, headers and body."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    status, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert status.startswith(b"HTTP/1.1 ")  # otherwise the bytes before it belong to no response
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    body = await reader.readexactly(int(headers.get(b"content-length", b"0"))) if has_body else b""
    return int(status.split()[1]), headers, body


@pytest.mark.parametrize("cut", range(1, 260, 37))
async def test_upgrade_to_h2c_is_ignored_and_keeps_the_body(cut: int) -> None:
    """The requests arrive in two reads, with other requests before and after the upgrade."""
    plain = POST + b"Content-Length: 5\r\n\r\nplain"
    upgrade = POST + H2C + b"Content-Length: 7\r\n\r\nupgrade"
    chunked = POST + H2C + b"Transfer-Encoding: chunked\r\n\r\n3\r\nchu\r\n4\r\nnked\r\n0\r\n\r\n"
    requests = plain + upgrade + chunked + plain
    async with serving(echo) as (reader, writer):
        for part in (requests[:cut], requests[cut:]):
            writer.write(part)
            await writer.drain()
        bodies = [(await read_response(reader))[::2] for _ in range(4)]
    assert bodies == [(200, b"echo plain"), (200, b"echo upgrade"), (200, b"echo chunked"), (200, b"echo plain")]


async def test_pipelined_upgrades_are_all_answered() -> None:
    """All of them arrive in one read. Each one is parsed again without its Upgrade header, without recursion."""
    count = 3500
    async with serving(echo) as (reader, writer):
        writer.write((POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\na") * count)
        responses = [await read_response(reader) for _ in range(count)]
    assert [(status, body) for status, _, body in responses] == [(200, b"echo a")] * count


async def test_other_options_of_connection_survive_an_upgrade() -> None:
    async with serving(echo) as (reader, writer):
        writer.write(POST + b"Connection: close, Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\na")
        received = await asyncio.wait_for(reader.read(), 20)
    assert received.endswith(b"echo a")


async def test_connect_is_rejected() -> None:
    async with serving(echo) as (reader, writer):
        writer.write(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
        assert (await read_response(reader))[0] == 501


@pytest.mark.parametrize(
    "target", ["/v1/embeddings", "//v1/embeddings/", "/prefix/v1/embeddings?a=b", "http://localhost/v1/embeddings"]
)
async def test_invalid_head_gets_an_error_of_the_api_of_its_path(target: str) -> None:
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    head = b"API-Key: a\r\nAPI-Key: b\r\nX-Request-ID: one\r\ntraceparent: %s\r\nContent-Length: 0\r\n\r\n" % trace
    async with serving(echo, root_path="/prefix") as (reader, writer):
        writer.write(POST.replace(b"/x", target.encode()) + head)
        status, headers, body = await read_response(reader)
    assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_request_error")
    assert (headers[b"x-request-id"], headers[b"traceparent"]) == (b"one", trace)


async def test_two_trace_contexts_are_none() -> None:
    heads = b"".join(b"traceparent: 00-%s-%s-01\r\n" % (digit * 32, digit * 16) for digit in (b"1", b"2"))
    async with serving(echo) as (reader, writer):
        writer.write(POST + heads + b"API-Key: a\r\nAPI-Key: b\r\nContent-Length: 0\r\n\r\n")
        status, headers, _ = await read_response(reader)
    assert (status, b"traceparent" in headers) == (400, False)


HEADS = {
    "no Host": (b"GET /x HTTP/1.1\r\n\r\n", 400),
    "two Hosts": (b"GET /x HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
    "HTTP/1.0 without Host": (b"GET /x HTTP/1.0\r\n\r\n", 200),
    "two keys": (POST + b"Authorization: Bearer a\r\nauthorization: Bearer b\r\nContent-Length: 0\r\n\r\n", 400),
    "two content types": (POST + b"Content-Type: a/b\r\nContent-Type: a/c\r\nContent-Length: 0\r\n\r\n", 400),
    "HTTP/2.0": (b"GET /x HTTP/2.0\r\nHost: localhost\r\n\r\n", 400),
    "HTTP/1.0, chunked": (b"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "user in Host": (b"GET /x HTTP/1.1\r\nHost: localhost:80@evil.com\r\n\r\n", 400),
    "path in Host": (b"GET /x HTTP/1.1\r\nHost: localhost/evil.com\r\n\r\n", 400),
    "two ports in Host": (b"GET /x HTTP/1.1\r\nHost: localhost:80:80\r\n\r\n", 400),
    "IPv6 Host": (b"GET /x HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
    "gzip, chunked": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "gzip": (POST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
    "two codings": (POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    "Chunked": (POST + b"Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", 200),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 204),
    "GET *": (b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "large header": (b"GET /x HTTP/1.1\r\nHost: localhost\r\nx-a: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "large path": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    "header at the limit": (
        b"GET /x HTTP/1.1\r\nHost: a\r\nx-a: " + b"a" * (MAX_HEADER_BYTES - 9 - 9) + b"\r\n\r\n", 200,
    ),
    "header over the limit": (
        b"GET /x HTTP/1.1\r\nHost: a\r\nx-a: " + b"a" * (MAX_HEADER_BYTES - 9 - 8) + b"\r\n\r\n", 431,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
async def test_head_is_checked(name: str) -> None:
    """An error closes the connection."""
    request, status = HEADS[name]
    async with serving(echo) as (reader, writer):
        writer.write(request)
        received, headers, _ = await read_response(reader, has_body=status != 204)
        assert received == status
        if status >= 400:
            assert headers[b"connection"] == b"close"
            assert (await asyncio.wait_for(reader.read(), 20)) == b""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("http://uri.example", "uri.example / "),
        ("http://uri.example?a=b", "uri.example / a=b"),
        ("HTTPS://user@uri.example:8080/x/y?a=http://b", "uri.example:8080 /x/y a=http://b"),
        ("/x?a=http://b", "localhost /x a=http://b"),
    ],
)
async def test_host_of_an_absolute_url_replaces_the_header(target: str, expected: str) -> None:
    """RFC 9112, section 3.2.2."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen = b" ".join((dict(scope["headers"])[b"host"], scope["raw_path"], scope["query_string"]))
        await PlainTextResponse(seen)(scope, receive, send)

    async with serving(app) as (reader, writer):
        writer.write(POST.replace(b"/x", target.encode()) + b"Content-Length: 0\r\n\r\n")
        assert (await read_response(reader))[::2] == (200, expected.encode())


async def test_large_body_does_not_count_as_header_of_the_next_request() -> None:
    """The body and the start of the next header arrive in one read, and the rest of that header in several."""
    body = b"b" * 100_000
    requests = POST + b"Content-Length: 100000\r\n\r\n" + body + b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Le"
    async with serving(echo) as (reader, writer):
        writer.write(requests)
        await writer.drain()
        assert (await read_response(reader))[::2] == (200, b"echo " + body)
        writer.write(b"ngth: 1\r\n\r\na")
        assert (await read_response(reader))[::2] == (200, b"echo a")


async def test_endless_header_line_closes_the_connection() -> None:
    async with serving(echo) as (reader, writer):
        writer.write(b"GET /x HTTP/1.1\r\nHost: localhost\r\nx-a: ")
        with pytest.raises(ConnectionError):  # noqa: PT012  # the server may reset the connection at any write
            while True:
                writer.write(b"a" * 65_536)
                await writer.drain()
                if reader.at_eof():
                    raise ConnectionError
                await asyncio.sleep(0)


class PausedApp:
    """An app that responds once `finish` is set."""

    def __init__(self) -> None:
        self.started, self.finish = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await Request(scope, receive).body()
        self.started.set()
        await self.finish.wait()
        await PlainTextResponse(b"late " + body)(scope, receive, send)


@pytest.mark.parametrize(
    "second",
    [b"garbage\r\n\r\n", b"GET /x HTTP/1.1\r\n\r\n", b"GET /x HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * 400_000],
)
async def test_error_does_not_precede_earlier_response(monkeypatch: pytest.MonkeyPatch, second: bytes) -> None:
    """The first response must be complete. The server closes the connection after it or after the error."""
    app, first, size = PausedApp(), POST + b"Content-Length: 1\r\n\r\na", 0
    data_received = HttpProtocol.data_received

    def count(self: HttpProtocol, data: bytes) -> None:
        nonlocal size
        data_received(self, data)
        size += len(data)

    monkeypatch.setattr(HttpProtocol, "data_received", count)
    async with serving(app) as (reader, writer):
        writer.write(first)
        await asyncio.wait_for(app.started.wait(), 20)
        writer.write(second)
        await until(lambda: size >= len(first) + len(second))
        app.finish.set()
        assert (await read_response(reader))[::2] == (200, b"late a")


async def test_trailers_are_not_headers() -> None:
    """Otherwise a client could smuggle in headers that a proxy has not checked."""
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        seen.extend(name for name, _ in scope["headers"])
        await PlainTextResponse("ok")(scope, receive, send)

    async with serving(app) as (reader, writer):
        writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
        assert (await read_response(reader))[0] == 200
    assert b"authorization" not in seen


async def test_header_values_are_stripped() -> None:
    seen: dict[bytes, bytes] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.update(scope["headers"])
        await PlainTextResponse("ok")(scope, receive, send)

    async with serving(app) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Request-Timeout-Ms:\t 500 \t \r\n\r\n")
        assert (await read_response(reader))[0] == 200
    assert seen[b"x-request-timeout-ms"] == b"500"


class RejectAllShedder:
    """A load shedder that rejects all requests."""

    near_capacity = True

    def try_reject(
        self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], body: bytes, address: str = ""
    ) -> Rejection | None:
        return Rejection(PlainTextResponse("overloaded", 429))


async def test_rejection_of_head_has_no_body() -> None:
    """A body would be read as the start of the next response."""
    async with serving(echo, load_shedder=RejectAllShedder()) as (reader, writer):
        for _ in range(2):
            writer.write(b"HEAD /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            status, headers, _ = await read_response(reader, has_body=False)
            assert (status, headers[b"content-length"]) == (429, b"10")


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
async def test_head_and_options_are_answered_under_overload(model: LoadedModel, method: str) -> None:
    """The requests have a body. HEAD responses must not."""
    async with open_harness(model, max_queue_tokens=100) as harness:
        app = make_app(harness.lifecycle, harness.settings, harness.metrics)
        shedder = LoadShedder(harness.lifecycle, harness.requests, None)
        async with serving(app, load_shedder=shedder) as (reader, writer):
            with fast_lane(harness).reserve([100]):
                for path in ("/v1/encode", "/v1/embeddings", "/v1/model", "/v1/models/a", "/livez", "/", "/nothing",
                             "/page/page.js", "/docs", "/openapi.json"):  # fmt: skip
                    writer.write(
                        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode()
                    )
                    status, headers, _ = await read_response(reader, has_body=False)
                    if method == "OPTIONS" and path != "/nothing":
                        assert (status, b"OPTIONS" in headers[b"allow"]) == (204, True)
                    elif method == "OPTIONS":
                        await reader.readexactly(int(headers[b"content-length"]))
                    else:
                        assert status == {"/v1/encode": 405, "/v1/embeddings": 405, "/nothing": 404,
                                          "/v1/models/a": 404}.get(path, 200)  # fmt: skip


async def test_connections_over_the_limit_get_503_while_all_others_are_busy() -> None:
    """An idle one makes room for a new one."""
    rejections: list[tuple[str, str]] = []
    closed: list[str] = []

    async with serving(
        echo,
        max_connections=2,
        on_rejected=lambda error, _, address: rejections.append((error.label, address)),
        on_closed=lambda reason, _: closed.append(reason),
    ) as (reader, writer):
        address = writer.get_extra_info("peername")
        second = await asyncio.open_connection(*address)
        for stream in (writer, second[1]):
            stream.write(POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        for source in (reader, second[0]):
            assert (await source.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        third = await asyncio.open_connection(*address)
        third[1].write(POST + b"Content-Length: 1\r\n\r\na")
        status, headers, body = await read_response(third[0])
        assert (status, headers[b"retry-after"], headers[b"connection"]) == (503, b"1", b"close")
        assert b"Too many connections. Retry later." in body
        assert await asyncio.wait_for(third[0].read(), 20) == b""
        writer.write(b"ab")
        assert (await read_response(reader))[0] == 200
        fourth = await asyncio.open_connection(*address)
        fourth[1].write(POST + b"Content-Length: 1\r\n\r\na")
        assert (await read_response(fourth[0]))[0] == 200
        assert await asyncio.wait_for(reader.read(), 20) == b""
        second[1].write(b"ab")
        assert (await read_response(second[0]))[0] == 200
        for _, stream in (second, third, fourth):
            stream.close()
    assert rejections == [("overload", "127.0.0.1")]
    assert closed == ["limit", "limit"]


async def test_stalled_client_loses_its_connection_and_frees_the_memory(model: LoadedModel) -> None:
    """A response of 8 MB does not fit the buffers of the sockets."""
    closed: list[str] = []
    body = orjson.dumps({"inputs": ["bank " * 200] * 32, "outputs": ["tokens"]})
    head = (
        b"POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    async with open_harness(model) as harness:
        requests = harness.requests
        budget = requests.responses
        assert budget is not None
        app = make_app(harness.lifecycle, harness.settings, harness.metrics, requests=requests)
        async with serving(app, stall_timeout_s=-1.0, on_closed=lambda reason, _: closed.append(reason)) as (_, writer):
            writer.write(head % len(body) + body)
            await until(lambda: budget.used > 2**23)
            await until(lambda: budget.used == 0)
    assert closed == ["stalled"]


@pytest.mark.parametrize("path", ["/livez", "/v1/model", "/nothing"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
async def test_every_response_releases_its_memory(model: LoadedModel, method: str, path: str) -> None:
    async with open_harness(model) as harness:
        requests = harness.requests
        assert requests.responses is not None
        app = make_app(harness.lifecycle, harness.settings, harness.metrics, requests=requests)
        async with serving(app) as (reader, writer):
            for connection in ("keep-alive", "close"):
                writer.write(f"{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: {connection}\r\n\r\n".encode())
            await asyncio.wait_for(reader.read(), 20)
            await until(lambda: requests.responses is not None and requests.responses.used == 0)


async def test_connection_of_a_caller_is_kept_for_longer(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.rest.protocol.UNKNOWN_IDLE_S", 1)
    body = b'{"inputs": "bank"}'
    async with open_harness(model, make_keys("secret")) as harness:
        app = make_app(harness.lifecycle, harness.settings, harness.metrics, Access(make_keys("secret")))
        async with serving(app) as (known, writer):
            address, load = writer.get_extra_info("peername"), "/v2/repository/models/b/load"
            unknown, other = await asyncio.open_connection(*address)
            no_admin, third = await asyncio.open_connection(*address)
            for key, path, source, sink in (
                ("secret", "/v1/encode", known, writer),
                ("wrong", "/v1/encode", unknown, other),
                ("wrong", load, no_admin, third),
            ):
                sink.write(
                    POST.replace(b"/x", path.encode())
                    + f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n".encode()
                    + b"Content-Length: %d\r\n\r\n" % len(body)
                    + body
                )
                await read_response(source)
            assert await asyncio.wait_for(unknown.read(), 20) == b""
            assert await asyncio.wait_for(no_admin.read(), 20) == b""
            assert not known.at_eof()
            other.close()
            third.close()


async def test_rejected_connection_is_counted_as_a_request() -> None:
    metrics = Metrics(CollectorRegistry())
    RequestLog(metrics, "none").reject_connection(Overloaded("Too many connections"), "one", "127.0.0.1")
    labels = {"api": "rest", "endpoint": "_OTHER", "code": "503", "model": "none"}
    assert metrics.registry.get_sample_value("attendant_requests_total", labels) == 1


async def test_admin_port_has_no_connection_limit(model: LoadedModel) -> None:
    """Probes and metrics must work even when clients exhaust the connection limit."""
    async with (
        open_harness(model) as harness,
        serving(make_admin_app(harness.lifecycle, harness.settings, harness.metrics)) as (reader, writer),
    ):
        address = writer.get_extra_info("peername")
        others = [await asyncio.open_connection(*address) for _ in range(50)]
        for method, path in (("GET", "/livez"), ("HEAD", "/metrics"), ("OPTIONS", "/metrics"), ("GET", "/readyz")):
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            status, _, _ = await read_response(reader, has_body=method == "GET")
            assert status == (204 if method == "OPTIONS" else 200)
        for _, stream in others:
            stream.close()


async def test_body_memory_over_the_limit_gets_503(model: LoadedModel) -> None:
    """Another request's unfinished body uses up the limit, and is then accepted. Complete bodies do not wait for it."""
    body = b'{"inputs": "%s"}' % GOLDEN.encode()
    head = (
        b"POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    budget = MemoryBudget(len(body) + 10, "request bodies")
    async with open_harness(model) as harness:
        app = make_app(harness.lifecycle, Settings(), harness.metrics, budget=budget)
        async with serving(app) as (reader, writer):
            second = await asyncio.open_connection(*writer.get_extra_info("peername"))
            writer.write(head % len(body) + body[:-1])
            await until(lambda: budget.used > 0)
            second[1].write(head % len(body) + body)
            assert (await read_response(second[0]))[0] == 200
            second[1].write(head % len(body) + body[:-1])
            status, headers, text = await read_response(second[0])
            assert (status, headers[b"retry-after"]) == (503, b"1")
            assert b"Too much memory in use for request bodies (" in text
            writer.write(body[-1:])
            assert (await read_response(reader))[0] == 200
            second[1].close()


@pytest.mark.parametrize(
    ("headers", "parts"),
    [
        ({"x-a": "b\r\nx-c: d"}, [b"body"]),
        ({"x-a": "b\x00"}, [b"body"]),
        ({"content-length": "3"}, [b"body"]),
        ({"content-length": "5"}, [b"bo", b"dy"]),
    ],
)
async def test_faulty_response_ends_the_connection(headers: dict[str, str], parts: list[bytes]) -> None:
    """Otherwise, the client would read a header that the app did not set, or the rest of the body as a response."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raw = [(name.encode(), value.encode()) for name, value in ({"content-length": "4"} | headers).items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": part is not parts[-1]})

    async with serving(app) as (reader, writer):
        writer.write((POST + b"Content-Length: 0\r\n\r\n") * 2)
        received = await asyncio.wait_for(reader.read(), 20)
    assert b"x-c" not in received
    assert received.count(b"HTTP/1.1 ") <= 1
    assert not received.endswith(b"body")


@pytest.mark.parametrize("parts", [[b""], [b"all"], [b"a", b"", b"ll"], [b"all", b""]])
async def test_body_without_a_length_is_chunked(parts: list[bytes]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for place, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": place < len(parts)})

    async with serving(app) as (reader, writer):
        writer.write((POST + b"Content-Length: 0\r\n\r\n") + POST + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
        received = await asyncio.wait_for(reader.read(), 20)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"
    assert received.count(b"transfer-encoding: chunked\r\n") == 2
    assert received.count(b"\r\n\r\n" + chunks) == 2
    assert received.count(b"connection: close\r\n") == 1
