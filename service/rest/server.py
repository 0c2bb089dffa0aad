"""uvicorn's server without its signal handlers: the process handles signals once for all its servers."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from service.rest.connections import ConnectionLimits, NoLoadShedding, Shedder
from service.rest.protocol import HttpProtocol

KEEP_ALIVE_S = 75


class Server(uvicorn.Server):
    """One listening socket and the application behind it."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits, load_shedder: Shedder | None = None) -> None:
        bound = {"limits": limits, "load_shedder": load_shedder or NoLoadShedding()}
        super().__init__(
            uvicorn.Config(
                app,
                http=type("BoundHttpProtocol", (HttpProtocol,), bound),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket) -> None:
        """Return once connections are accepted."""
        self._task = asyncio.create_task(self.serve([bound]))
        await self._started.wait()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self.server_state.connections)

    async def stop(self, grace_s: float) -> None:
        """Close idle connections at once, and the others after their response or `grace_s`, whichever is first."""
        if self._task is not None:
            self.config.timeout_graceful_shutdown = grace_s  # type: ignore[assignment]  # it takes fractions too
            self.should_exit = True
            await self._task

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and set the event that `start` waits for."""
        await super().startup(sockets)
        self._started.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
