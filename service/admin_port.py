"""The admin port of a server with several workers: probes, combined metrics, and a relay for all other requests."""

import asyncio
import contextlib
import json
import os
import re
import resource
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from service.config import Settings
from service.lifecycle import Status
from service.metrics import render_metrics

PROBES = {"/livez", "/healthz", "/readyz"}
METRICS = "/metrics"
METHODS = ("GET", "HEAD", "OPTIONS")
MAX_HEADER_BYTES = 64 * 1024
KEEP_ALIVE_S = 75.0
MAX_CONNECTIONS = 256
COPY_BYTES = 64 * 1024
REASONS = {200: "OK", 204: "No Content", 503: "Service Unavailable"}
"""Reason phrases of the supervisor's responses."""
END_OF_HEAD = b"\r\n\r\n"
HOP_HEADERS = (b"connection", b"keep-alive")
CALLERS = "/admin/callers"
CALLER_TERMS = ("name", "weight", "tokens_per_second", "retry_after_s")
"""Fields that are not summed over workers. The other fields are counts."""
WORKER_TIMEOUT_S = 10.0


class AdminPort:
    """A small HTTP server. It relays requests that it does not handle itself to a worker."""

    def __init__(
        self,
        settings: Settings,
        registry: CollectorRegistry,
        read_status: Callable[[], Status],
        connect: Callable[[], Iterator[socket.socket]],
    ) -> None:
        """`connect` yields a socket connected to the admin API of each worker."""
        from service.rest.hosts import HostCheck

        self._registry = registry
        self._read_status = read_status
        self._connect = connect
        self._hosts = HostCheck(settings.admin_host, "")
        self._header_timeout_s = settings.header_timeout_ms / 1000
        self._connections: set[asyncio.StreamWriter] = set()
        self._idle: dict[asyncio.StreamWriter, None] = {}  # in the order in which they became idle

    async def start(self, bound: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept connections."""
        options = {} if tls is None else {"ssl_handshake_timeout": self._header_timeout_s}
        self._server = await asyncio.start_server(
            self._serve,
            sock=bound,
            ssl=tls,
            limit=MAX_HEADER_BYTES,
            **options,  # type: ignore[arg-type]
        )

    async def stop(self) -> None:
        """Close the port and its connections."""
        self._server.close()
        for writer in self._connections:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                self._close_idle()
            if len(self._connections) <= MAX_CONNECTIONS:
                await self._serve_requests(reader, writer)
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
            pass  # the client left, was too slow, or does not speak HTTP
        finally:
            self._connections.discard(writer)
            self._idle.pop(writer, None)
            writer.close()

    def _close_idle(self) -> None:
        """Close the connection that has waited longest for a request, if any: probes must get through."""
        writer = next(iter(self._idle), None)
        if writer is not None:
            del self._idle[writer]
            self._connections.discard(writer)
            writer.close()

    async def _serve_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        timeout_s = self._header_timeout_s
        while True:
            self._idle[writer] = None
            async with asyncio.timeout(timeout_s):
                head = await reader.readuntil(END_OF_HEAD)
            self._idle.pop(writer, None)
            timeout_s = KEEP_ALIVE_S
            line, *fields = head[:-4].decode("latin-1").split("\r\n")
            method, target, version = line.split(" ")
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (item.partition(":") for item in fields)
            }
            path = target.partition("?")[0]
            is_probe = method in METHODS and (path in PROBES or path == METRICS)
            is_own = is_probe and self._is_allowed(headers.get("host"))
            has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
            if method == "GET" and path == CALLERS and not has_body:
                writer.write(await self._describe_callers(head))
                await writer.drain()
                return
            if not is_own or has_body:
                await self._relay(head, reader, writer)
                return
            options = [option.strip() for option in headers.get("connection", "").lower().split(",")]
            closes = "close" in options or (version == "HTTP/1.0" and "keep-alive" not in options)
            if method == "OPTIONS":
                response = _response(204, b"", {"allow": ", ".join(METHODS)}, closes=closes)
            else:
                response = await self._respond(path, headers, closes)
            writer.write(response if method == "GET" else response[: response.index(END_OF_HEAD) + len(END_OF_HEAD)])
            await writer.drain()
            if closes:
                return

    def _is_allowed(self, host: str | None) -> bool:
        """Return whether a Host header passes the port's check. A worker sends the error response."""
        from service.errors import ServiceError

        try:
            self._hosts.check((host or "").encode("latin-1"))
        except ServiceError:
            return False
        return True

    async def _respond(self, path: str, headers: dict[str, str], closes: bool) -> bytes:
        if path != METRICS:
            status = self._read_status()
            passed = status is Status.READY if path == "/readyz" else status is not Status.FAILED
            return _response(200 if passed else 503, json.dumps({"status": status.value}).encode(), closes=closes)
        accept, encodings = (headers.get(name, "") for name in ("accept", "accept-encoding"))
        body, rendered = await render_metrics(self._registry, accept, encodings)
        return _response(200, body, rendered, closes=closes)

    async def _relay(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay this request to a worker, then close the connection."""
        connection = next(self._connect(), None)
        if connection is None:
            writer.write(_response(503, json.dumps({"status": self._read_status().value}).encode(), closes=True))
            await writer.drain()
            return
        other_reader, other_writer = await asyncio.open_connection(sock=connection)
        other_writer.write(_closing(head))
        upload = asyncio.create_task(_copy(reader, other_writer))
        try:
            await _copy(other_reader, writer)
        finally:
            upload.cancel()
            other_writer.close()

    async def _describe_callers(self, head: bytes) -> bytes:
        """Return the callers, with counts summed over the workers, as an HTTP response."""
        fetched = await asyncio.gather(
            *(_fetch(connection, head) for connection in self._connect()), return_exceptions=True
        )
        # The others have just ended.
        responses = [response for response in fetched if isinstance(response, bytes) and _is_complete(response)]
        if not responses:
            return _response(503, json.dumps({"status": self._read_status().value}).encode(), closes=True)
        if rejected := [response for response in responses if not response.startswith(b"HTTP/1.1 200 ")]:
            return rejected[0]
        callers: dict[str, dict[str, Any]] = {}
        for response in responses:
            for caller in json.loads(response.partition(b"\r\n\r\n")[2])["callers"]:
                total = callers.setdefault(caller["name"], caller)
                if total is not caller:
                    total |= {key: total[key] + caller[key] for key in total if key not in CALLER_TERMS}
                    total["retry_after_s"] = max(total["retry_after_s"], caller["retry_after_s"])
        return _response(200, json.dumps({"callers": list(callers.values())}).encode(), closes=True)


async def _fetch(connection: socket.socket, head: bytes) -> bytes:
    """Return the response to a request without a body."""
    reader, writer = await asyncio.open_connection(sock=connection)
    writer.write(_closing(head))
    try:
        async with asyncio.timeout(WORKER_TIMEOUT_S):
            return await reader.read()
    finally:
        writer.close()


def _is_complete(response: bytes) -> bool:
    head, _, body = response.partition(b"\r\n\r\n")
    size = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return size is not None and len(body) == int(size[1])


def _closing(head: bytes) -> bytes:
    """Return the request head with `Connection: close`."""
    lines = head[:-4].split(b"\r\n")
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in HOP_HEADERS]
    return b"\r\n".join([*kept, b"Connection: close"]) + b"\r\n\r\n"


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(COPY_BYTES):
        target.write(data)
        await target.drain()


def _response(status: int, body: bytes, headers: dict[str, str] | None = None, *, closes: bool) -> bytes:
    content = {} if status == 204 else {"content-type": "application/json", "content-length": str(len(body))}
    fields = content | (headers or {})
    if closes:
        fields["connection"] = "close"
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {REASONS[status]}\r\n{head}\r\n".encode("latin-1") + body


class Processes(Collector):
    """The standard `process_*` metrics, summed over the supervisor and its workers."""

    def __init__(self, list_workers: Callable[[], Sequence[int]]) -> None:
        self._list_workers = list_workers

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for pid in (os.getpid(), *self._list_workers()):
            for metric in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                total = families.setdefault(metric.name, metric)
                if total is metric:
                    continue
                before, sample = total.samples[0], metric.samples[0]
                combine = min if metric.name in ("process_start_time_seconds", "process_max_fds") else sum
                total.samples[0] = before._replace(value=combine((before.value, sample.value)))
        with contextlib.suppress(KeyError):
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)  # keeps the counter from decreasing
            cpu = families["process_cpu_seconds"].samples
            cpu[0] = cpu[0]._replace(value=cpu[0].value + ended.ru_utime + ended.ru_stime)
        return families.values()
