"""The admin port of a server with several workers, before a worker is ready."""

import asyncio
import socket

import pytest
from prometheus_client import CollectorRegistry

from service.admin_port import AdminPort
from service.config import Settings
from service.lifecycle import Status


@pytest.mark.parametrize(("path", "status"), [("/livez", 200), ("/readyz", 503), ("/metrics", 200)])
async def test_head_gets_the_status_of_get_without_the_body(path: str, status: int) -> None:
    port = AdminPort(Settings(), CollectorRegistry(), lambda: Status.STARTING, lambda: iter(()))
    bound = socket.create_server(("127.0.0.1", 0))
    await port.start(bound, None)
    reader, writer = await asyncio.open_connection(*bound.getsockname())
    writer.write(f"OPTIONS {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    assert head == b"HTTP/1.1 204 No Content\r\nallow: GET, HEAD, OPTIONS\r\n\r\n"
    for method in ("HEAD", "GET"):
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        assert int(head.split(b" ")[1]) == status
    body = await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
    assert not body.startswith(b"HTTP")
    writer.close()
    await port.stop()
