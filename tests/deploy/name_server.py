"""A DNS server for one name, mimicking cluster DNS for a headless Service: one address per ready pod."""

import socket
import struct
import threading
from collections.abc import Sequence
from typing import Self

NAME = "attendant-headless.attendant.svc.cluster.local"
TTL_S = 1
TYPE_A = 1
RESPONSE_FLAGS = 0x8580
"""An authoritative response without errors to a recursive query."""
NAME_POINTER = 0xC00C
"""Points to the name in the question."""


class NameServer:
    """Answers queries for any name inside a `with` block. Assign `addresses` to change the answer."""

    def __init__(self, addresses: Sequence[str] = ()) -> None:
        self.addresses = list(addresses)
        self.queries = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, name="name-server")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def target(self, port: int) -> str:
        """Return a gRPC target for a name and port, resolved by this server."""
        return f"dns://127.0.0.1:{self._socket.getsockname()[1]}/{NAME}:{port}"

    def _run(self) -> None:
        while query := self._socket.recvfrom(512):
            message, client = query
            if not message:
                return
            self._socket.sendto(self._answer(message), client)

    def _answer(self, query: bytes) -> bytes:
        end = query.index(b"\x00", 12) + 1  # end of the name
        (kind,) = struct.unpack_from("!H", query, end)
        addresses = self.addresses if kind == TYPE_A else []
        self.queries += kind == TYPE_A
        header = query[:2] + struct.pack("!HHHHH", RESPONSE_FLAGS, 1, len(addresses), 0, 0)
        records = [
            struct.pack("!HHHIH", NAME_POINTER, TYPE_A, 1, TTL_S, 4) + socket.inet_aton(address)
            for address in addresses
        ]
        return header + query[12 : end + 4] + b"".join(records)
