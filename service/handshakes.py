"""TLS handshakes: each starts in the context of the latest files, their number is limited, failures are counted."""

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
"""Labels of OpenSSL's reasons."""
ALERT = "_ALERT_"
"""Part of OpenSSL's reasons for alerts that the client sent."""
REJECTED_BY_CLIENT, TOO_MANY, OTHER = "rejected_by_client", "too_many", "other"
LABELS = (*dict.fromkeys(REASONS.values()), REJECTED_BY_CLIENT, TOO_MANY, OTHER)
LOG_PERIOD_S = 1.0

log = logging.getLogger("attendant.tls")


class Connection(ssl.SSLObject):
    """A connection that counts as a handshake of `owner` until the handshake ends or the connection is closed."""

    owner: "CurrentContext"

    def do_handshake(self) -> None:
        """Continue the handshake. Raises `ssl.SSLError` until it is complete."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError):  # incomplete, or the client left
            raise
        except ssl.SSLError as error:
            self.owner.count_failure(label(error), describe(error))
            raise
        self.owner.handshakes.discard(self)


class CurrentContext(ssl.SSLContext):
    """A context that hands each new connection to the context of the latest files.

    A session belongs to the context that it began in, so a client cannot resume one from before a change. With
    `sni_callback`, sessions belong to the outer context: clients of a removed CA resumed theirs.
    """

    current: ssl.SSLContext

    def __init__(self, protocol: int, port: str, metrics: Metrics, max_handshakes: int) -> None:
        """`port`: label in metrics. `max_handshakes`: incomplete ones; a server's own limit counts the others only."""
        super().__init__()
        self.handshakes: WeakSet[Connection] = WeakSet()
        self._port = port
        self._max_handshakes = max_handshakes
        self._failures = {reason: metrics.tls_handshake_failures.labels(port, reason) for reason in LABELS}
        self._log_at = 0.0

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Start a connection. Raises OSError, which closes it, if there are too many handshakes."""
        if len(self.handshakes) >= self._max_handshakes:
            self.count_failure(TOO_MANY, f"limit {self._max_handshakes}")
            raise ConnectionRefusedError("too many TLS handshakes")
        connection = self.current.wrap_bio(*args, **options)
        assert isinstance(connection, Connection)
        connection.owner = self
        self.handshakes.add(connection)
        return connection

    def count_failure(self, reason: str, description: str) -> None:
        """Count a failed handshake, and log it unless another one was logged within `LOG_PERIOD_S`."""
        self._failures[reason].inc()
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + LOG_PERIOD_S
            log.warning("TLS handshake failed port=%s reason=%s error=%s", self._port, reason, description)


def label(error: ssl.SSLError) -> str:
    """Return the label of a failed handshake in metrics."""
    reason = error.reason or ""
    return REJECTED_BY_CLIENT if ALERT in reason else REASONS.get(reason, OTHER)


def describe(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in words, such as "certificate has expired"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    return (error.reason or str(error)).lower().replace("_", " ")
