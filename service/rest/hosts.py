"""Host header check: protects a server on a loopback address against DNS rebinding."""

import ipaddress

from service.errors import HostNotAllowed, echo

LOCALHOST = "localhost"
MAX_ACCEPTED = 64


class HostCheck:
    """Accepts requests whose Host is allowed.

    A server on a loopback address accepts only loopback names and addresses. Otherwise, a web page could reach it
    through a domain name that resolves to the loopback address. Other servers accept every name unless a list is set.
    """

    def __init__(self, bind_host: str, allowed_hosts: str, remedy: str = "Add it to ATTENDANT_ALLOWED_HOSTS.") -> None:
        """Create a check for the address that the server listens on.

        `allowed_hosts` is a comma-separated list: `*.example.org` allows all names below example.org, `*` every name.
        """
        self._remedy = remedy
        names = {name.strip().lower() for name in allowed_hosts.split(",") if name.strip()}
        self._allowed = frozenset(names)
        self._suffixes = tuple(name.removeprefix("*") for name in names if name.startswith("*."))
        self._allows_loopback = is_loopback(bind_host)
        self._is_active = "*" not in names and (bool(names) or self._allows_loopback)
        self.accepted: set[bytes] = set()
        """Header values that have already been accepted."""

    def check(self, header: bytes) -> None:
        """Raise `HostNotAllowed` unless the header value is allowed."""
        host = header.decode("latin-1")
        name = host_name(host)
        is_allowed = name in self._allowed or (bool(self._suffixes) and name.endswith(self._suffixes))
        if self._is_active and not (is_allowed or (self._allows_loopback and is_loopback(name))):
            raise HostNotAllowed("not allowed", self._remedy, field="Host", actual=echo(host))
        if len(self.accepted) < MAX_ACCEPTED:
            self.accepted.add(header)


def host_name(host: str) -> str:
    """Return the name or address in a Host header, without port and brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Return whether a host is localhost or a loopback address."""
    if host == LOCALHOST or host.endswith(f".{LOCALHOST}"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
