"""TLS credentials of the gRPC server."""

import threading

import grpc

from service.tls import Credentials, Tls


def make_server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return credentials that use the latest files for each new connection.

    gRPC asks before every handshake, and opens a new context for each configuration that it gets. So sessions end with
    the files that they began with.
    """
    sent = tls.credentials
    lock = threading.Lock()  # handshakes run in several threads

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal sent
        with lock:
            if sent is tls.credentials:
                return None  # no change
            sent = tls.credentials
            return _configuration(sent)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(sent), fetch, require_client_authentication=tls.requires_client_certificates
    )


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(credentials.key, credentials.cert)], credentials.client_ca)
