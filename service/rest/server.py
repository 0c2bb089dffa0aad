"""uvicorn, bent to our needs.

Signals are the app's business, slow headers are not waited for, and what a full queue would refuse costs little.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

KEEP_ALIVE_S = 75
MAX_HEADER_BYTES = 64 * 1024
HEADERS_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


MAX_HELD_BYTES = 16 * 1024


class Gate(Protocol):
    """Who says that a request need not even be started."""

    @property
    def shut(self) -> bool:
        """Whether to ask about every request; costs next to nothing."""

    def turn_away(self, path: bytes, headers: Mapping[bytes, bytes], body: bytes) -> Response | None:
        """The refusal of a request that there is no room for; None when it is to take its usual way."""


class Open:
    """A gate that is never shut."""

    shut = False

    def turn_away(self, path: bytes, headers: Mapping[bytes, bytes], body: bytes) -> Response | None:
        return None


class PromptProtocol(HttpToolsProtocol):
    """Closes a connection whose headers are too slow or too large; uvicorn would wait, and read, for ever.

    While its gate is shut it holds a small request until it is whole, within the time for headers, and asks the gate.
    A refusal is then written from here, which takes a tenth of the way through uvicorn's task, the app and the engine:
    under four times the load that can be answered, saying no the long way took half a core from the answers.
    """

    header_timeout_s: float
    gate: Gate
    _held: bytearray | None = None
    _header_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._header_timer is not None:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self.transport.write(HEADERS_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        self._expect_headers()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.gate.shut and self._can_hold():
            self._held = bytearray()
            return
        self._headers_came()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._held is None:
            super().on_body(body)
        else:
            self._held += body

    def on_message_complete(self) -> None:
        if self._held is not None:
            body, self._held = bytes(self._held), None
            self._headers_came()
            refusal = self.gate.turn_away(self.url, dict(self.headers), body)
            if refusal is not None:
                self._write(refusal)
                return
            super().on_headers_complete()
            super().on_body(body)
        super().on_message_complete()

    def _can_hold(self) -> bool:
        """Whether this is a small request, whole in itself, that no answer is due before."""
        size = next((value for name, value in self.headers if name == b"content-length"), b"")
        waiting = self.cycle is not None and not self.cycle.response_complete
        return size.isdigit() and int(size) <= MAX_HELD_BYTES and not (waiting or self.expect_100_continue)

    def _write(self, response: Response) -> None:
        lines = [STATUS_LINE[response.status_code]]
        lines += [b"%s: %s\r\n" % pair for pair in (*self.server_state.default_headers, *response.raw_headers)]
        keep_alive = self.parser.should_keep_alive()
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        self.transport.write(b"".join((*lines, b"\r\n", bytes(response.body))))
        if not keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _expect_headers(self) -> None:
        self._headers_came()
        self._header_timer = self.loop.call_later(self.header_timeout_s, self.transport.close)

    def _headers_came(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
            self._header_bytes = 0


class Server(uvicorn.Server):
    """One listening socket and the app behind it; `started_event` is set once it accepts."""

    def __init__(self, app: ASGIApp, header_timeout_s: float, last_words_s: int, gate: Gate | None = None) -> None:
        bound = {"header_timeout_s": header_timeout_s, "gate": gate or Open()}
        super().__init__(
            uvicorn.Config(
                app,
                http=type("Protocol", (PromptProtocol,), bound),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=last_words_s,
            )
        )
        self.started_event = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.started_event.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
