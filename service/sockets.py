"""The servers' listening sockets, and errors that name the options of their addresses."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import struct
from collections.abc import Callable, Set
from pathlib import Path

from service.config import ConfigError, Settings
from service.connections import ConnectionTable, normal_address

OPEN_FILES = Path("/proc/self/fd")
BYTES_RECEIVED = struct.Struct("=128xQ")
"""tcpi_bytes_received of struct tcp_info in linux/tcp.h."""

PERIOD_S = 1.0
CROWDED_PERIOD_S = 0.1
"""Seconds between two scans of a port, and while it has many connections."""

OWN_FILES = 256
"""Open files of a server without connections: libraries, models, and pipes of its threads."""
CONNECTIONS_PER_LIMIT = 4.0
"""File descriptors per allowed connection: REST with TLS handshakes, gRPC with the headroom it needs to choose, and the
admin port.
"""
CROWDED_FILES = 0.8

BACKLOG = 2048
ACCEPTS_PER_TURN = 64
ACCEPT_RETRY_S = 1.0
TAKE_RETRY_S = 0.01

Peer = tuple[str, int]
"""The address and the port of a client."""


log = logging.getLogger("attendant")


def format_address(host: str, port: int) -> str:
    """Return `host:port` as in a URL: with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(host: str, port: int, name: str) -> socket.socket:
    """Return a bound socket; raises `ConfigError` with one line that names the option."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4])
    except socket.gaierror:
        bound.close()
        raise ConfigError(f'{host_option(name)}: cannot resolve "{host}". Choose another address.') from None
    except OSError as error:
        bound.close()
        raise bind_error(name, host, port, error) from None
    return bound


def reserve(host: str, port: int, name: str) -> socket.socket:
    """Return a bound socket that does not listen, so that processes of this user can share its port (SO_REUSEPORT).

    Servers that bind without this option cannot. Raises the errors of `bind`.
    """
    with bind(host, port, name) as probe:  # fails if another server listens, whatever its options are
        address = probe.getsockname()
        family = probe.family
    reserved = socket.socket(family, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        reserved.bind(address)
    except OSError:  # connections of a previous server are in TIME_WAIT
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind(address)
        except OSError as error:
            reserved.close()
            raise bind_error(name, host, port, error) from None
    return reserved


def check_ports(settings: Settings) -> None:
    """Raise `ConfigError` if an address cannot be bound now."""
    for name, host, port in (
        ("REST", settings.host, settings.rest_port),
        ("gRPC", settings.host, settings.grpc_port),
        ("admin", settings.admin_host, settings.admin_port),
    ):
        bind(host, port, name).close()


def bind_error(name: str, host: str, port: int, error: OSError) -> ConfigError:
    """Return the error for an address that cannot be bound, with the responsible option."""
    reason = f"cannot bind {format_address(host, port)} ({(error.strerror or 'address in use').lower()})"
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"{host_option(name)}: {reason}. Choose an address of this machine.")
    return ConfigError(f"ATTENDANT_{name.upper()}_PORT: {reason}. Choose another port.")


def host_option(name: str) -> str:
    """Return the option that sets a server's address."""
    return "ATTENDANT_ADMIN_HOST" if name == "admin" else "ATTENDANT_HOST"


def raise_open_file_limit(settings: Settings) -> None:
    """Raise the limit of open files to the hard limit: the usual limit of 1024 is below `max_connections`.

    Warns if that is too low for all connections that the options allow. Raises `ConfigError` if it is too low for any
    connection.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    if limit < OWN_FILES:
        raise ConfigError(f"Open file limit too low ({limit}, minimum {OWN_FILES}). Raise it with ulimit -n.")
    needed = OWN_FILES + int(CONNECTIONS_PER_LIMIT * settings.worker_connections)
    if limit < needed:
        log.warning(
            "open file limit below the connection limits limit=%d needed=%d option=ATTENDANT_MAX_CONNECTIONS",
            limit, needed,
        )  # fmt: skip


def warn_of_open_files() -> None:
    """Log a warning when the process is close to its limit of open files: new connections will fail."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        opened = len(os.listdir(OPEN_FILES))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            log.error("no more files can be opened limit=%d", limit)
        return
    if limit != resource.RLIM_INFINITY and opened > CROWDED_FILES * limit:
        log.warning("open files near the limit open=%d limit=%d", opened, limit)


class Acceptor:
    """Accepts connections on a bound socket, many per event loop iteration.

    uvloop accepts one per iteration: of 512 clients that connected to a busy server simultaneously, the last waited for
    seconds.
    """

    def __init__(self, bound: socket.socket, take: Callable[[socket.socket], bool]) -> None:
        """`take` takes over a connection, or returns False to make it and all later connections wait."""
        self._bound = bound
        self._take = take
        self._waiting: socket.socket | None = None
        bound.setblocking(False)
        bound.listen(BACKLOG)

    def start(self) -> None:
        """Accept connections from now on."""
        if self._bound.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._bound, self._accept)

    def close(self) -> None:
        """Accept no more connections."""
        if self._bound.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._bound)
            self._bound.close()
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    async def wait_closed(self) -> None:
        """Return immediately, because `close` closes the socket."""

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._waiting is None:
                try:
                    self._waiting, _ = self._bound.accept()
                except BlockingIOError:
                    return
                except ConnectionError:  # the client has disconnected
                    continue
                except OSError as error:  # too many open files
                    log.error("connections not accepted error=%s", error.strerror)
                    self._pause(ACCEPT_RETRY_S)
                    return
            if not self._take(self._waiting):
                self._pause(TAKE_RETRY_S)
                return
            self._waiting = None

    def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._bound)
        loop.call_later(seconds, self.start)


class PortSockets:
    """A port's connections, found among the open files of the process. Empty except on Linux.

    For servers without a hook for connections.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: dict[str, tuple[int, Peer] | None] = {}
        self._descriptors: dict[Peer, int] = {}
        self._closing: set[Peer] = set()

    def scan(self) -> set[Peer]:
        """Return the clients of all open connections. It takes about 7 ms per 1000 open files."""
        try:
            names = os.listdir(OPEN_FILES)
        except OSError:  # not on Linux, or the limit of open files is reached
            return self._descriptors.keys() - self._closing
        before, self._sockets = self._sockets, {}
        for name in names:
            with contextlib.suppress(OSError):
                link = os.readlink(OPEN_FILES / name)
                if link.startswith("socket:"):
                    self._sockets[link] = before[link] if link in before else self._describe(int(name))
        self._descriptors = {peer: descriptor for descriptor, peer in filter(None, self._sockets.values())}
        self._closing.intersection_update(self._descriptors)  # in one step: the event loop may add a connection
        return self._descriptors.keys() - self._closing

    def bytes_received(self, peer: Peer) -> int | None:
        """Return how many bytes a client has sent; None for a closed connection, or one opened since the last scan."""
        if (copy := self._copy(peer)) is None:
            return None
        with copy:
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED.size)
            received: int = BYTES_RECEIVED.unpack(info)[0]
            return received

    def close(self, peer: Peer) -> None:
        """Close a client's connection if it is open. The server notices that both directions are shut down."""
        if (copy := self._copy(peer)) is not None:
            self._closing.add(peer)
            with copy, contextlib.suppress(OSError):
                copy.shutdown(socket.SHUT_RDWR)

    def _describe(self, descriptor: int) -> tuple[int, Peer] | None:
        """Return the descriptor and client of one of the port's connections; None for any other socket."""
        if (copy := _open_copy(descriptor)) is None:
            return None
        with copy as opened:
            if opened.family not in (socket.AF_INET, socket.AF_INET6) or opened.type != socket.SOCK_STREAM:
                return None
            if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) or opened.getsockname()[1] != self._port:
                return None
            host, port, *_ = opened.getpeername()
            return descriptor, (normal_address(host), port)

    def _copy(self, peer: Peer) -> socket.socket | None:
        """Return a copy of a client's socket, checked because the descriptor may have been reused."""
        descriptor = self._descriptors.get(peer)
        copy = None if descriptor is None else _open_copy(descriptor)
        if copy is None:
            return None
        with contextlib.suppress(OSError):
            host, port, *_ = copy.getpeername()
            if (normal_address(host), port) == peer:
                return copy
        copy.close()
        return None


def _open_copy(descriptor: int) -> socket.socket | None:
    """Return a copy of a socket; None if the descriptor no longer belongs to a socket."""
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None


class WatchedPort:
    """Closes a port's connections according to a table's policy, for servers that do not know their connections."""

    def __init__(self, port: int, table: ConnectionTable[Peer], on_closed: Callable[[str, str], None]) -> None:
        """`on_closed`: called with the reason and the address for each connection that is closed."""
        self.sockets = PortSockets(port)
        self._table = table
        self._on_closed = on_closed

    async def run(
        self,
        ignored: Callable[[], Set[Peer]] = frozenset,
        on_opened: Callable[[Peer], None] = lambda peer: None,
        on_scanned: Callable[[], None] = lambda: None,
    ) -> None:
        """Scan the port until cancelled.

        `ignored`: connections that do not belong to the table. `on_opened`: called for each connection added to the
        table. `on_scanned`: called after each scan.
        """
        while True:
            await asyncio.sleep(CROWDED_PERIOD_S if self._table.is_crowded else PERIOD_S)
            peers = await asyncio.to_thread(self.sockets.scan) - ignored()
            opened, closed = peers - self._table.connections, self._table.connections - peers
            for peer in closed:
                self._table.remove(peer)
            for peer in opened:
                victim = self._table.add(peer, peer[0])
                on_opened(peer)
                if victim is not None:
                    self.close(victim, "limit")
            for peer in self._table.expired():
                self.close(peer, "idle")
            on_scanned()

    def close(self, peer: Peer, reason: str) -> None:
        """Close a connection."""
        self.sockets.close(peer)
        self._table.remove(peer)
        self._on_closed(reason, peer[0])
