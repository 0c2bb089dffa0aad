"""Connection policy for REST and gRPC: which connections to close when there are too many."""

import ipaddress
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Set
from typing import Generic, TypeVar

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

UNKNOWN_IDLE_S = 30.0
"""Idle connections without any request from a caller are closed after this time, in seconds."""

CROWDED = 0.75
MIN_READ_BYTES_PER_S = 64 * 1024

KeyT = TypeVar("KeyT")


def read_timeout_s(stall_timeout_s: float, size: int) -> float:
    """Return how long a client may take to read `size` bytes, in seconds."""
    return stall_timeout_s + size / MIN_READ_BYTES_PER_S


def parse_networks(value: str) -> tuple[Network, ...]:
    """Return the networks of a comma-separated list of addresses and networks; raises ValueError."""
    return tuple(map(ipaddress.ip_network, filter(None, map(str.strip, value.split(",")))))


def normal_address(address: str) -> str:
    """Return an IP address, with IPv4-mapped IPv6 converted to IPv4; return other text unchanged."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)


class ConnectionTable(Generic[KeyT]):
    """The open connections of one server.

    A connection is known once a caller has sent a request on it, with an accepted key if the server uses keys. When
    there are too many connections, an idle one is closed to admit a new one: the oldest unknown connection, else a
    connection from the address with the most connections. This keeps idle connections, and any single address, from
    locking out other clients.
    """

    def __init__(
        self,
        limit: int,
        per_address: int,
        proxies: Collection[Network] = (),
        is_busy: Callable[[KeyT], bool] = lambda key: False,
    ) -> None:
        """`per_address` does not apply to `proxies`. `is_busy`: whether a connection has a request in progress."""
        self._limit = limit
        self._per_address = per_address
        self._proxies = proxies
        self._is_busy = is_busy
        self._addresses: dict[KeyT, str] = {}
        self._counts: Counter[str] = Counter()
        self._unknown: dict[KeyT, float] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def is_crowded(self) -> bool:
        """True close to the limit."""
        return len(self._addresses) > CROWDED * self._limit

    @property
    def connections(self) -> Set[KeyT]:
        """The open connections."""
        return self._addresses.keys()

    def add(self, key: KeyT, address: str) -> KeyT | None:
        """Add a connection. Return the connection to close to make room, which may be the new one, or None."""
        address = normal_address(address)
        self._addresses[key] = address
        self._counts[address] += 1
        self._unknown[key] = time.monotonic()
        count = self._counts[address]
        if count > self._per_address and not self.is_proxy(address):
            return next((other for other in self._idle(self._unknown) if self._addresses[other] == address), key)
        if len(self._addresses) <= self._limit:
            return None
        oldest = next(self._idle(self._unknown), None)
        if oldest is not None and oldest != key:
            return oldest
        largest, most = self._counts.most_common(1)[0]
        if most <= count:
            return key
        return next((other for other in self._idle(self._addresses) if self._addresses[other] == largest), key)

    def keep(self, key: KeyT) -> None:
        """Exempt an unknown connection from the idle timeout. It can still be closed to make room."""
        if key in self._unknown:
            self._unknown[key] = math.inf

    def set_known(self, key: KeyT) -> None:
        """Mark a connection as known, because a caller has sent a request on it."""
        self._unknown.pop(key, None)

    def remove(self, key: KeyT) -> None:
        """Remove a closed connection."""
        address = self._addresses.pop(key, None)
        self._unknown.pop(key, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def expired(self) -> list[KeyT]:
        """Return the idle connections that have been unknown for longer than `UNKNOWN_IDLE_S`."""
        before = time.monotonic() - UNKNOWN_IDLE_S
        return [key for key in self._idle(self._unknown) if self._unknown[key] < before]

    def _idle(self, keys: Collection[KeyT]) -> Iterator[KeyT]:
        return (key for key in keys if not self._is_busy(key))

    def is_proxy(self, address: str) -> bool:
        """Return whether an address belongs to a trusted proxy."""
        if not self._proxies:
            return False
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._proxies)
