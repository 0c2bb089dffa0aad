"""A server with TLS and client certificates: handshakes, and reloads under open connections."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.handshakes import LABELS
from tests.certificates import CLIENT_USE, Identity, Secret, client_context
from tests.conftest import PROCESSES, RunningServer, serving, wait_until

TIMEOUT_S = 20
SERVER_CA = Identity.make_ca("server CA")
CLIENT_CAS = [Identity.make_ca("client CA 1"), Identity.make_ca("client CA 2")]
CLIENTS = [ca.issue("client", use=CLIENT_USE) for ca in CLIENT_CAS]
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
REQUEST = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class TlsServer:
    """A server whose files can be replaced. `folder` is for the clients' files."""

    running: RunningServer
    secret: Secret
    folder: Path
    files: dict[str, bytes]

    def replace(self, **files: bytes) -> None:
        """Replace some files and wait until the server has read them."""
        before = self.reloads
        self.files |= files
        self.secret.write(**self.files)
        wait_until(lambda: self.reloads >= before + PROCESSES)

    @property
    def reloads(self) -> float:
        return sum(
            self.metric(f'attendant_reloads_total{{result="{result}",subject="tls"}}')
            for result in ("success", "error")
        )

    @property
    def failures(self) -> dict[str, float]:
        """The failed handshakes of REST by reason."""
        name = "attendant_tls_handshake_failures_total"
        return {reason: self.metric(f'{name}{{port="rest",reason="{reason}"}}') for reason in LABELS}

    def metric(self, name: str) -> float:
        """Return a value of the admin port, which requires no client certificate."""
        text = httpx.get(f"{self.running.admin}/metrics", verify=self.context(None)).text
        return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).rpartition(" ")[2])

    def context(self, client: int | None = 0, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        return client_context(SERVER_CA, self.folder, None if client is None else CLIENTS[client], version)

    def port(self, api: str) -> int:
        return int(self.running.grpc.rpartition(":")[2]) if api == "grpc" else urlsplit(self.running.rest).port or 0

    def open(
        self,
        api: str,
        context: ssl.SSLContext,
        session: ssl.SSLSession | None = None,
        name: str = "127.0.0.1",
    ) -> ssl.SSLSocket:
        """Connect and read the first bytes of a response, so that the server has checked the client certificate.

        Raises `ConnectionError` if it closes the connection instead. `name`: an IP address is sent without SNI.
        """
        context.set_alpn_protocols(["h2"] if api == "grpc" else ["h2", "http/1.1"])
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", self.port(api)), TIMEOUT_S))
            try:
                secure = stack.enter_context(context.wrap_socket(plain, server_hostname=name, session=session))
                if api == "rest":
                    respond(secure)
                elif not secure.recv(4096):
                    raise ConnectionError("closed")
            except ssl.SSLError as error:
                raise ConnectionError(error.reason) from None
            stack.pop_all()
        return secure

    def rejects(self, api: str, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> bool:
        try:
            self.open(api, context, session).close()
        except ConnectionError:
            return True
        return False

    @contextlib.contextmanager
    def channel(self, client: int = 0) -> Iterator[health_pb2_grpc.HealthStub]:
        identity = CLIENTS[client]
        credentials = grpc.ssl_channel_credentials(SERVER_CA.pem, identity.key_pem, identity.pem)
        with grpc.secure_channel(f"localhost:{self.port('grpc')}", credentials) as channel:
            yield health_pb2_grpc.HealthStub(channel)


@pytest.fixture(scope="module")
def server(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    """A server for all tests. Each one ends with valid files, and starts with the client CA that it needs."""
    folder = tmp_path_factory.mktemp("tls")
    identity = SERVER_CA.issue("server")
    files = {"cert": identity.pem, "key": identity.key_pem, "client_ca": CLIENT_CAS[0].pem}
    secret = Secret(folder / "secret", **files)
    with serving(model_dir=tiny_artifact, **{f"tls_{name}_file": secret.path(name) for name in files}) as running:
        yield TlsServer(running, secret, folder, files)


def respond(connection: ssl.SSLSocket) -> None:
    """Send a request and read the response. Raises `ConnectionError` if the server closes the connection instead."""
    connection.sendall(REQUEST)
    response = b""
    while not response.endswith(b"}"):
        part = connection.recv(4096)
        if not part:
            raise ConnectionError("closed")
        response += part
    assert response.startswith(b"HTTP/1.1 200")


def check(stub: health_pb2_grpc.HealthStub) -> int:
    return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status)


def test_handshakes(server: TlsServer) -> None:
    before = server.failures
    for api, protocol in (("rest", "http/1.1"), ("grpc", "h2")):
        for version in VERSIONS:
            for name in ("127.0.0.1", "localhost"):
                with server.open(api, server.context(version=version), name=name) as connection:
                    assert connection.selected_alpn_protocol() == protocol
                    assert connection.version() == version.name.replace("_", ".")
        assert server.rejects(api, server.context(None))
        assert server.rejects(api, server.context(1))
        old = server.context()
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        assert server.rejects(api, old)
        block_ciphers = server.context(version=ssl.TLSVersion.TLSv1_2)
        block_ciphers.set_ciphers("AES128-SHA:AES256-SHA256:ECDHE+AES128+SHA:ECDHE+AES256+SHA384:@SECLEVEL=0")
        assert server.rejects(api, block_ciphers)
    assert check_plain(server.port("rest")) == b""
    assert server.rejects("rest", ssl.create_default_context())  # the client does not trust the server's CA
    assert {reason: count - before[reason] for reason, count in server.failures.items()} == {
        "no_client_certificate": 1,
        "invalid_client_certificate": 1,
        "unsupported_by_client": 2,
        "not_tls": 1,
        "rejected_by_client": 1,
        "too_many": 0,
        "other": 0,
    }
    context = server.context(None)
    for path in ("/livez", "/readyz", "/metrics"):
        assert httpx.get(server.running.admin + path, verify=context).status_code == 200
    with server.channel() as stub:
        assert check(stub) == 1
    body = {"inputs": "money bank"}
    assert httpx.post(f"{server.running.rest}/v1/encode", json=body, verify=server.context()).status_code == 200
    assert server.running.rest.startswith("https://")
    assert "--cacert CA.pem --cert CLIENT.pem --key CLIENT.key" in server.running.ready_line


def check_plain(port: int) -> bytes:
    """Return the response to a request without TLS."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(REQUEST)
        with contextlib.suppress(ConnectionResetError):
            return connection.recv(100)
    return b""


def test_clients_of_a_removed_ca_are_rejected(server: TlsServer) -> None:
    """Sessions from before cannot be resumed, idle REST connections are closed, and the other CA's clients continue."""
    server.replace(client_ca=CLIENT_CAS[0].pem + CLIENT_CAS[1].pem)
    contexts = {(api, version): server.context(version=version) for api in ("rest", "grpc") for version in VERSIONS}
    sessions = {}
    for (api, version), context in contexts.items():
        with server.open(api, context) as connection:
            sessions[api, version] = connection.session
        with server.open(api, context, sessions[api, version]) as connection:
            assert connection.session_reused or api == "grpc" or PROCESSES > 1  # each worker has its own sessions
    idle = server.open("rest", server.context())
    server.replace(client_ca=CLIENT_CAS[1].pem)
    for (api, version), context in contexts.items():
        assert server.rejects(api, context, sessions[api, version]), (api, version)
        assert server.rejects(api, server.context(version=version)), (api, version)
        server.open(api, server.context(1, version)).close()
    assert idle.recv(1) == b""
    idle.close()
    server.replace(client_ca=CLIENT_CAS[0].pem)


def test_added_ca_keeps_connections(server: TlsServer) -> None:
    with server.open("rest", server.context()) as connection:
        server.replace(client_ca=CLIENT_CAS[0].pem + CLIENT_CAS[1].pem)
        respond(connection)
    assert not server.rejects("rest", server.context(1))
    assert not server.rejects("grpc", server.context(1))
    server.replace(client_ca=CLIENT_CAS[0].pem)


def test_renewal_keeps_connections(server: TlsServer) -> None:
    """New connections get the new certificate."""
    intermediate = SERVER_CA.issue("intermediate", is_ca=True)
    renewed = intermediate.issue("server")
    with server.channel() as stub, server.open("rest", server.context()) as connection:
        assert check(stub) == 1
        server.replace(cert=renewed.pem + intermediate.pem, key=renewed.key_pem)
        respond(connection)
        assert check(stub) == 1
    assert [peer_serial(server, api) for api in ("rest", "grpc")] == [renewed.serial] * 2


def peer_serial(server: TlsServer, api: str) -> str:
    """Return the serial number of the server's certificate."""
    with server.open(api, server.context()) as connection:
        certificate = connection.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])
