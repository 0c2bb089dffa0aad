"""attendant-client's connections: channels, retries, wrong addresses and TLS."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from attendant_client import AsyncClient, AttendantError, Client, RetryPolicy, TlsFiles
from attendant_client.connections import CHANNEL_OPTIONS

from service.engine.model_loader import LoadedModel
from tests.certificates import CLIENT_USE, Identity
from tests.client.clients import KINDS, NO_RETRIES
from tests.conftest import RunningServer, serving, start_server, stop_server, wait_until
from tests.service.test_supervisor import ESTABLISHED, port_of, sockets, worker_ids
from tests.serving import ServiceThread

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


# attendant-client's retry policy: retryable errors, delays and limits.


def error(reason: str, retry_after_s: float | None = None) -> AttendantError:
    return AttendantError("RESOURCE_EXHAUSTED", reason, "full", retry_after_s=retry_after_s)


def test_delay_is_the_hint_of_the_server() -> None:
    delay = RetryPolicy().delay_s(error("QUEUE_FULL", 2.0), 1, None)
    assert delay is not None
    assert 2.0 <= delay <= 2.5


def test_delay_is_multiplied_by_4_without_a_hint() -> None:
    policy = RetryPolicy(max_attempts=9, initial_delay_s=0.1, max_delay_s=2.0)
    delays = [policy.delay_s(error("DRAINING"), attempt, None) or 0 for attempt in (1, 2, 3, 8)]
    for delay, expected in zip(delays, (0.1, 0.4, 1.6, 2.0), strict=True):
        assert expected <= delay <= 1.25 * expected


def test_attempts_last_longer_than_the_reconnection_of_grpc() -> None:
    """Otherwise, all attempts fail with the error of an earlier connection, although the server is back."""
    policy = RetryPolicy()
    delays = [policy.delay_s(error("UNAVAILABLE"), attempt, None) or 0 for attempt in range(1, policy.max_attempts)]
    backoff_s = dict(CHANNEL_OPTIONS)["grpc.max_reconnect_backoff_ms"] / 1000
    assert sum(delays) > 1.2 * backoff_s  # gRPC adds up to 20% jitter


@pytest.mark.parametrize("reason", ["INVALID_ARGUMENT", "TOO_LONG", "INTERNAL", "DEADLINE_EXCEEDED"])
def test_permanent_errors_are_not_retried(reason: str) -> None:
    assert RetryPolicy().delay_s(error(reason, 1.0), 1, None) is None


def test_last_attempt_is_not_retried() -> None:
    assert RetryPolicy(max_attempts=3).delay_s(error("QUEUE_FULL"), 3, None) is None


def test_error_is_not_retried_when_the_deadline_is_too_close() -> None:
    assert RetryPolicy().delay_s(error("QUEUE_FULL", 2.0), 1, time.monotonic() + 1) is None


# An address of another protocol, or with a path, is explained or corrected.


@pytest.fixture(scope="module")
def service(model: LoadedModel) -> Iterator[ServiceThread]:
    with ServiceThread(model) as running:
        yield running


@pytest.mark.parametrize(
    ("scheme", "port", "hint"),
    [
        ("http", "grpc", "This is a gRPC port: use grpc://, or the REST port."),
        ("grpc", "rest", "This is a REST port: use http://, or the gRPC port."),
        ("https", "rest", "This port has no TLS: use http:// or grpc://."),
        ("grpcs", "grpc", "This port has no TLS: use http:// or grpc://."),
    ],
)
def test_address_of_another_protocol_is_explained(service: ServiceThread, scheme: str, port: str, hint: str) -> None:
    url = f"{scheme}://{service.grpc if port == 'grpc' else service.rest.removeprefix('http://')}"
    with Client(url, timeout_s=3, retries=NO_RETRIES) as client, pytest.raises(AttendantError) as caught:
        client.model()
    assert caught.value.message.endswith(hint)

    async def call() -> None:
        async with AsyncClient(url, timeout_s=3, retries=NO_RETRIES) as client:
            await client.model()

    with pytest.raises(AttendantError) as caught:
        asyncio.run(call())
    assert caught.value.message.endswith(hint)


def test_base_url_of_openai_clients_is_accepted(service: ServiceThread) -> None:
    for path in ("/v1", "/v1/", "/"):
        with Client(service.rest + path) as client:
            assert client.embed(["a"]).shape == (1, 384)


@pytest.mark.parametrize(("path", "nearest"), [("/encode", "/v1/encode"), ("/model", "/v1/model")])
def test_missing_version_is_named(service: ServiceThread, path: str, nearest: str) -> None:
    message = httpx.post(service.rest + path, json={}).json()["error"]["message"]
    assert f"Did you mean {nearest}" in message


# Clients of a server with TLS: its CA, client certificates, and errors about the files.

SERVER_CA, CLIENT_CA = Identity.make_ca("server CA"), Identity.make_ca("client CA")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the server and of a client."""
    path = tmp_path_factory.mktemp("tls")
    for name, identity in {
        "server": SERVER_CA.issue("server"),
        "client": CLIENT_CA.issue("client", use=CLIENT_USE),
        "server_ca": SERVER_CA,
        "client_ca": CLIENT_CA,
    }.items():
        (path / f"{name}.pem").write_bytes(identity.pem)
        (path / f"{name}.key").write_bytes(identity.key_pem)
    (path / "encrypted.key").write_bytes(CLIENT_CA.encrypted_key_pem)
    return path


@pytest.fixture(scope="module")
def server(tiny_artifact: Path, folder: Path) -> Iterator[RunningServer]:
    running = start_server(
        model_dir=tiny_artifact,
        tls_cert_file=folder / "server.pem",
        tls_key_file=folder / "server.key",
        tls_client_ca_file=folder / "client_ca.pem",
    )
    yield running
    assert stop_server(running) == 0


def address(server: RunningServer, protocol: str) -> str:
    return server.rest if protocol == "http" else f"grpcs://{server.grpc}"


@pytest.mark.parametrize("kind", KINDS)
def test_client_sends_its_certificate(server: RunningServer, folder: Path, kind: str) -> None:
    make, protocol = KINDS[kind]
    tls = TlsFiles(ca=folder / "server_ca.pem", cert=str(folder / "client.pem"), key=folder / "client.key")
    with make(address(server, protocol), retries=NO_RETRIES, tls=tls) as client:
        assert client.embed(["money bank"]).shape[0] == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("files", [{}, {"ca": "server_ca.pem"}], ids=["unknown CA", "no certificate"])
def test_failed_handshake_is_unavailable(server: RunningServer, folder: Path, kind: str, files: dict[str, str]) -> None:
    make, protocol = KINDS[kind]
    tls = TlsFiles(**{name: folder / file for name, file in files.items()})
    with (
        make(address(server, protocol), retries=NO_RETRIES, tls=tls) as client,
        pytest.raises(AttendantError) as raised,
    ):
        client.embed(["money bank"], timeout_s=10)
    assert raised.value.code == "UNAVAILABLE"


@pytest.mark.parametrize("make", [Client, AsyncClient])
@pytest.mark.parametrize("url", ["https://a", "grpcs://a"])
@pytest.mark.parametrize(
    "files",
    [
        {"ca": "none.pem"},
        {"ca": "client.key"},
        {"cert": "client.pem", "key": "server.key"},
        {"cert": "client.pem", "key": "encrypted.key"},
    ],
    ids=["missing", "no CA", "mismatch", "encrypted"],
)
def test_invalid_file_is_rejected_at_once(make: Any, folder: Path, url: str, files: dict[str, str]) -> None:
    tls = TlsFiles(**{name: folder / file for name, file in files.items()})
    with pytest.raises(ValueError, match=r"^tls: .* Check the files\.$"):
        make(url, tls=tls)


def test_certificate_requires_its_key() -> None:
    with pytest.raises(ValueError, match="requires cert and key"):
        TlsFiles(cert="client.pem")


@pytest.mark.parametrize("make", [Client, AsyncClient])
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_files_require_an_encrypted_address(make: Any, folder: Path, scheme: str) -> None:
    with pytest.raises(ValueError, match=rf"^tls: {scheme}:// is not encrypted"):
        make(f"{scheme}://127.0.0.1:1", tls=TlsFiles(ca=folder / "server_ca.pem"))
