"""An HTTP/2 client that does what no gRPC client does."""

import socket

import h2.config
import h2.connection
from h2.settings import SettingCodes

PREFIX = b"\0"


class HostileClient:
    """A connection without TLS. Its window for responses is closed: the client never reads."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(20)
        self._http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._http.initiate_connection()
        self._http.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        self._stream = 1
        self._send()

    def call(self, method: str, message: bytes | None = None, *, reset: bool = False) -> None:
        """Start a call: without a message if it is None; `reset` ends it at once."""
        headers = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "localhost", "te": "trailers"}
        self._http.send_headers(self._stream, [*headers.items(), ("content-type", "application/grpc")])
        if message is not None:
            data = PREFIX + len(message).to_bytes(4, "big") + message
            self._http.send_data(self._stream, data, end_stream=True)
        if reset:
            self._http.reset_stream(self._stream)
        self._stream += 2
        self._send()

    def wait_until_closed(self) -> None:
        """Discard what the server sends, until it closes the connection."""
        while self._socket.recv(2**16):
            pass

    def close(self) -> None:
        self._socket.close()

    def _send(self) -> None:
        self._socket.sendall(self._http.data_to_send())
