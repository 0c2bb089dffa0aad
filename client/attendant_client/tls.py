"""Certificates of encrypted connections."""

import os
import ssl
from dataclasses import dataclass
from typing import Any

import grpc
import httpx

FilePath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for https:// and grpcs://.

    A client reads them once. After a renewal, create another client.

    Attributes:
        ca: CAs that the server's certificate may come from. None selects public ones.
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
                context.load_cert_chain(self.cert, self.key, password=bytes)  # no password, rather than a prompt
        except OSError as error:  # ssl.SSLError too
            raise ValueError(f"tls: {_describe(self)}: {error.strerror or error}. Check the files.") from None
        return context

    def make_channel_credentials(self) -> Any:
        """Return credentials for a gRPC channel. Raises ValueError for invalid files."""
        self.make_context()  # gRPC would only report invalid files as an unreachable server
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))


def _read(path: FilePath | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()


def _describe(files: TlsFiles) -> str:
    return ", ".join(os.fspath(path) for path in (files.ca, files.cert, files.key) if path is not None)
