"""TLS handshakes. Each uses the context of the latest files, their number is limited, and failures are counted."""

import logging
import ssl
import time
from typing import Any
from weakref import WeakSet

from service.metrics import Metrics

REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no_client_certificate",
    "CERTIFICATE_VERIFY_FAILED": "invalid_client_certificate",
    "HTTP_REQUEST": "not_tls",
    "WRONG_VERSION_NUMBER": "not_tls",
    "UNSUPPORTED_PROTOCOL": "unsupported_by_client",
    "NO_SHARED_CIPHER": "unsupported_by_client",
}
"""Metric labels by OpenSSL reason."""
ALERT = "_ALERT_"
"""Substring of OpenSSL's reasons for alerts sent by the client."""
REJECTED_BY_CLIENT, TOO_MANY, OTHER = "rejected_by_client", "too_many", "other"
LABELS = (*dict.fromkeys(REASONS.values()), REJECTED_BY_CLIENT, TOO_MANY, OTHER)
LOG_PERIOD_S = 1.0

log = logging.getLogger("attendant.tls")


class Connection(ssl.SSLObject):
    """A connection that `owner` counts as a handshake until the handshake ends or the connection is closed."""

    owner: "CurrentContext"

    def do_handshake(self) -> None:
        """Continue the handshake. Raises `ssl.SSLError` until it is complete."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError):  # incomplete, or the client disconnected
            raise
        except ssl.SSLError as error:
            self.owner.count_failure(label(error), describe(error))
            raise
        self.owner.handshakes.discard(self)


class CurrentContext(ssl.SSLContext):
    """An SSL context that delegates each new connection to the context of the latest files.

    A TLS session belongs to the context that it started in, so a client cannot resume a session from before a change.
    With `sni_callback`, sessions belong to the outer context, and clients of a removed CA could resume theirs.
    """

    current: ssl.SSLContext

    def __init__(self, protocol: int, port: str, metrics: Metrics, max_handshakes: int) -> None:
        """`port`: metric label. `max_handshakes`: limit on incomplete handshakes, separate from the server's limit."""
        super().__init__()
        self.handshakes: WeakSet[Connection] = WeakSet()
        self._port = port
        self._max_handshakes = max_handshakes
        self._failures = {reason: metrics.tls_handshake_failures.labels(port, reason) for reason in LABELS}
        self._log_at = 0.0

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Start a connection. Raises OSError, which closes the connection, if there are too many handshakes."""
        if len(self.handshakes) >= self._max_handshakes:
            self.count_failure(TOO_MANY, f"limit {self._max_handshakes}")
            raise ConnectionRefusedError("too many TLS handshakes")
        connection = self.current.wrap_bio(*args, **options)
        assert isinstance(connection, Connection)
        connection.owner = self
        self.handshakes.add(connection)
        return connection

    def count_failure(self, reason: str, description: str) -> None:
        """Count a failed handshake, and log it unless another failure was logged within `LOG_PERIOD_S`."""
        self._failures[reason].inc()
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + LOG_PERIOD_S
            log.warning("TLS handshake failed port=%s reason=%s error=%s", self._port, reason, description)


def label(error: ssl.SSLError) -> str:
    """Return the metric label of a failed handshake."""
    reason = error.reason or ""
    return REJECTED_BY_CLIENT if ALERT in reason else REASONS.get(reason, OTHER)


def describe(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in words, such as "certificate has expired"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    return (error.reason or str(error)).lower().replace("_", " ")
