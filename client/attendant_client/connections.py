"""Addresses, certificates and connection options, shared by the sync and async transports."""

import json
import os
import re
import ssl
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import grpc
import httpx

from attendant_client.errors import AttendantError
from attendant_client.retries import RetryPolicy, deadline_after
from attendant_client.types import ModelInfo

TIMEOUT_HEADER = "X-Request-Timeout-Ms"
HTTP_SCHEMES = ("http", "https")
GRPC_SCHEMES = ("grpc", "grpcs")
MAX_MESSAGE_BYTES = 256 * 2**20
ROUND_ROBIN: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
SERVICE_CONFIG = {**ROUND_ROBIN, "healthCheckConfig": {"serviceName": "attendant.v1.EncoderService"}}
"""Balance calls over all healthy addresses that the host name resolves to.

gRPC's default, pick_first, sends all calls of a channel to one server. There is no retryPolicy here, because its
attempts would multiply with the client's own retries (`RetryPolicy`).
"""
CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # The default of 30 s is too slow for a rollout that replaces two servers in that time.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # The default of 120 s would keep ignoring a restarted server, whereas the retries of a call span 2 s.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Detect a server that vanished without closing its connections, such as a lost node. The server allows one ping per
    # 10 s. By default, gRPC waits a minute for a response to its bandwidth pings, and sends no keepalive pings until
    # then.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
)
SLACK_S = 1.0
"""Extra wait in seconds beyond the request timeout, so that the server's own timeout response can arrive."""


FilePath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for https:// and grpcs://.

    A client reads them once. After a renewal, create another client.

    Attributes:
        ca: CAs to verify the server's certificate with. None selects public CAs.
        cert: Client certificate and its intermediates, if the server requires one.
        key: Unencrypted key of the client certificate.
    """

    ca: FilePath | None = None
    cert: FilePath | None = None
    key: FilePath | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: a client certificate requires cert and key. Set both.")

    def make_context(self) -> ssl.SSLContext:
        """Return a context for HTTP. Raises ValueError for invalid files."""
        try:
            context = httpx.create_ssl_context() if self.ca is None else ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password=bytes)  # None would prompt for a password
        except OSError as error:  # includes ssl.SSLError
            paths = ", ".join(os.fspath(path) for path in (self.ca, self.cert, self.key) if path is not None)
            raise ValueError(f"tls: {paths}: {error.strerror or error}. Check the files.") from None
        return context

    def make_channel_credentials(self) -> Any:
        """Return credentials for a gRPC channel. Raises ValueError for invalid files."""
        self.make_context()  # gRPC would report invalid files only as an unreachable server
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))


def _read(path: FilePath | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL; `target` is host:port for gRPC and the base URL for HTTP. `tls` is None without encryption.

    `channels` is the number of gRPC connections.
    """

    is_grpc: bool
    target: str
    tls: TlsFiles | None
    channels: int = 1

    @classmethod
    def parse(cls, url: str, tls: TlsFiles | None = None, channels: int = 1) -> "Address":
        """Parse an http://, https://, grpc:// or grpcs:// URL; raises ValueError for any other.

        Also raises ValueError for `tls` with an unencrypted URL, and for `channels` with REST.
        """
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in (*HTTP_SCHEMES, *GRPC_SCHEMES) and httpx.URL(url).host and parts.port != 0
        except (ValueError, httpx.InvalidURL):  # for example, an invalid port or a line break
            is_url = False
        if not is_url:
            raise ValueError(f"{url!r} is not a URL of http, https, grpc or grpcs, such as grpc://127.0.0.1:8081")
        is_secure = parts.scheme in ("https", "grpcs")
        if tls is not None and not is_secure:
            raise ValueError(f"tls: {parts.scheme}:// is not encrypted. Use https:// or grpcs://, or remove tls.")
        is_grpc = parts.scheme in GRPC_SCHEMES
        if is_grpc and (parts.path.strip("/") or parts.query or parts.username is not None):
            raise ValueError(
                "url: gRPC URLs have only a host and a port, such as grpc://127.0.0.1:8081. Remove the rest."
            )
        if parts.scheme == "grpc" and parts.port is None:  # gRPC's default is 443
            raise ValueError("url: grpc:// requires a port, such as grpc://127.0.0.1:8081. Add it.")
        if channels < 1 or (channels > 1 and not is_grpc):
            raise ValueError(f"channels: must be 1 for REST, and at least 1 for gRPC ({channels}). Change it.")
        target = parts.netloc if is_grpc else url.rstrip("/").removesuffix("/v1")  # as in OpenAI's base URL
        return cls(is_grpc, target, (tls or TlsFiles()) if is_secure else None, channels)

    def http_options(self, api_key: str | None) -> dict[str, Any]:
        """Return the options for an httpx client. Raises ValueError for an invalid key or TLS file."""
        if api_key is not None and httpx.URL(self.target).userinfo:  # httpx would send only the latter
            raise ValueError("url: user and password exclude an api_key. Remove them, or the key.")
        return {
            "base_url": self.target,
            "headers": authorization(api_key),
            "timeout": None,  # each request sets a timeout
            # For http://, skip loading CA certificates, which takes 20 ms.
            "verify": False if self.tls is None else self.tls.make_context(),
        }

    @property
    def channel_options(self) -> tuple[tuple[str, Any], ...]:
        """Return the options for a gRPC channel.

        A secure address may belong to a proxy. Health checks would reach only one of the servers behind it.
        """
        config = SERVICE_CONFIG if self.tls is None else ROUND_ROBIN
        # Otherwise, channels with equal options share one connection.
        own_connection = (("grpc.use_local_subchannel_pool", 1),) if self.channels > 1 else ()
        return (*CHANNEL_OPTIONS, *own_connection, ("grpc.service_config", json.dumps(config)))


def authorization(api_key: str | None) -> dict[str, str]:
    """Return the header with the API key, if any. Raises ValueError if the key is not valid in a header."""
    if api_key is None:
        return {}
    if not re.fullmatch("[!-~]+", api_key):
        raise ValueError("api_key: empty, or not printable ASCII without spaces. Remove spaces and line breaks.")
    return {"authorization": f"Bearer {api_key}"}


WRONG_ADDRESSES = {
    "illegal request line": "This is a gRPC port: use grpc://, or the REST port.",
    "http1.x server": "This is a REST port: use http://, or the gRPC port.",
    "WRONG_VERSION_NUMBER": "This port has no TLS: use http:// or grpc://.",
}
"""Substrings of library errors that indicate a server with a different protocol, and remedies."""


def unreachable(message: str) -> AttendantError:
    """Return the error for an unreachable server."""
    return AttendantError("UNAVAILABLE", "UNAVAILABLE", with_hint(message))


def with_hint(message: str) -> str:
    """Return a library's error message, with a hint if the server seems to use a different protocol."""
    hint = next((hint for part, hint in WRONG_ADDRESSES.items() if part in message), "")
    return f"{message.rstrip('.')}. {hint}" if hint else message


def timed_out(timeout_s: float | None) -> AttendantError:
    """Return the error for a response that did not arrive in time."""
    seconds = timeout_s and round(timeout_s, 3)
    return AttendantError("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", f"No response within {seconds} s.")


def closed() -> AttendantError:
    """Return the error for a call on a client that is closed."""
    return AttendantError("CANCELLED", "CANCELLED", "The client was closed.")


class BaseClient(ABC):
    """Base class of the clients: their options and deadlines. Clients cannot be copied."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float | None = 60.0,
        retries: RetryPolicy | None = None,
        tls: TlsFiles | None = None,
        channels: int = 1,
    ) -> None:
        """Create a client. Connections open on the first requests.

        Args:
            url: http://host:port or https:// for REST, grpc://host:port or grpcs:// for gRPC.
            api_key: Key that the server requires, if any: printable ASCII without spaces.
            timeout_s: Default timeout of a call in seconds, including retries. With None, only the server's
                limit applies, as with math.inf.
            retries: Retry policy.
            tls: CA and client certificate for https:// and grpcs://. None selects public CAs.
            channels: Number of gRPC connections, which take turns. A connection reaches one worker of the server.

        Raises:
            ValueError: The URL, the API key, a TLS file or the number of channels is not valid.
        """
        address = Address.parse(url, tls, channels)
        self._open(address, api_key)
        self._is_grpc = address.is_grpc
        self._timeout_s = timeout_s
        self._retries = retries or RetryPolicy()
        self._model: ModelInfo | None = None
        self._is_closed = False

    def __reduce__(self) -> NoReturn:
        """Reject copies, also to another process."""
        name = type(self).__name__
        raise TypeError(f"{name}: cannot be copied, because it has connections. Create another one.")

    @abstractmethod
    def _open(self, address: Address, api_key: str | None) -> None:
        """Create the transport."""

    def _deadline(self, timeout_s: float | None) -> float | None:
        return deadline_after(self._timeout_s if timeout_s is None else timeout_s)
