"""uvicorn's HTTP protocol with limits and with checks required by RFC 9112 that uvicorn and llhttp omit.

Responses are sent in request order: a rejection never precedes the response to an earlier request.
"""

import asyncio
import logging
import math
import re
from collections.abc import Mapping
from typing import Any

import httptools
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.connections import UNKNOWN_IDLE_S, ConnectionTable, read_timeout_s
from service.errors import HeadersTooLarge, MalformedRequest, Overloaded, ServiceError, Unsupported
from service.request_log import HEADER, TRACE_HEADER, TRACE_STATE_HEADER, request_id, traceparent
from service.rest.apis import BY_NAME, api_of, route_path
from service.rest.bodies import JSON
from service.rest.connections import ConnectionLimits, Shedder
from service.rest.requests import BODY_COMPLETE, DRAINED, KNOWN, PAUSE_S, cancel_request
from service.rest.routes import native

KEEP_ALIVE_S = 75
HTTP2_PREFACE = b"PRI * HTTP/2.0"
MAX_HEADER_BYTES = 64 * 1024
MAX_BUFFERED_BYTES = 16 * 1024
MAX_UNSENT_BYTES = 16 * 1024
"""Writers wait while more than this number of bytes is unsent. Meanwhile, the response remains in memory."""
HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]*)(?::[0-9]{0,5})?")
"""A Host header: `uri-host [ ":" port ]` of RFC 9110, section 7.2."""
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
LINGER_S = 1.0
"""How long to keep reading from a rejected connection, in seconds. An immediate close could reset the connection before
the client reads the response.
"""

log = logging.getLogger("attendant.rest")


class HttpProtocol(HttpToolsProtocol):
    """One connection. Each server subclasses this to set `limits`, `load_shedder` and `table`.

    Near capacity, small requests are buffered until they are complete, within the header timeout.
    """

    limits: ConnectionLimits
    load_shedder: Shedder
    table: ConnectionTable["HttpProtocol"]
    url = b""
    _buffered: bytearray | None = None
    _header_timer: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None
    _in_head = True
    _head_bytes = 0
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
        cycle.scope[DRAINED] = self.flow.drain  # type: ignore[literal-required]
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._discards:
            return
        self._partial_bytes += len(data) if self._in_head else 0
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
            if self._in_head and max(self._partial_bytes, self._head_bytes) > MAX_HEADER_BYTES:
                self._fail(_headers_too_large())
            elif (self._in_head or self._buffered is not None) and self._header_timer is None and not self._discards:
                self._start_header_timer()

    def on_message_begin(self) -> None:
        # Stop the keep-alive timer here, not at the first byte as uvicorn does: otherwise, no timer would run after an
        # empty line before a request. `data_received` starts the header timer unless the head is complete.
        self._unset_keepalive_if_required()
        if self._header_timer is not None:
            self._stop_header_timer()
        self._in_head, self._head_bytes = True, 0
        # The read that starts a head may also contain bytes of a body, so only later reads count in full.
        self._partial_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # trailers, which no route reads
        self._head_bytes += len(name) + len(value) + 4
        super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unset_keepalive_if_required()  # running if the previous response ended during this head
        if self.parser.should_upgrade():
            return
        error = self._head_error()
        app = None if error is None and self.url != b"*" else self._special_app(error)
        if app is None and self.load_shedder.near_capacity and self._can_buffer():
            self._buffered = bytearray()
            return
        if self._header_timer is not None:
            self._stop_header_timer()
        usual_app = self.app
        self.app = app or usual_app
        self._start_cycle()
        self.app = usual_app

    def _start_cycle(self) -> None:
        """Start the request's task. uvicorn's cycle reads the body and writes the response."""
        super().on_headers_complete()
        if self.scope["method"] != "HEAD" and not self.expect_100_continue:  # otherwise, the first write is complete
            self.cycle.transport = ResponseTransport(self.transport)  # type: ignore[assignment]

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
        if self._buffered is not None:
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
            self._start_cycle()
            super().on_body(body)
        super().on_message_complete()
        if self.cycle is not None:
            self.cycle.scope[BODY_COMPLETE] = True  # type: ignore[literal-required]
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
        if self._head_bytes > MAX_HEADER_BYTES:
            return _headers_too_large()
        values: dict[bytes, bytes] = {}
        for place, (name, value) in enumerate(self.headers):
            if name in SINGLE_HEADERS and name in values:
                return MalformedRequest("repeated", "Send it once.", field=SINGLE_HEADERS[name])
            if name in COMBINED_HEADERS and name in values:
                self.headers[place] = name, b", ".join((values[name], value))  # of equal names, the last one counts
            values[name] = self.headers[place][1]
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


class ResponseTransport:
    """The transport of one response. It writes the head together with the start of the body.

    uvicorn writes them separately. Each write is a system call, and the first one wakes the client needlessly.
    """

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return  # the client has disconnected
        if self._head is None:
            self._head = data
        elif self._head:
            self._transport.writelines((self._head, data))
            self._head = b""
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


def _headers_too_large() -> ServiceError:
    return HeadersTooLarge("Request headers too large", "Shorten them.", maximum=MAX_HEADER_BYTES, unit="bytes")
