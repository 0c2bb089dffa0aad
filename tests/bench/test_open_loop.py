"""The open-loop sender against servers that do not respond, reject, or close the connection."""

import asyncio
import os
import threading
import time
from typing import cast

import numpy as np
import pytest

from tests.bench import open_loop
from tests.bench.load import GZIP
from tests.bench.open_loop import Sender, main_thread_s, raw_request


class FixedResponseServer(asyncio.Protocol):
    """Responds to every request with the same bytes, and records requests and open connections."""

    received: list[bytes]
    opened: set["FixedResponseServer"]

    def __init__(
        self, response: bytes, received: list[bytes], opened: set["FixedResponseServer"], all_closed: asyncio.Event
    ) -> None:
        self._response, self.received, self.opened, self.all_closed = response, received, opened, all_closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.opened.add(self)

    def data_received(self, data: bytes) -> None:
        self.received.append(data)
        self._transport.write(self._response)

    def connection_lost(self, exc: Exception | None) -> None:
        self.opened.discard(self)
        if not self.opened:
            self.all_closed.set()


@pytest.mark.parametrize("response", [b"", b"HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\n\r\nno"])
async def test_requests_are_sent_on_time_when_responses_are_missing_or_rejections(
    response: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_loop, "RESPONSE_WAIT_S", 0.2)
    received: list[bytes] = []
    opened: set[FixedResponseServer] = set()
    all_closed = asyncio.Event()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: FixedResponseServer(response, received, opened, all_closed), "127.0.0.1", 0
    )
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/encode"
        sender = Sender(url, [raw_request(url, '{"inputs": "a"}', GZIP)])
        late = await sender.send_all(np.arange(1, 6) / 100)
        assert len(sender.unanswered()) == (0 if response else 5)
        sender.close()
        async with asyncio.timeout(20):
            await all_closed.wait()
    assert not opened
    assert len(late) == len(received) == 5
    assert [status for _, status, _, _ in sender.responses] == ([429] * 5 if response else [])
    assert sender.failed == 0


async def test_connection_is_not_reused_when_the_response_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reusing the connection would count as a server failure."""
    monkeypatch.setattr(open_loop, "RESPONSE_WAIT_S", 0.2)
    received: list[bytes] = []
    opened: set[FixedResponseServer] = set()
    response = b"HTTP/1.1 503 Unavailable\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno"
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: FixedResponseServer(response, received, opened, asyncio.Event()), "127.0.0.1", 0
    )
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/encode"
        sender = Sender(url, [raw_request(url, '{"inputs": "a"}', GZIP)])
        await sender.send_all(np.arange(1, 6) / 100)
        assert not opened
        sender.close()
    assert (len(received), len(sender.responses), sender.failed, sender.unanswered()) == (5, 5, 0, [])


def test_main_thread_time_grows_with_work_of_the_main_thread_only() -> None:
    def work() -> None:
        started = time.thread_time()
        while time.thread_time() < started + 0.2:
            sum(range(100_000))

    before = main_thread_s(os.getpid())
    other = threading.Thread(target=work)
    other.start()
    other.join()
    after_other = main_thread_s(os.getpid())
    work()
    assert after_other - before < 0.1
    assert 0.15 < main_thread_s(os.getpid()) - after_other < 0.4


def test_request_has_the_headers_of_the_load() -> None:
    request = raw_request("http://127.0.0.1:80/v1/encode", "{}", GZIP)
    assert request.startswith(b"POST /v1/encode HTTP/1.1\r\nhost: 127.0.0.1:80\r\n")
    assert b"\r\naccept-encoding: gzip, deflate\r\n" in request
    assert request.endswith(b"content-length: 2\r\n\r\n{}")
