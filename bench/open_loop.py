"""Open loop: a sender in a separate process sends requests on a schedule, whether or not responses arrive.

A request uses an idle connection or opens a new one, so that no response delays the next request. Latencies of accepted
requests start at the scheduled time, which avoids coordinated omission. Latencies of rejections start when the request
is written, because they measure how fast the server rejects. The sender's delay is reported too.
"""

import asyncio
import json
import math
import os
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import numpy as np
import uvloop
from numpy.typing import NDArray

from bench.load import Load, await_start, receive_job, run_senders

SEED = 20_262
RESPONSE_WAIT_S = 3.0
"""How long to wait for responses after the last request."""
MIN_SLEEP_MS = 2.0
"""Shortest sleep between sends. Requests that become due in the meantime are sent together."""
MAX_CONNECTIONS = 15_000
REJECTIONS_FROM_S = 1.0
"""Rejections count after this time, accepted requests after the queue has filled."""


@dataclass(frozen=True)
class Offered:
    """Requests per second offered, sent, accepted and rejected; NaN if there were none.

    `loop_ms_per_request` is the CPU time of the server's main thread (the event loop) per response.
    """

    offered: float
    sent: float
    goodput: float
    rejected: float
    failed: int
    unanswered: int
    p50_ms: float
    p99_ms: float
    rejection_p50_ms: float
    rejection_p99_ms: float
    late_p99_ms: float
    loop_ms_per_request: float = math.nan

    def describe(self) -> str:
        return (
            f"offered {self.offered:6.0f}/s  sent {self.sent:6.0f}/s  good {self.goodput:6.0f}/s  "
            f"rejected {self.rejected:6.0f}/s in p99 {self.rejection_p99_ms:6.1f} ms  "
            f"p50 {self.p50_ms:7.1f} ms  p99 {self.p99_ms:7.1f} ms  sender late p99 {self.late_p99_ms:.1f} ms  "
            f"event loop {self.loop_ms_per_request:.3f} ms/request"
            + (f"  {self.unanswered} unanswered, {self.failed} FAILED" if self.unanswered or self.failed else "")
        )


def run_open(load: Load, rate: float, fill_s: float, seconds: float, pid: int) -> Offered:
    """Offer `rate` requests per second as a Poisson process: for `fill_s` until the queue is full, then for `seconds`.

    `pid` is the server process.
    """
    job = {
        "url": load.url, "bodies": load.bodies, "headers": load.headers,
        "rate": rate, "fill_s": fill_s, "seconds": seconds,
    }  # fmt: skip
    before = main_thread_s(pid)
    (result,) = run_senders("open_loop", [job])
    answered = result.pop("answered")
    spent = (main_thread_s(pid) - before) * 1000
    return Offered(offered=rate, **result, loop_ms_per_request=spent / answered if answered else math.nan)


def main_thread_s(pid: int) -> float:
    """Return the CPU time of a process's main thread in seconds."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def allow_connections() -> None:
    """Raise the open file limit of this process and its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Connection(asyncio.Protocol):
    """An HTTP/1.1 connection with at most one request in flight."""

    def __init__(self, sender: "Sender") -> None:
        self._sender = sender
        self._due = self.written = 0.0
        self._status, self._missing, self._head = 0, 0, b""
        self.closes = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes, due: float) -> None:
        assert self.transport is not None
        self._due, self.written = due, time.perf_counter()
        self._head, self._status, self._missing = b"", 0, 0
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self._status:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._head[:end].lower()
            self._status = int(head[9:12])
            self.closes = b"\r\nconnection: close" in head
            at = head.index(b"content-length:") + 15
            self._missing = int(head[at:].split(b"\r\n", 1)[0])
            data = self._head[end + 4 :]
        self._missing -= len(data)
        if self._missing <= 0:
            self._sender.answered(self, self._status, self._due, self.written)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sender.lost(self)


class Sender:
    """Sends requests on a schedule and records their responses."""

    def __init__(self, url: str, requests: Sequence[bytes]) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "127.0.0.1", address.port or 80
        self._requests = requests
        self._free: list[Connection] = []
        self._all: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._closing = False
        self.responses: list[tuple[float, int, float, float]] = []
        self.failed = 0

    def answered(self, connection: Connection, status: int, due: float, written: float) -> None:
        self.responses.append((time.perf_counter(), status, due, written))
        if connection.closes and connection.transport is not None:
            self._all.discard(connection)
            connection.transport.close()
        else:
            self._free.append(connection)

    def lost(self, connection: Connection) -> None:
        if connection not in self._all:
            return
        self._all.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        elif not self._closing:
            self.failed += 1

    async def send_all(self, due: NDArray[np.float64]) -> list[float]:
        """Send at the times `due`, in seconds from now, and return each request's delay."""
        late: list[float] = []
        started = time.perf_counter()
        at = 0
        while at < len(due):
            now = time.perf_counter() - started
            while at < len(due) and due[at] <= now:
                self._send(self._requests[at % len(self._requests)], started + due[at])
                late.append(now - due[at])
                at += 1
            if at < len(due):
                await asyncio.sleep(max(due[at] - (time.perf_counter() - started), MIN_SLEEP_MS / 1000))
        await asyncio.sleep(RESPONSE_WAIT_S)
        return late

    def unanswered(self) -> list[float]:
        """Return how long each request without a response has been waiting, in seconds."""
        now = time.perf_counter()
        return [now - connection.written for connection in self._all.difference(self._free)]

    def close(self) -> None:
        """Close all connections, which makes the server discard queued inputs."""
        self._closing = True
        for connection in list(self._all):
            if connection.transport is not None:
                connection.transport.abort()

    def _send(self, request: bytes, due: float) -> None:
        if self._free:
            self._free.pop().send(request, due)
        elif len(self._all) + len(self._opening) < MAX_CONNECTIONS:
            task = asyncio.ensure_future(self._open(request, due))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        else:
            self.failed += 1

    async def _open(self, request: bytes, due: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: Connection(self), self._host, self._port)
        except OSError:
            self.failed += 1
            return
        self._all.add(connection)
        connection.send(request, due)


def raw_request(url: str, body: str, headers: Mapping[str, str]) -> bytes:
    address, data = urlsplit(url), body.strip().encode()
    head = f"POST {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data


async def offer(
    url: str, requests: Sequence[bytes], rate: float, fill_s: float, seconds: float
) -> dict[str, float | int]:
    """Send requests at `rate`; return the figures. Rejections skip the first second, others skip `fill_s` seconds."""
    end_s = fill_s + seconds
    count = int(rate * end_s)
    due = np.cumsum(np.random.default_rng(SEED).exponential(1 / rate, count))
    sender = Sender(url, requests)
    await asyncio.to_thread(await_start)
    started = time.perf_counter()
    late = await sender.send_all(due)
    unanswered = sender.unanswered()
    sender.close()
    responses = [(at - started, status, at - due_at, at - written) for at, status, due_at, written in sender.responses]
    accepted = [waited * 1000 for at, status, waited, _ in responses if status == 200 and at >= fill_s]
    good = sum(status == 200 and fill_s <= at <= end_s for at, status, _, _ in responses)
    rejected = [waited * 1000 for at, status, _, waited in responses if status == 429 and at >= REJECTIONS_FROM_S]
    # Count a missing response as a slow rejection.
    rejections = [*rejected, *(waited * 1000 for waited in unanswered)]
    return {
        "sent": len(late) / max(end_s, due[-1] + late[-1]),
        "answered": len(responses),
        "unanswered": len(unanswered),
        "goodput": good / seconds,
        "rejected": len(rejected) / (end_s - REJECTIONS_FROM_S),
        "failed": sender.failed + sum(status not in (200, 429) for _, status, _, _ in responses),
        "p50_ms": quantile(accepted, 0.5),
        "p99_ms": quantile(accepted, 0.99),
        "rejection_p50_ms": quantile(rejections, 0.5),
        "rejection_p99_ms": quantile(rejections, 0.99),
        "late_p99_ms": quantile(late, 0.99) * 1000,
    }


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, or NaN if there are no values."""
    return float(np.quantile(values, share)) if values else float("nan")


def main() -> None:
    job = receive_job()
    allow_connections()
    with open(job["bodies"]) as file:
        requests = [raw_request(job["url"], line, job["headers"]) for line in file]
    print(json.dumps(uvloop.run(offer(job["url"], requests, job["rate"], job["fill_s"], job["seconds"]))))


if __name__ == "__main__":
    main()
