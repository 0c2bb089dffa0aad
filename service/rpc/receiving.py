"""Connections and received messages, under time and memory limits.

gRPC has no hook for connections, so they are found and closed via the process's sockets. grpc receives a message as a
whole, so its size is known only afterwards. Concurrent receives are therefore limited by a number of turns, each of
which may hold a message of the maximum size.
"""

import asyncio
import contextlib
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any
from urllib.parse import unquote

from service.config import Settings
from service.connections import ConnectionTable, normal_address, parse_networks
from service.errors import MalformedRequest, RequestTimeout
from service.memory import MemoryBudget
from service.process import start_task
from service.request_log import RequestLog
from service.rpc.messages import Rejected
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


THREAD_FROM_BYTES = 64 * 1024
"""Messages from this size are parsed in a thread: checking 8 MiB takes 14 ms."""
CONTENDED_TIMEOUT_S = 1.0
"""Timeout for receiving a message while more than `MAX_IDLE_CALLS` calls lack their message, or other calls wait."""
MAX_IDLE_CALLS = 1024
CANCELLATION_S = 0.05
"""Seconds within which grpc cancels a call that the client has cancelled, or whose message is too large. Before that,
the call looks like one without a message.
"""
LEND_AFTER_S = 0.005
LENT_BYTES = 4 * 1024
"""A turn is lent to another call if its connection received less than `LENT_BYTES` in `LEND_AFTER_S`."""
RECALL_BYTES = 64 * 1024
RECALL_PERIOD_S = 0.05
RECALL_GRACE_S = 0.25
"""Once its connection has received `RECALL_BYTES`, a call that has lent its turn needs one again. If none is free, the
call ends after `RECALL_GRACE_S`.
"""

Parser = Callable[[bytes], Any]


class _Call:
    """A call whose message has not arrived. `received`: bytes that its connection had received at time `since`."""

    __slots__ = ("peer", "received", "since", "started", "timeout")

    def __init__(self, peer: Peer, timeout: asyncio.Timeout) -> None:
        self.peer = peer
        self.timeout = timeout
        self.started = asyncio.get_running_loop().time()
        self.received: int | None = None
        self.since = 0.0

    def end_by(self, when: float) -> None:
        """Bring the timeout forward."""
        if not self.timeout.expired() and when < (self.timeout.when() or math.inf):
            self.timeout.reschedule(when)


class Receiver:
    """Receives the messages of all calls. `budget` counts received messages until their calls end.

    Turns go to the connection with the fewest calls that hold or have lent one. A call whose connection receives
    nothing lends its turn, so that calls without a message do not block others.
    """

    def __init__(
        self, settings: Settings, budget: MemoryBudget, bytes_received: Callable[[Peer], int | None] = lambda peer: None
    ) -> None:
        self._budget = budget
        self._timeout_ms = settings.body_timeout_ms
        self._free = max(1, settings.worker_request_bytes // settings.max_grpc_message_bytes)
        self._bytes_received = bytes_received
        self._count = 0
        self._calls: dict[Peer, dict[_Call, None]] = {}  # oldest first
        self._holders: dict[_Call, None] = {}
        self._lent: dict[_Call, None] = {}
        self._held: Counter[Peer] = Counter()
        self._waiters: dict[Peer, deque[asyncio.Future[None]]] = {}
        self._watch: asyncio.Task[None] | None = None

    @property
    def free_turns(self) -> int:
        """The number of turns that no call holds."""
        return self._free

    async def receive(self, requests: AsyncIterator[bytes], peer: Peer) -> bytes:
        """Return the only message of a call. Raises `RequestTimeout`, or `MalformedRequest` if there is no message."""
        try:
            async with asyncio.timeout(self._timeout_ms / 1000) as timeout:
                call = _Call(peer, timeout)
                self._add(call)
                try:
                    await self._take_turn(call)
                    data = await anext(requests)
                finally:
                    self._return_turn(call)
                    self._remove(call)
            if timeout.expired():  # in the iteration in which the message arrived: the next await would be cancelled
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            return data
        except TimeoutError:
            raise RequestTimeout(
                "Message not received in time", "Retry the call.", maximum=self._timeout_ms, unit="ms"
            ) from None
        except StopAsyncIteration:
            await asyncio.sleep(CANCELLATION_S)
            raise MalformedRequest("Call without a message", "Send one.") from None

    @contextlib.asynccontextmanager
    async def parsed(self, data: bytes, parse: Parser, holder: str) -> AsyncIterator[Any]:
        """Parse a message, and count its bytes until the block exits. Raises the errors of `MemoryBudget.acquire`."""
        self._budget.acquire(holder, len(data))
        try:
            yield await _parse(data, parse)
        finally:
            self._budget.release(holder, len(data))

    async def stream(self, requests: AsyncIterator[bytes], parse: Parser, holder: str) -> AsyncGenerator[Any, None]:
        """Yield the messages of a stream. Each message's bytes count until the next message is requested."""
        async for data in requests:
            async with self.parsed(data, parse, holder) as message:
                yield message

    def _add(self, call: _Call) -> None:
        """Count a call. While there are too many calls, shorten the timeouts of the connection's oldest calls."""
        self._count += 1
        calls = self._calls.setdefault(call.peer, {})
        calls[call] = None
        if self._count > MAX_IDLE_CALLS:
            excess = len(calls) - MAX_IDLE_CALLS // len(self._calls)
            for idle, _ in zip(calls, range(excess), strict=False):
                idle.end_by(max(call.started, idle.started + CONTENDED_TIMEOUT_S))

    def _remove(self, call: _Call) -> None:
        self._count -= 1
        calls = self._calls[call.peer]
        del calls[call]
        if not calls:
            del self._calls[call.peer]

    async def _take_turn(self, call: _Call) -> None:
        if self._free and not self._waiters:
            self._free -= 1
            self._held[call.peer] += 1
        else:
            await self._wait_for_turn(call)
        self._holders[call] = None

    async def _wait_for_turn(self, call: _Call) -> None:
        loop = asyncio.get_running_loop()
        for holder in self._holders:
            holder.end_by(loop.time() + CONTENDED_TIMEOUT_S)
        waiter: asyncio.Future[None] = loop.create_future()
        queue = self._waiters.setdefault(call.peer, deque())
        queue.append(waiter)
        if self._watch is None:
            self._watch = start_task(self._watch_turns())
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it got the turn in the same loop iteration
                self._release(call.peer)
            elif waiter in queue:
                queue.remove(waiter)
                if not queue:
                    del self._waiters[call.peer]
            raise

    def _return_turn(self, call: _Call) -> None:
        if call in self._holders:
            del self._holders[call]
            self._release(call.peer)
        elif call in self._lent:
            del self._lent[call]
            self._count_held(call.peer, -1)

    def _release(self, peer: Peer) -> None:
        self._count_held(peer, -1)
        self._free += 1
        self._grant()

    def _count_held(self, peer: Peer, change: int) -> None:
        self._held[peer] += change
        if not self._held[peer]:
            del self._held[peer]

    def _grant(self) -> None:
        """Give free turns to the connections with the fewest turns."""
        while self._free and self._waiters:
            peer = min(self._waiters, key=lambda other: self._held[other])
            queue = self._waiters[peer]
            waiter = queue.popleft()
            if not queue:
                del self._waiters[peer]
            if waiter.done():  # cancelled in this loop iteration
                continue
            self._free -= 1
            self._count_held(peer, 1)
            waiter.set_result(None)

    async def _watch_turns(self) -> None:
        """Lend turns while calls wait for one, and recall them."""
        loop = asyncio.get_running_loop()
        recall_at = 0.0
        try:
            while self._waiters or self._lent:
                now = loop.time()
                if now >= recall_at:
                    recall_at = now + RECALL_PERIOD_S
                    self._recall(self._measure(self._lent), now)
                if self._waiters:
                    self._lend(self._measure(self._holders), now)
                await asyncio.sleep(LEND_AFTER_S if self._waiters else RECALL_PERIOD_S)
        finally:
            self._watch = None

    def _measure(self, calls: Iterable[_Call]) -> dict[Peer, int]:
        """Return how many bytes the calls' connections have received; 0 while unknown, in their first second."""
        return {peer: self._bytes_received(peer) or 0 for peer in {call.peer for call in calls}}

    def _lend(self, received: Mapping[Peer, int], now: float) -> None:
        """Lend out the turns of calls whose connections receive nothing."""
        for call in list(self._holders):
            total = received[call.peer]
            if call.received is None or total - call.received >= LENT_BYTES:
                call.received, call.since = total, now
            elif now - call.since >= LEND_AFTER_S:
                del self._holders[call]
                self._lent[call] = None
                self._free += 1
        self._grant()

    def _recall(self, received: Mapping[Peer, int], now: float) -> None:
        """Return turns to calls whose connections receive data again, or end those calls soon if no turn is free."""
        for call in list(self._lent):
            total = received[call.peer]
            if total - (call.received or 0) < RECALL_BYTES:
                continue
            if self._free:
                self._free -= 1
                del self._lent[call]
                self._holders[call] = None
                call.received, call.since = total, now
            else:
                call.end_by(now + RECALL_GRACE_S)


async def _parse(data: bytes, parse: Parser) -> Any | Rejected:
    return parse(data) if len(data) < THREAD_FROM_BYTES else await asyncio.to_thread(parse, data)
