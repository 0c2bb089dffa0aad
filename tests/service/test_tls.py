"""TLS: certificates, their rotation, and servers with client certificates."""

import asyncio
import contextlib
import gc
import logging
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
import uvloop
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from service.config import ConfigError, Settings
from service.handshakes import LABELS
from service.metrics import Metrics
from service.rest.protocol import ConnectionLimits
from service.tls import Tls, TlsFiles
from tests.certificates import CLIENT_USE, Identity, Secret, client_context
from tests.conftest import PROCESSES, RunningServer, serving, wait_until
from tests.service.rest.test_server import serving_tls

CA = Identity.make_ca("server CA")
CLIENT_CA = Identity.make_ca("client CA")
SERVER = CA.issue("server")
VERSION = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x22"
"""X.509 version 3 in DER, and a version that does not exist."""
VALID = {"cert": SERVER.pem, "key": SERVER.key_pem, "client_ca": CLIENT_CA.pem}


def make_files(folder: Path, **contents: bytes) -> tuple[Secret, TlsFiles]:
    secret = Secret(folder / "secret", **VALID | contents)
    return secret, TlsFiles(*(secret.path(name) for name in VALID))


def damage(identity: Identity, old: bytes, new: bytes) -> bytes:
    """Return the PEM of a certificate in which some bytes of its DER are replaced."""
    der = identity.certificate.public_bytes(Encoding.DER)
    assert old in der
    return ssl.DER_cert_to_PEM_cert(der.replace(old, new)).encode()


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def pair(identity: Identity) -> dict[str, bytes]:
    return {"cert": identity.pem, "key": identity.key_pem}


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["ECDSA", "RSA"],
)
def test_key_types_of_public_cas_are_accepted(
    tmp_path: Path, metrics: Metrics, key: ec.EllipticCurvePrivateKey
) -> None:
    _, files = make_files(tmp_path, **pair(CA.issue("server", key=key)))
    assert Tls(files, metrics, 10).requires_client_certificates


def test_expiry_is_the_earliest_in_each_file(tmp_path: Path, metrics: Metrics) -> None:
    intermediate = CA.issue("intermediate", is_ca=True, days=3)
    server = intermediate.issue("server", days=30)
    _, files = make_files(
        tmp_path,
        cert=server.pem + intermediate.pem,
        key=server.key_pem,
        client_ca=CLIENT_CA.pem + Identity.make_ca("old", days=-1).pem,
    )
    tls = Tls(files, metrics, 10)
    for name, days in (("server", 3), ("client_ca", -1)):
        expiry = tls.credentials.expiry[name]
        value = sample(metrics, "attendant_tls_certificate_expiry_timestamp_seconds", certificate=name)
        assert value == expiry.timestamp()
        assert abs((expiry - SERVER.certificate.not_valid_after_utc).days + 30 - days) <= 1


@pytest.mark.parametrize(
    ("contents", "message"),
    {
        "empty certificate": ({"cert": b""}, "CERT_FILE: no valid PEM certificates in "),
        "half-written certificate": ({"cert": SERVER.pem[:300]}, "CERT_FILE: no valid PEM certificates in "),
        "half-written chain": ({"cert": SERVER.pem + CA.pem[:300]}, "CERT_FILE: no valid PEM certificates in "),
        "unknown version": ({"cert": damage(SERVER, *VERSION)}, "CERT_FILE: no valid PEM certificates in "),
        "CA of an unknown version": (
            {"client_ca": damage(CLIENT_CA, *VERSION)},
            "CLIENT_CA_FILE: no valid PEM certificates in ",
        ),
        "unsupported kind of name": (
            {"cert": damage(SERVER, b"\x87\x04\x7f", b"\xa3\x04\x7f")},
            "CERT_FILE: cannot parse .* Replace it",
        ),
        "DER": ({"cert": b"\x30\x82\x01"}, "CERT_FILE: no valid PEM certificates in "),
        "empty key": ({"key": b""}, "KEY_FILE: no valid PEM key in "),
        "half-written key": ({"key": SERVER.key_pem[:100]}, "KEY_FILE: no valid PEM key in "),
        "swapped": ({"cert": SERVER.key_pem, "key": SERVER.pem}, "CERT_FILE: no valid PEM certificates in "),
        "encrypted": ({"key": SERVER.encrypted_key_pem}, r"KEY_FILE: .* is encrypted\. Decrypt it\."),
        "mismatch": ({"key": CA.issue("other").key_pem}, r"KEY_FILE: .* is not the key of the first certificate in "),
        "chain first": ({"cert": CA.pem + SERVER.pem}, r"KEY_FILE: .* is not the key of the first certificate in "),
        "expired": (pair(CA.issue("old", days=-1)), r"CERT_FILE: .* expired on \d{4}-\d\d-\d\d\. Renew it\."),
        "not yet valid": (
            pair(CA.issue("new", age_days=-1)),
            r"CERT_FILE: .* is not valid before .* Check the clock\.",
        ),
        "for clients": (pair(CA.issue("client", use=CLIENT_USE)), "CERT_FILE: .* is not for servers"),
        "Ed25519": (
            pair(CA.issue("server", key=ed25519.Ed25519PrivateKey.generate())),
            "KEY_FILE: .* is not RSA, P-256 or P-384",
        ),
        "a curve without a TLS signature scheme": (
            pair(CA.issue("server", key=ec.generate_private_key(ec.SECP256K1()))),
            "KEY_FILE: .* is not RSA, P-256 or P-384",
        ),
        "short RSA key": (
            pair(CA.issue("server", key=rsa.generate_private_key(65537, 1024))),
            r"CERT_FILE: OpenSSL rejects .* \(ee key too small\)",
        ),
        "half-written CA": (
            {"client_ca": CLIENT_CA.pem + CA.pem[:300]},
            "CLIENT_CA_FILE: no valid PEM certificates in ",
        ),
        "CA with a damaged name": (
            {"client_ca": damage(CLIENT_CA, b"client CA", b"client\xc3CA")},
            "CLIENT_CA_FILE: OpenSSL rejects .*client_ca ",
        ),
        "no CA": ({"client_ca": b"# none yet\n"}, "CLIENT_CA_FILE: no valid PEM certificates in "),
        "expired CA": (
            {"client_ca": Identity.make_ca("old", days=-1).pem},
            "CLIENT_CA_FILE: every CA in .* is expired",
        ),
    }.values(),
)
def test_invalid_files_are_rejected(tmp_path: Path, metrics: Metrics, contents: dict[str, bytes], message: str) -> None:
    _, files = make_files(tmp_path, **contents)
    with pytest.raises(ConfigError) as raised:
        Tls(files, metrics, 10)
    assert re.match(f"ATTENDANT_TLS_{message}", str(raised.value))
    assert "\n" not in str(raised.value)


def test_chain_that_is_cut_within_a_certificate_is_rejected(tmp_path: Path, metrics: Metrics) -> None:
    """Also within the first line of a certificate: without its intermediate, clients would reject the server."""
    intermediate = CA.issue("intermediate", is_ca=True)
    server = intermediate.issue("server")
    chain = server.pem + intermediate.pem
    for end in range(len(server.pem) + 1, len(chain) - 1):
        _, files = make_files(tmp_path / str(end), cert=chain[:end], key=server.key_pem)
        with pytest.raises(ConfigError, match="CERT_FILE: no valid PEM certificates in "):
            Tls(files, metrics, 10)


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"tls_cert_file": "a"}, "KEY"),
        ({"tls_key_file": "a"}, "CERT"),
        ({"tls_client_ca_file": "a"}, "CERT"),
    ],
)
def test_incomplete_options_are_rejected(options: dict[str, Any], missing: str) -> None:
    with pytest.raises(ConfigError, match=rf"^ATTENDANT_TLS_{missing}_FILE: required by "):
        TlsFiles.of(Settings(**options))


def test_reload_uses_the_new_folder_behind_a_link(tmp_path: Path, metrics: Metrics) -> None:
    secret, files = make_files(tmp_path)
    tls = Tls(files, metrics, 10)
    watch = tls.watch(lambda: None)
    before = tls.context.current
    asyncio.run(watch.check())
    assert tls.context.current is before
    renewed = CA.issue("server", days=90)
    secret.write(**VALID | pair(renewed))
    asyncio.run(watch.check())
    assert tls.credentials.cert == renewed.pem
    assert tls.context.current is not before
    assert sample(metrics, "attendant_reloads_total", subject="tls", result="success") == 1
    assert sample(metrics, "attendant_reloads_total", subject="tls", result="error") == 0


@pytest.mark.parametrize(
    "contents",
    {
        "mismatch": {"key": CA.issue("other").key_pem},
        "expired": pair(CA.issue("old", days=-1)),
        "half-written": {"cert": SERVER.pem[:400]},
        "CA removed by mistake": {"client_ca": b""},
    }.values(),
)
def test_invalid_reload_keeps_the_credentials_and_is_reported_once(
    tmp_path: Path, metrics: Metrics, caplog: pytest.LogCaptureFixture, contents: dict[str, bytes]
) -> None:
    secret, files = make_files(tmp_path)
    tls = Tls(files, metrics, 10)
    watch = tls.watch(lambda: None)
    credentials, current = tls.credentials, tls.context.current
    secret.write(**VALID | contents)
    for _ in range(3):
        asyncio.run(watch.check())
    assert (tls.credentials, tls.context.current) == (credentials, current)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith("reload failed, nothing changes subject=tls error=ATTENDANT_")
    assert sample(metrics, "attendant_reloads_total", subject="tls", result="error") == 1
    assert sample(metrics, "attendant_reload_failing", subject="tls") == 1
    secret.write(**VALID)
    asyncio.run(watch.check())
    assert sample(metrics, "attendant_reload_failing", subject="tls") == 0
    assert tls.credentials is credentials


@pytest.mark.parametrize(("mode", "warnings"), [(0o440, 0), (0o444, 1)])
def test_readable_key_is_a_warning(
    tmp_path: Path, metrics: Metrics, caplog: pytest.LogCaptureFixture, mode: int, warnings: int
) -> None:
    secret, files = make_files(tmp_path)
    secret.path("key").chmod(mode)
    Tls(files, metrics, 10)
    assert [record.getMessage().partition(" option=")[0] for record in caplog.records] == [
        "TLS key is readable by every user"
    ] * warnings


def test_handshakes_are_limited_until_they_are_complete(
    tmp_path: Path, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    """A closed or failed one no longer counts. Like the server, this runs on uvloop, which leaves no cycles."""
    _, files = make_files(tmp_path)
    context = Tls(files, metrics, max_handshakes=2).admin_context
    client = client_context(CA, tmp_path)

    async def until(count: int) -> None:
        async with asyncio.timeout(20):
            while len(context.handshakes) != count:  # noqa: ASYNC110  # nothing reports the end of a handshake
                await asyncio.sleep(0.01)

    async def connect_all() -> None:
        async with serving_tls(ConnectionLimits(20), context) as address:
            writers = []
            for data in (b"", b"GET / HTTP/1.1\r\n\r\n"):
                _, writer = await asyncio.open_connection(*address, ssl=client)
                incomplete = [(await asyncio.open_connection(*address))[1] for _ in range(2)]
                await until(2)
                with pytest.raises(ConnectionError):
                    await asyncio.open_connection(*address, ssl=client)
                for other in incomplete:
                    other.write(data) if data else other.close()
                await until(0)
                writers += [writer, *incomplete]
            for writer in writers:
                writer.close()

    gc.disable()
    try:
        uvloop.run(connect_all())
    finally:
        gc.enable()
    for reason, count in (("too_many", 2), ("not_tls", 2), ("other", 0)):
        assert sample(metrics, "attendant_tls_handshake_failures_total", port="admin", reason=reason) == count
    lines = [record.getMessage() for record in caplog.records if record.name == "attendant.tls"]
    assert lines[0] == "TLS handshake failed port=admin reason=too_many error=limit 2"
    assert len(lines) < 4  # at most one a second


@pytest.mark.parametrize("name", VALID)
def test_missing_file_is_rejected(tmp_path: Path, metrics: Metrics, name: str) -> None:
    secret, files = make_files(tmp_path)
    secret.path(name).unlink()
    with pytest.raises(ConfigError, match=rf"ATTENDANT_TLS_{name.upper()}_FILE: cannot read .* \(No such file"):
        Tls(files, metrics, 10)


# A server with TLS and client certificates: handshakes, and reloads under open connections.

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
