"""Several gRPC connections of one client."""

import asyncio
from pathlib import Path

import pytest
from attendant_client import AsyncClient, Client

from tests.conftest import serving, wait_until
from tests.service.test_supervisor import ESTABLISHED, port_of, sockets, worker_ids

CHANNELS = 4


def test_client_opens_a_connection_per_channel(tiny_artifact: Path) -> None:
    with serving(model_dir=tiny_artifact, workers=2) as server:
        port = port_of(server.grpc)

        def connections() -> int:
            return sum(sockets(pid, port, ESTABLISHED) for pid in worker_ids(server))

        with Client(f"grpc://{server.grpc}", channels=CHANNELS) as client:
            for _ in range(2 * CHANNELS):
                client.encode(["money bank grows"])
            assert connections() == CHANNELS
        wait_until(lambda: connections() == 0)
        with Client(f"grpc://{server.grpc}") as first, Client(f"grpc://{server.grpc}") as second:
            for client in (first, second):
                client.encode(["money bank grows"])
            assert connections() == 1  # channels with equal options share a connection

        async def encode() -> int:
            async with AsyncClient(f"grpc://{server.grpc}", channels=CHANNELS) as client:
                for _ in range(CHANNELS):
                    await client.encode(["money bank grows"])
                return connections()

        wait_until(lambda: connections() == 0)
        assert asyncio.run(encode()) == CHANNELS


@pytest.mark.parametrize(("url", "channels"), [("grpc://localhost:1", 0), ("http://localhost:1", 2)])
def test_invalid_number_of_channels_is_an_error(url: str, channels: int) -> None:
    with pytest.raises(ValueError, match=r"^channels: "):
        Client(url, channels=channels)
