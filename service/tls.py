"""TLS: the certificate, its key and the client CAs, reloaded when their files change."""

import asyncio
import contextlib
import logging
import re
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from service.config import ConfigError, Settings, read_option_file
from service.file_watch import FileWatch
from service.handshakes import Connection, CurrentContext
from service.metrics import Metrics

if TYPE_CHECKING:
    from cryptography import x509

CERT_OPTION = "ATTENDANT_TLS_CERT_FILE"
KEY_OPTION = "ATTENDANT_TLS_KEY_FILE"
CLIENT_CA_OPTION = "ATTENDANT_TLS_CLIENT_CA_FILE"
RELOAD_SUBJECT = "tls"
Contents = tuple[bytes, bytes, bytes | None]
"""The certificate, its key and the client CAs, if any."""
ALPN_PROTOCOLS = ("http/1.1",)
PEM_MARK = re.compile(rb"-----(BEGIN|END) [A-Z0-9 ]+-----")

log = logging.getLogger("attendant.tls")


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files. Without `client_ca`, clients need no certificate."""

    cert: Path
    key: Path
    client_ca: Path | None

    @classmethod
    def of(cls, settings: Settings) -> "TlsFiles | None":
        """Return the files that the options name; None without TLS. Raises `ConfigError` if an option is missing."""
        cert, key, client_ca = settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file
        if cert is None and key is None and client_ca is None:
            return None
        if cert is None:
            raise ConfigError(f"{CERT_OPTION}: required by the other TLS options. Set it.")
        if key is None:
            raise ConfigError(f"{KEY_OPTION}: required by {CERT_OPTION}. Set it.")
        return cls(cert, key, client_ca)

    def read(self) -> Contents:
        """Return the contents of the three files. Raises `ConfigError`."""
        client_ca = None if self.client_ca is None else read_option_file(CLIENT_CA_OPTION, self.client_ca)
        return read_option_file(CERT_OPTION, self.cert), read_option_file(KEY_OPTION, self.key), client_ca


@dataclass(frozen=True)
class Credentials:
    """Valid contents of the files, and the TLS contexts made from them.

    Attributes:
        cert: PEM of the certificate and its intermediates.
        key: PEM of the private key.
        client_ca: PEM of the client CAs, if client certificates are required.
        expiry: Earliest expiry by file: "server" and, if client certificates are required, "client_ca".
        client_cas: The client CAs, DER.
        context: Context that requires client certificates if there is a client CA.
        admin_context: Context that never requests them.
    """

    cert: bytes
    key: bytes
    client_ca: bytes | None
    expiry: dict[str, datetime]
    client_cas: frozenset[bytes]
    context: ssl.SSLContext
    admin_context: ssl.SSLContext

    @classmethod
    def load(cls, files: TlsFiles, contents: Contents) -> "Credentials":
        """Load the contents of the files. Raises a `ConfigError` that names the option, the file and the problem."""
        try:
            credentials = cls._check(files, *contents)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  # the errors of cryptography derive from no common class
            raise ConfigError(f"{CERT_OPTION}: cannot parse {files.cert} ({error}). Replace it.") from None
        if files.read() != contents:  # OpenSSL loads the files by path, so the context may be newer
            raise ConfigError(f"{CERT_OPTION}: {files.cert} changed while it was read. Try again.")
        return credentials

    @classmethod
    def _check(cls, files: TlsFiles, cert: bytes, key: bytes, client_ca: bytes | None) -> "Credentials":
        from cryptography.hazmat.primitives.serialization import Encoding

        chain = _parse_certificates(CERT_OPTION, files.cert, cert)
        _check_pair(files, chain[0], key)
        expiry = {"server": min(certificate.not_valid_after_utc for certificate in chain)}
        client_cas: frozenset[bytes] = frozenset()
        if files.client_ca is not None and client_ca is not None:
            cas = _parse_certificates(CLIENT_CA_OPTION, files.client_ca, client_ca)
            expiry["client_ca"] = min(certificate.not_valid_after_utc for certificate in cas)
            if max(certificate.not_valid_after_utc for certificate in cas) <= datetime.now(UTC):
                raise ConfigError(f"{CLIENT_CA_OPTION}: every CA in {files.client_ca} is expired. Add a valid one.")
            client_cas = frozenset(certificate.public_bytes(Encoding.DER) for certificate in cas)
        context = _make_context(files, client_cas)
        return cls(cert, key, client_ca, expiry, client_cas, context, _make_context(files, frozenset()))

    @property
    def contents(self) -> Contents:
        return self.cert, self.key, self.client_ca


class Tls:
    """The credentials in use. When the files change, existing connections keep their credentials."""

    def __init__(self, files: TlsFiles, metrics: Metrics, max_handshakes: int) -> None:
        """Load the files; raises `ConfigError`. `max_handshakes`: limit per port, except gRPC's."""
        self._files = files
        self._metrics = metrics
        self.context = CurrentContext(ssl.PROTOCOL_TLS_SERVER, "rest", metrics, max_handshakes)
        self.admin_context = CurrentContext(ssl.PROTOCOL_TLS_SERVER, "admin", metrics, max_handshakes)
        self._use(Credentials.load(files, files.read()))

    @property
    def requires_client_certificates(self) -> bool:
        return self._files.client_ca is not None

    def watch(self, on_removed_ca: Callable[[], None]) -> FileWatch[Contents]:
        """Return the watch that applies changes of the files.

        It calls `on_removed_ca` when a client CA is no longer trusted.
        """

        async def apply(contents: Contents) -> None:
            trusted = self.credentials.client_cas
            credentials = await asyncio.to_thread(Credentials.load, self._files, contents)
            self._use(credentials)
            expiry = " ".join(f"{name}_expires={time.isoformat()}" for name, time in credentials.expiry.items())
            log.info("TLS files reloaded %s", expiry)
            if trusted - credentials.client_cas:
                on_removed_ca()

        return FileWatch(RELOAD_SUBJECT, self._metrics, self.credentials.contents, self._files.read, apply)

    def _use(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.context.current, self.admin_context.current = credentials.context, credentials.admin_context
        for name, expiry in credentials.expiry.items():
            self._metrics.tls_expiry.labels(name).set(expiry.timestamp())
        with contextlib.suppress(OSError):  # replaced in the meantime
            if self._files.key.stat().st_mode & stat.S_IROTH:
                log.warning("TLS key is readable by every user option=%s path=%s", KEY_OPTION, self._files.key)


def _parse_certificates(option: str, path: Path, content: bytes) -> "list[x509.Certificate]":
    from cryptography import x509

    try:
        certificates = x509.load_pem_x509_certificates(content)
    except (ValueError, x509.InvalidVersion):
        certificates = []
    marks = [line.strip() for line in content.splitlines() if line.startswith(b"-")]
    is_cut = len(marks) % 2 > 0 or not all(map(PEM_MARK.fullmatch, marks))
    if not certificates or is_cut:
        raise ConfigError(f"{option}: no valid PEM certificates in {path}. Check the file.")
    return certificates


def _check_pair(files: TlsFiles, certificate: "x509.Certificate", content: bytes) -> None:
    """Raise `ConfigError` if the certificate cannot be used with this key now."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        key = load_pem_private_key(content, None)
    except TypeError:
        raise ConfigError(f"{KEY_OPTION}: {files.key} is encrypted. Decrypt it.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{KEY_OPTION}: no valid PEM key in {files.key}. Check the file.") from None
    # gRPC supports only these key types, its clients reject P-521, and OpenSSL loads curves that TLS cannot negotiate.
    is_supported_curve = isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1 | SECP384R1)
    if not (isinstance(key, RSAPrivateKey) or is_supported_curve):
        raise ConfigError(f"{KEY_OPTION}: the key in {files.key} is not RSA, P-256 or P-384. Use one of these types.")
    if key.public_key() != certificate.public_key():
        raise ConfigError(
            f"{KEY_OPTION}: {files.key} is not the key of the first certificate in {files.cert}. Replace one of them."
        )
    now = datetime.now(UTC)
    if certificate.not_valid_after_utc <= now:
        raise ConfigError(
            f"{CERT_OPTION}: {files.cert} expired on {certificate.not_valid_after_utc:%Y-%m-%d}. Renew it."
        )
    if certificate.not_valid_before_utc > now:
        start = certificate.not_valid_before_utc.isoformat()
        raise ConfigError(f"{CERT_OPTION}: {files.cert} is not valid before {start}. Check the clock.")
    try:
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}.intersection(uses):
        raise ConfigError(f"{CERT_OPTION}: {files.cert} is not for servers (extended key usage). Use another one.")


def _make_context(files: TlsFiles, client_cas: frozenset[bytes]) -> ssl.SSLContext:
    """Return a context that requires client certificates if there are client CAs. Raises `ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = Connection
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")  # for TLS 1.2; like gRPC, no CBC ciphers
    context.set_alpn_protocols(ALPN_PROTOCOLS)
    option, path = CERT_OPTION, str(files.cert)
    try:
        context.load_cert_chain(files.cert, files.key, password=bytes)  # bytes(): no password, rather than a prompt
        if client_cas:
            option, path = CLIENT_CA_OPTION, str(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate CA is enough, as in gRPC
            context.load_verify_locations(cadata=b"".join(client_cas))
    except ssl.SSLError as error:  # for example, the key is too short
        reason = (error.reason or str(error)).lower().replace("_", " ")
        raise ConfigError(f"{option}: OpenSSL rejects {path} ({reason}). Replace it.") from None
    except OSError as error:
        raise ConfigError(f"{CERT_OPTION}: cannot read {files.cert} ({error.strerror}). Check the path.") from None
    return context
