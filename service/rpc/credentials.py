"""TLS credentials of the gRPC server."""

import threading

import grpc

from service.tls import Credentials, Tls


def make_server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Create credentials that use the latest files for each new connection.

    gRPC requests the configuration before every handshake, and creates a new context for each configuration. TLS
    sessions therefore end when the files change.
    """
    sent = tls.credentials
    lock = threading.Lock()  # handshakes run in several threads

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal sent
        with lock:
            if sent is tls.credentials:
                return None  # unchanged
            sent = tls.credentials
            return _configuration(sent)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(sent), fetch, require_client_authentication=tls.requires_client_certificates
    )


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(credentials.key, credentials.cert)], credentials.client_ca)
