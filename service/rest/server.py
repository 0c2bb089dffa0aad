"""uvicorn, bent to our needs: signals are the app's business, and slow headers are not waited for."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

KEEP_ALIVE_S = 75
MAX_HEADER_BYTES = 64 * 1024
HEADERS_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class PromptProtocol(HttpToolsProtocol):
    """Closes a connection whose headers are too slow or too large; uvicorn would wait, and read, for ever."""

    header_timeout_s: float
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
        self._headers_came()
        super().on_headers_complete()

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

    def __init__(self, app: ASGIApp, header_timeout_s: float, last_words_s: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=type("Protocol", (PromptProtocol,), {"header_timeout_s": header_timeout_s}),
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
