"""The gRPC server's connections. gRPC has no hook for them, so they are found and closed via the process's sockets."""

from collections import Counter
from functools import lru_cache, partial
from urllib.parse import unquote

from service.config import Settings
from service.connections import ConnectionTable, normal_address, parse_networks
from service.request_log import RequestLog
from service.sockets import Peer, WatchedPort

HEADROOM = 1.5
"""grpc accepts this many times the limit. It rejects connections above that, whoever opens them."""
KEPT_PEERS = 4096
"""Number of cached peer addresses. Parsing one takes 15 microseconds, and a connection carries many calls."""
MAX_RESETS = 500
"""Maximum number of calls per connection between two scans that end before their message arrives. Clients that time out
cause a few."""


class RpcConnections:
    """Closes connections that lock out others, and tracks which connections carry calls from callers."""

    def __init__(self, settings: Settings, requests: RequestLog) -> None:
        self._limit = settings.worker_connections
        self._table: ConnectionTable[Peer] = ConnectionTable(
            self._limit,
            settings.connections_per_address,
            parse_networks(settings.trusted_proxies),
            lambda peer: self._calls[peer] > 0,
        )
        self._requests = requests
        self._calls: Counter[Peer] = Counter()
        self._resets: Counter[Peer] = Counter()
        self._seen: dict[Peer, bool] = {}
        """Connections with calls, which a scan may not have found yet, and whether any call came from a caller."""
        self._port: WatchedPort | None = None
        self.stall_timeout_s = settings.response_stall_timeout_ms / 1000

    def __len__(self) -> int:
        return len(self._table)

    async def watch(self, port: int) -> None:
        """Watch the connections of this port until cancelled."""
        self._port = WatchedPort(port, self._table, partial(self._requests.close_connection, "grpc"))
        await self._port.run(on_opened=self._note_opened, on_scanned=self._update)

    def _note_opened(self, peer: Peer) -> None:
        if (known := self._seen.get(peer)) is not None:
            self._table.set_known(peer) if known else self._table.keep(peer)

    def _update(self) -> None:
        if len(self._seen) > HEADROOM * self._limit:  # most of these connections are closed
            self._seen = {peer: known for peer, known in self._seen.items() if peer in self._table.connections}
        for peer, resets in self._resets.items():
            if resets > MAX_RESETS:
                self.close(peer, "resets")
        self._resets.clear()

    def start_call(self, peer: Peer) -> None:
        """Record the start of a caller's call."""
        self._calls[peer] += 1
        self.note_caller(peer)

    def end_call(self, peer: Peer) -> None:
        """Record the end of a call."""
        self._calls[peer] -= 1
        if self._calls[peer] <= 0:
            del self._calls[peer]

    def note_caller(self, peer: Peer) -> None:
        """Mark a connection as belonging to a caller."""
        if not self._seen.get(peer):
            self._seen[peer] = True
            self._table.set_known(peer)

    def note_probe(self, peer: Peer) -> None:
        """Record a health check, which needs no key: the connection may remain idle, but can be closed to make room."""
        self._seen.setdefault(peer, False)
        self._table.keep(peer)

    def count_reset(self, peer: Peer) -> None:
        """Count a call that ended before its message arrived."""
        self._resets[peer] += 1

    def bytes_received(self, peer: Peer) -> int | None:
        """Return how many bytes a client has sent; None if that is unknown."""
        return None if self._port is None else self._port.sockets.bytes_received(peer)

    def close(self, peer: Peer, reason: str) -> None:
        """Close a connection and end its calls, unless it belongs to a proxy and may carry calls from many clients."""
        if self._port is not None and not self._table.is_proxy(peer[0]):
            self._port.close(peer, reason)


@lru_cache(maxsize=KEPT_PEERS)
def parse_peer(peer: str) -> Peer:
    """Parse the address and port of a peer, which grpc formats as `ipv4:127.0.0.1:40000` or `ipv6:%5B::1%5D:40000`.

    Other kinds have no port.
    """
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return normal_address(host.strip("[]")), int(port) if port.isdigit() else 0
