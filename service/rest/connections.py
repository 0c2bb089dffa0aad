"""Settings shared by all connections of a server: limits and the load shedder."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import Response

from service.connections import Network
from service.errors import ServiceError


@dataclass(frozen=True, slots=True)
class Rejection:
    """The response to a rejected request, and how long to stop reading from its connection, in seconds.

    `is_known`: whether the request had an accepted key.
    """

    response: Response
    pause_s: float = 0.0
    is_known: bool = True


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of the connections of a server.

    `max_connections`: None means no limit. `per_address`: the limit for one address, except for `proxies`.
    `on_rejected`: called with the error, request ID and address of each request rejected before it reaches the
    application. `on_closed`: called with the reason and the address when the server closes a connection. `root_path`:
    the prefix of the paths behind a proxy.
    """

    header_timeout_s: float
    max_connections: int | None = None
    per_address: int | None = None
    proxies: tuple[Network, ...] = ()
    stall_timeout_s: float = 30.0
    on_rejected: Callable[[ServiceError, str, str], None] = lambda error, request_id, address: None
    on_closed: Callable[[str, str], None] = lambda reason, address: None
    root_path: str = ""
