"""uvicorn's HTTP protocol with limits and with checks required by RFC 9112 that uvicorn and llhttp omit.

Responses are sent in request order: a rejection never precedes the response to an earlier request.
"""

import asyncio
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import unquote

import httptools
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.connections import UNKNOWN_IDLE_S, ConnectionTable, Network, read_timeout_s
from service.errors import HeadersTooLarge, MalformedRequest, Overloaded, ServiceError, Unsupported
from service.request_log import HEADER, TRACE_HEADER, TRACE_STATE_HEADER, request_id, traceparent
from service.rest.bodies import BODY, DRAINED, JSON, KNOWN, PAUSE_S, cancel_request
from service.rest.middleware import BY_NAME, LoadShedder, api_of, route_path
from service.rest.routes import native

KEEP_ALIVE_S = 75
HTTP2_PREFACE = b"PRI * HTTP/2.0"
MAX_HEADER_BYTES = 64 * 1024
MAX_BUFFERED_BYTES = 16 * 1024
MAX_UNSENT_BYTES = 16 * 1024
"""Writers wait while more than this number of bytes is unsent. Meanwhile, the response remains in memory."""
HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]*)(?::[0-9]{0,5})?")
"""A Host header: `uri-host [ ":" port ]` of RFC 9110, section 7.2."""
ABSOLUTE_FORM = re.compile(rb"[A-Za-z]+://(?:[^/?#]*@)?([^/?#]*)([^#]*)")
"""Host, path and query of an absolute URL (RFC 9112, section 3.2.2)."""
COMBINED_HEADERS = (TRACE_HEADER.encode(), TRACE_STATE_HEADER.encode())
"""Headers whose repeated values are combined (RFC 9110): two trace contexts are none, two trace states are one."""
SINGLE_HEADERS = {
    name.lower().encode(): name
    for name in (
        "Host",
        "Authorization",
        "X-API-Key",
        "API-Key",
        "Content-Type",
        "Content-Encoding",
        "X-Request-Timeout-Ms",
    )
}
"""Headers that must not repeat, because a proxy might read a different occurrence; with their usual spelling."""
CONTROL_CHARACTERS = bytes((*range(9), *range(10, 32), 127))
"""All except the tab."""
LINGER_S = 1.0
"""How long to keep reading from a rejected connection, in seconds. An immediate close could reset the connection before
the client reads the response.
"""

log = logging.getLogger("attendant.rest")


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of the connections of a server.

    `max_connections`: None means no limit. `per_address`: the limit for one address, except for `proxies`.
    `on_rejected`: called with the error, request ID and address of each request rejected before it reaches the
    application. `on_closed`: called with the reason and the address when the server closes a connection. `root_path`:
    the prefix of the paths behind a proxy.
    """

    header_timeout_s: float
    max_connections: int | None = None
    per_address: int | None = None
    proxies: tuple[Network, ...] = ()
    stall_timeout_s: float = 30.0
    on_rejected: Callable[[ServiceError, str, str], None] = lambda error, request_id, address: None
    on_closed: Callable[[str, str], None] = lambda reason, address: None
    root_path: str = ""


class HttpProtocol(HttpToolsProtocol):
    """One connection. Each server subclasses this to set `limits`, `load_shedder` and `table`.

    Near capacity, small requests are buffered until they are complete, within the header timeout.
    """

    limits: ConnectionLimits
    load_shedder: LoadShedder | None
    table: ConnectionTable["HttpProtocol"]
    url = b""
    _buffered: bytearray | None = None
    _header_timer: asyncio.TimerHandle | None = None
    cycle: "RequestCycle"
    _running: RequestResponseCycle | None = None
    _in_head = True
    _partial_bytes = 0
    _discards = False
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(MAX_UNSENT_BYTES, 0)
        self.timeout_keep_alive = int(UNKNOWN_IDLE_S)
        closed = self.table.add(self, self.address)
        if closed is not None:
            self.limits.on_closed("limit", closed.address)
        if closed is self:
            self.table.remove(self)
            self.connections.discard(self)
            self._reject_connection(Overloaded("Too many connections", "Retry later.", retry_after_s=1))
            return
        if closed is not None:
            self.table.remove(closed)
            closed.transport.abort()
        self._start_header_timer()

    @property
    def address(self) -> str:
        """The client's IP address."""
        return self.client[0] if self.client else ""

    @property
    def is_busy(self) -> bool:
        """True while a request is in progress or its response has not been sent."""
        return self.flow.write_paused or (self._running is not None and not self._running.response_complete)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_stall_timer()
        self.table.remove(self)
        super().connection_lost(exc)
        running = self._running
        if running is not None and not running.response_complete:  # uvicorn marks only the last pipelined request
            running.disconnected = True
            if not running.response_started:
                cancel_request(running.scope)

    def pause_writing(self) -> None:
        super().pause_writing()
        seconds = read_timeout_s(self.limits.stall_timeout_s, self.transport.get_write_buffer_size())
        self._stall_timer = self.loop.call_later(seconds, self._close_stalled)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stall_timer()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _close_stalled(self) -> None:
        self.limits.on_closed("stalled", self.address)
        self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._discards:
            return
        if self._in_head:
            self._partial_bytes += len(data)
        parts: list[bytes | memoryview] = [data]
        try:
            while parts and not self._discards:
                part = parts.pop()
                try:
                    self.parser.feed_data(part)
                except httptools.HttpParserUpgrade as upgrade:
                    parts.append(memoryview(part)[upgrade.args[0] :])
                    if (head := self._head_without_upgrade()) is not None:
                        parts.append(head)
        except httptools.HttpParserError:
            log.debug("invalid request", exc_info=True)
            malformed = MalformedRequest("Request is not valid HTTP", "Correct it.")
            if data.startswith(HTTP2_PREFACE):
                malformed = MalformedRequest("HTTP/2 is not supported on the REST port", "For gRPC, use the gRPC port.")
            self._fail(self._transfer_encoding_error() or malformed)
        else:
            if self._in_head or self._buffered is not None:
                self._limit_incomplete_request()

    def _limit_incomplete_request(self) -> None:
        """Limit the size of a head, and the time until a head or a buffered request is complete."""
        if self._in_head and not self._partial_bytes:
            self._partial_bytes = self._head_bytes()
        if self._in_head and self._partial_bytes > MAX_HEADER_BYTES:
            self._fail(_headers_too_large())
        elif self._header_timer is None and not self._discards:
            self._start_header_timer()

    def on_message_begin(self) -> None:
        # Stop the keep-alive timer here, not at the first byte as uvicorn does: otherwise, no timer would run after an
        # empty line before a request. `data_received` starts the header timer unless the head is complete.
        self._unset_keepalive_if_required()
        if self._header_timer is not None:
            self._stop_header_timer()
        self._in_head = True
        self._partial_bytes = 0  # the read that starts a head may also contain bytes of a body
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # otherwise, a trailer, which no route reads
            self.headers.append((name.lower(), value.strip(b" \t")))

    def _head_bytes(self) -> int:
        """Return the size of the part of the head that is complete."""
        return len(self.url) + 4 * len(self.headers) + len(b"".join(chain.from_iterable(self.headers)))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unset_keepalive_if_required()  # running if the previous response ended during this head
        if self.parser.should_upgrade():
            return
        if self.url[:1] != b"/":
            self._use_absolute_form()
        error = self._head_error()
        app = None if error is None and self.url != b"*" else self._special_app(error)
        shedder = self.load_shedder
        if app is None and shedder is not None and shedder.near_capacity and self._can_buffer():
            self._buffered = bytearray()
            return
        if self._header_timer is not None:
            self._stop_header_timer()
        self._start_cycle(app or self.app)

    def _use_absolute_form(self) -> None:
        """Replace an absolute URL by its path, and the Host header by its host."""
        if (match := ABSOLUTE_FORM.fullmatch(self.url)) is not None:
            host, target = match.groups()
            self.url = target if target.startswith(b"/") else b"/" + target
            self.headers[:] = [(name, host if name == b"host" else value) for name, value in self.headers]

    def _start_cycle(self, app: ASGIApp) -> None:
        """Start the request's task, or queue the request while an earlier one is in progress."""
        scope, url, version = self.scope, httptools.parse_url(self.url), self.parser.get_http_version()
        path = url.path.decode("ascii")
        scope["method"], scope["http_version"] = self.parser.get_method().decode("ascii"), version
        scope["path"], scope["raw_path"] = unquote(path) if "%" in path else path, url.path
        scope["query_string"] = url.query or b""
        scope[DRAINED] = self.flow.drain  # type: ignore[literal-required]
        previous = self.cycle
        self.cycle = RequestCycle(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            version != "1.0" and self.parser.should_keep_alive(),
            self.on_response_complete,
        )
        if previous is None or previous.response_complete:
            self._start_asgi_task(self.cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, app))  # type: ignore[arg-type]

    def on_response_complete(self) -> None:
        cycle = self._running
        if cycle is not None and cycle.scope.pop(KNOWN, False):  # type: ignore[misc]
            self._set_known()
        super().on_response_complete()
        if cycle is not None:
            self._pause(cycle.scope.pop(PAUSE_S, 0.0))  # type: ignore[misc]

    def _set_known(self) -> None:
        """Mark the connection as known, and extend its keep-alive timeout."""
        if self.timeout_keep_alive != KEEP_ALIVE_S:
            self.table.set_known(self)
            self.timeout_keep_alive = KEEP_ALIVE_S

    def _pause(self, seconds: float) -> None:
        """Delay reading the next request, unless it has already been read."""
        if seconds and not self.pipeline and not self.transport.is_closing():
            self.flow.pause_reading()
            self.loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        if self._buffered is None:
            super().on_body(body)
        else:
            self._buffered += body

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self._buffered is not None and self.load_shedder is not None:
            body, self._buffered = bytes(self._buffered), None
            self._stop_header_timer()
            method, headers = self.parser.get_method(), dict(self.headers)
            rejection = self.load_shedder.try_reject(method, self.url, headers, body, self.address)
            if rejection is not None:
                if rejection.is_known:
                    self._set_known()
                self._respond(rejection.response)
                self._pause(rejection.pause_s)
                return
            self._start_cycle(self.app)
            super().on_body(body)
        super().on_message_complete()
        if self.cycle is not None:
            self.cycle.scope[BODY] = self.cycle.body  # type: ignore[literal-required]
        if not self.pipeline:  # uvicorn pauses reading during a large body, but only reading detects a disconnect
            self.flow.resume_reading()

    def _special_app(self, error: ServiceError | None) -> ASGIApp:
        """Return the app that responds to a request head with this error, or to a request for path `*`."""
        if error is None:
            self.url = b"/"
            if self.parser.get_method() == b"OPTIONS":
                return Response(status_code=204, headers={"allow": "GET, HEAD, OPTIONS, POST"})
            error = MalformedRequest("Path * is supported for OPTIONS only", "Send a path.")
        if len(self.url) > MAX_HEADER_BYTES:
            self.url = b"/"  # uvicorn could not parse it
        return self._rejection(error, dict(self.headers))

    def _head_error(self) -> ServiceError | None:
        """Return the error in a request's headers, if any."""
        if self._head_bytes() > MAX_HEADER_BYTES:
            return _headers_too_large()
        values = dict(self.headers)
        self.expect_100_continue = values.get(b"expect", b"").lower() == b"100-continue"
        if len(values) < len(self.headers) and (error := self._combine_headers()) is not None:
            return error
        version, host = self.parser.get_http_version(), values.get(b"host")
        if version not in ("1.0", "1.1"):
            return MalformedRequest(f"HTTP/{version} is not supported", "Use HTTP/1.1.")
        if host is None and version == "1.1":
            return MalformedRequest("missing", "Send it.", field="Host")
        if host is not None and HOST.fullmatch(host) is None:
            return MalformedRequest("invalid", "Send a name or an address, and a port if needed.", field="Host")
        if b"transfer-encoding" in values and version == "1.0":
            return MalformedRequest("not supported in HTTP/1.0", "Use HTTP/1.1.", field="Transfer-Encoding")
        return self._transfer_encoding_error() if b"transfer-encoding" in values else None

    def _combine_headers(self) -> ServiceError | None:
        """Combine the values of repeated headers; return the error for one that must not repeat."""
        values: dict[bytes, bytes] = {}
        for place, (name, value) in enumerate(self.headers):
            if name in SINGLE_HEADERS and name in values:
                return MalformedRequest("repeated", "Send it once.", field=SINGLE_HEADERS[name])
            if name in COMBINED_HEADERS and name in values:
                self.headers[place] = name, b", ".join((values[name], value))  # of equal names, the last one counts
            values[name] = self.headers[place][1]
        return None

    def _transfer_encoding_error(self) -> ServiceError | None:
        encodings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if encodings in ([], [b"chunked"]):
            return None
        return Unsupported(
            "not supported", "Use chunked alone.", field="Transfer-Encoding", reason="UNSUPPORTED_TRANSFER_ENCODING"
        )

    def _can_buffer(self) -> bool:
        """Return whether the request is small, has a known length, and follows no pending request."""
        size = next((value for name, value in self.headers if name == b"content-length"), b"")
        waiting = self.cycle is not None and not self.cycle.response_complete
        waiting = waiting or self.flow.write_paused  # a rejection is written at once
        return size.isdigit() and int(size) <= MAX_BUFFERED_BYTES and not (waiting or self.expect_100_continue)

    def _head_without_upgrade(self) -> bytes | None:
        """Return the current request head without its Upgrade headers, which a server may ignore.

        A new parser must read it. None if the request was rejected.

        Works around https://github.com/Kludex/uvicorn/issues/2722: uvicorn drops the body. curl --http2 and the HTTP
        client of the JDK send `Upgrade: h2c` with the first request of a connection.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._fail(Unsupported("Method CONNECT is not supported", "Use another.", reason="UNSUPPORTED_METHOD"))
            return None
        lines = [b"%s %s HTTP/%s\r\n" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(option for option in options if option.lower() != b"upgrade")  # noqa: PLW2901
            if name != b"upgrade":
                lines.append(b"%s: %s\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return b"".join((*lines, b"\r\n"))

    def _respond(self, response: Response) -> None:
        """Write a response to a request for which uvicorn has started no cycle."""
        keep_alive = response.headers.get("connection") != "close" and self.parser.should_keep_alive()
        self.transport.write(self._serialize(response, keep_alive))
        if not keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _fail(self, error: ServiceError) -> None:
        """Reject an unparsable request and close the connection after earlier responses."""
        self._discards = True
        self._stop_header_timer()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and (self.pipeline or not cycle.more_body):
            cycle.keep_alive = False
            if cycle.more_body:
                self.transport.close()  # the last of several requests, whose body cannot be read
            return
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(self._serialize(self._rejection(error), keep_alive=False))
        self.transport.close()

    def _reject_connection(self, error: ServiceError) -> None:
        self._discards = True
        self.transport.write(self._serialize(self._rejection(error), keep_alive=False))
        if self.transport.can_write_eof():  # not with TLS
            self.transport.write_eof()
        self._header_timer = self.loop.call_later(LINGER_S, self.transport.close)

    def _rejection(self, error: ServiceError, head: Mapping[bytes, bytes] = {}) -> Response:
        """Return the response to a request that no route handles, in the error format of the path's API.

        `head`: the request's headers, if it has a complete head.
        """
        new_request_id = request_id(head.get(HEADER.encode(), b"").decode("latin-1"))
        method = self.parser.get_method().decode("latin-1")
        path = route_path(self.url, self.limits.root_path, method)
        api = BY_NAME.get(api_of(method, path), native.API)
        self.limits.on_rejected(error, new_request_id, self.address)
        headers = {"connection": "close", HEADER: new_request_id}
        if trace := traceparent(head.get(TRACE_HEADER.encode(), b"").decode("latin-1")):
            headers[TRACE_HEADER] = trace
        if error.retry_after_s is not None:
            headers["retry-after"] = str(math.ceil(error.retry_after_s))
        body, status = api.render_error(error, new_request_id)
        return Response(body, status, headers, JSON)

    def _serialize(self, response: Response, keep_alive: bool) -> bytes:
        lines = [STATUS_LINE[response.status_code]]
        lines += [b"%s: %s\r\n" % pair for pair in (*self.server_state.default_headers, *response.raw_headers)]
        if not keep_alive and "connection" not in response.headers:
            lines.append(b"connection: close\r\n")
        body = b"" if self.parser.get_method() == b"HEAD" else bytes(response.body)
        return b"".join((*lines, b"\r\n", body))

    def _start_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
        self._header_timer = self.loop.call_later(self.limits.header_timeout_s, self.transport.close)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class RequestCycle(RequestResponseCycle):
    """uvicorn's exchange of one request and its response, with a faster `send`.

    uvicorn looks at each header, and writes the head and the start of the body separately: each write is a system call,
    and the first one wakes the client needlessly.
    """

    _head: bytes | None = None

    async def send(self, message: ASGISendEvent) -> None:
        """Send the start of the response or a part of its body, once the client has read enough of the earlier parts.

        Raises `RuntimeError` if the body does not have the declared length, or a header contains control characters.
        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self.response_started, self.waiting_for_100_continue = True, False
            self._head = self._render_head(message["status"], [*self.default_headers, *message["headers"]])
            return
        assert message["type"] == "http.response.body"
        body, more_body = message.get("body", b""), message.get("more_body", False)
        if self.scope["method"] == "HEAD":
            body = b""
        elif self.chunked_encoding:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more_body else b"0\r\n\r\n")
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or not (more_body or self.expected_content_length == 0):
                raise RuntimeError("the body does not have the length in Content-Length")
        if not self.transport.is_closing():  # else the client has disconnected
            self._write(body)
        if not more_body:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def _write(self, body: bytes) -> None:
        head, self._head = self._head, None
        if head is not None:
            self.transport.writelines((head, body))
        elif body:
            self.transport.write(body)

    def _render_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the status line and the headers, whose names are in lower case."""
        values = dict(headers)
        length = values.get(b"content-length")
        self.chunked_encoding = length is None and self.scope["method"] != "HEAD" and status not in (204, 304)
        if self.chunked_encoding:
            headers.append((b"transfer-encoding", b"chunked"))
        self.expected_content_length = int(length or 0)
        if values.get(b"connection") == b"close":
            self.keep_alive = False
        elif not self.keep_alive:
            headers.append((b"connection", b"close"))
        head = b"%b%b\r\n" % (STATUS_LINE[status], b"".join([b"%b: %b\r\n" % header for header in headers]))
        if len(head) - len(head.translate(None, CONTROL_CHARACTERS)) != 2 * (len(headers) + 2):
            raise RuntimeError("a response header contains control characters")
        return head


def _headers_too_large() -> ServiceError:
    return HeadersTooLarge("Request headers too large", "Shorten them.", maximum=MAX_HEADER_BYTES, unit="bytes")
