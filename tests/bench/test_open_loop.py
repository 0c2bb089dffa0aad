"""The open-loop sender against a server that never responds, or rejects."""

import asyncio
import os
from typing import cast

import numpy as np
import pytest

from tests.bench import open_loop
from tests.bench.load import GZIP
from tests.bench.open_loop import Sender, main_thread_s, request_of


class Replier(asyncio.Protocol):
    """Answers every request with the same bytes; records requests and open connections."""

    seen: list[bytes]
    opened: set["Replier"]

    def __init__(self, reply: bytes, seen: list[bytes], opened: set["Replier"], all_closed: asyncio.Event) -> None:
        self._reply, self.seen, self.opened, self.all_closed = reply, seen, opened, all_closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.opened.add(self)

    def data_received(self, data: bytes) -> None:
        self.seen.append(data)
        self._transport.write(self._reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.opened.discard(self)
        if not self.opened:
            self.all_closed.set()


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\n\r\nno"])
async def test_requests_leave_on_time_when_responses_are_missing_or_rejections(reply: bytes) -> None:
    seen: list[bytes] = []
    opened: set[Replier] = set()
    all_closed = asyncio.Event()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Replier(reply, seen, opened, all_closed), "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/encode"
        sender = Sender(url, [request_of(url, '{"inputs": "a"}', GZIP)])
        late = await sender.send_all(np.arange(1, 6) / 100)
        assert len(sender.unanswered()) == (0 if reply else 5)
        sender.close()
        async with asyncio.timeout(20):
            await all_closed.wait()
    assert not opened
    assert len(late) == len(seen) == 5
    assert [status for _, status, _, _ in sender.answers] == ([429] * 5 if reply else [])
    assert sender.failed == 0


async def test_connection_is_not_used_again_when_the_response_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would not answer on it: that is no failure of the server."""
    monkeypatch.setattr(open_loop, "LEFT_S", 0.2)
    seen: list[bytes] = []
    opened: set[Replier] = set()
    reply = b"HTTP/1.1 503 Unavailable\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno"
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Replier(reply, seen, opened, asyncio.Event()), "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/encode"
        sender = Sender(url, [request_of(url, '{"inputs": "a"}', GZIP)])
        await sender.send_all(np.arange(1, 6) / 100)
        assert not opened
        sender.close()
    assert (len(seen), len(sender.answers), sender.failed, sender.unanswered()) == (5, 5, 0, [])


def test_main_thread_time_grows_with_work() -> None:
    before = main_thread_s(os.getpid())
    while main_thread_s(os.getpid()) == before:
        sum(range(100_000))


def test_request_carries_its_headers() -> None:
    request = request_of("http://127.0.0.1:80/v1/encode", "{}", GZIP)
    assert request.startswith(b"POST /v1/encode HTTP/1.1\r\nhost: 127.0.0.1:80\r\n")
    assert b"\r\naccept-encoding: gzip, deflate\r\n" in request
    assert request.endswith(b"content-length: 2\r\n\r\n{}")
