"""Clients of a server with TLS: its CA, client certificates, and errors about the files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attendant_client import AsyncClient, AttendantError, Client, TlsFiles

from tests.certificates import CLIENT_USE, Identity
from tests.client.clients import KINDS, NO_RETRIES
from tests.conftest import RunningServer, start_server, stop_server

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
