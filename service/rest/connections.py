"""Settings of all connections of a server: their limits, and the load shedder."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from starlette.responses import Response

from service.errors import ServiceError


@dataclass(frozen=True, slots=True)
class Rejection:
    """The response to a request, and for how long not to read the next one from its connection, in seconds."""

    response: Response
    pause_s: float = 0.0


class Shedder(Protocol):
    """Rejects requests before their task starts."""

    @property
    def near_capacity(self) -> Collection[object]:
        """While it is not empty, the server must pass every request to `try_reject`."""

    def try_reject(self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], body: bytes) -> Rejection | None:
        """Return the rejection; None to handle the request as usual."""


class NoLoadShedding:
    """Rejects nothing."""

    near_capacity = ()

    def try_reject(self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], body: bytes) -> Rejection | None:
        return None


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of the connections of a server.

    `max_connections`: None means no limit. `report`: called with the error and the request ID of each rejection in
    this module.
    """

    header_timeout_s: float
    max_connections: int | None = None
    report: Callable[[ServiceError, str], None] = lambda error, request_id: None
