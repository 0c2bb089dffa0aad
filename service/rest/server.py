"""uvicorn's server without its signal handlers, because the process handles signals for all its servers."""

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.types import ASGIApp

from service.connections import ConnectionTable, normal_address
from service.process import start_task
from service.rest.protocol import ConnectionLimits, HttpProtocol
from service.sockets import Acceptor, Peer, WatchedPort

if TYPE_CHECKING:
    from service.rest.middleware import LoadShedder

TLS_SHUTDOWN_S = 1.0
"""Time to wait for a client to close its side of a TLS connection, in seconds."""


class ServedProtocol(HttpProtocol):
    """A connection that is counted by the process that accepted it."""

    on_lost: Callable[[], None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()


class Server(uvicorn.Server):
    """One listening socket and the application behind it."""

    def __init__(
        self,
        app: ASGIApp,
        limits: ConnectionLimits,
        load_shedder: "LoadShedder | None" = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: None serves without encryption. Handshakes must end within the header timeout."""
        self._tls = tls
        self._handshake_timeout_s = limits.header_timeout_s
        maximum = limits.max_connections or sys.maxsize
        self.table: ConnectionTable[HttpProtocol] = ConnectionTable(
            maximum, limits.per_address or maximum, limits.proxies, lambda connection: connection.is_busy
        )
        bound = {"limits": limits, "load_shedder": load_shedder, "table": self.table}
        super().__init__(
            uvicorn.Config(
                app,
                http=type("BoundHttpProtocol", (ServedProtocol,), bound),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
        )
        self._limits = limits
        self.on_lost: Callable[[], None] = lambda: None
        """Called for each adopted connection when it is closed."""
        self._handshakes: ConnectionTable[Peer] = ConnectionTable(
            maximum // 2, limits.per_address or maximum, limits.proxies
        )
        self._started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket | None, port: int = 0) -> None:
        """Return once connections are accepted. Without a socket, pass accepted connections of `port` to `adopt`."""
        self._task = asyncio.create_task(self.serve([] if bound is None else [bound]))
        await self._started.wait()
        if self._tls is not None:
            port = port if bound is None else bound.getsockname()[1]
            watched = WatchedPort(port, self._handshakes, self._limits.on_closed)
            self._watch = start_task(watched.run(ignored=self._peers))

    def adopt(self, connection: socket.socket) -> bool:
        """Serve an accepted connection."""
        connection.setblocking(False)
        start_task(self._serve_connection(connection))
        return True

    async def _serve_connection(self, connection: socket.socket) -> None:
        protocol = self._make_protocol()
        protocol.on_lost = self.on_lost
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, connection, **self._connection_options
            )
        except OSError:  # for example, a failed handshake
            connection.close()
            if protocol.transport is None:
                self.on_lost()

    def _peers(self) -> set[Peer]:
        """Return the clients whose TLS handshake is complete: uvloop reports a connection only then."""
        clients = [connection.client for connection in self.table.connections]
        return {(normal_address(client[0]), client[1]) for client in clients if client and client[1]}

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self.table)

    async def stop(self, grace_s: float) -> None:
        """Close idle connections immediately, and others after their response or `grace_s`, whichever is first."""
        if self._task is not None:
            self.config.timeout_graceful_shutdown = grace_s  # type: ignore[assignment]  # it takes fractions too
            self.should_exit = True
            await self._task
        if self._watch is not None:
            self._watch.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and set the event that `start` waits for."""
        await super().startup([])  # uvicorn would use the default TLS timeouts, 60 s and 30 s
        acceptors = [Acceptor(bound, self.adopt) for bound in sockets or ()]
        for acceptor in acceptors:
            acceptor.start()
        self.servers = acceptors  # type: ignore[assignment]  # uvicorn closes them
        self._started.set()

    def _make_protocol(self) -> Any:
        make_protocol: Any = self.config.http_protocol_class
        return make_protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @property
    def _connection_options(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {
            "ssl": self._tls,
            "ssl_handshake_timeout": self._handshake_timeout_s,
            "ssl_shutdown_timeout": TLS_SHUTDOWN_S,
        }

    def renew_connections(self) -> None:
        """Close idle connections immediately, and the others after their response."""
        for connection in list(self.server_state.connections):
            connection.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not capture signals."""
        yield
