"""Listening sockets of the servers, and errors that name the options of their addresses."""

import contextlib
import errno
import resource
import socket

from service.config import ConfigError, Settings


def format_address(host: str, port: int) -> str:
    """Return `host:port` as in a URL: with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(host: str, port: int, name: str) -> socket.socket:
    """Return a bound socket; raises `ConfigError` with one line that names the option."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4])
    except socket.gaierror:
        bound.close()
        raise ConfigError(f'{host_option(name)}: cannot resolve "{host}". Choose another address.') from None
    except OSError as error:
        bound.close()
        raise bind_error(name, host, port, error) from None
    return bound


def check_ports(settings: Settings) -> None:
    """Raise `ConfigError` if an address cannot be bound now."""
    for name, host, port in (
        ("REST", settings.host, settings.rest_port),
        ("gRPC", settings.host, settings.grpc_port),
        ("admin", settings.admin_host, settings.admin_port),
    ):
        bind(host, port, name).close()


def bind_error(name: str, host: str, port: int, error: OSError) -> ConfigError:
    """Return the error of an address that cannot be bound, with the option that causes it."""
    reason = f"cannot bind {format_address(host, port)} ({(error.strerror or 'address in use').lower()})"
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"{host_option(name)}: {reason}. Choose an address of this machine.")
    return ConfigError(f"ATTENDANT_{name.upper()}_PORT: {reason}. Choose another port.")


def host_option(name: str) -> str:
    """Return the option with the address of a server."""
    return "ATTENDANT_ADMIN_HOST" if name == "admin" else "ATTENDANT_HOST"


def raise_open_file_limit() -> None:
    """Allow as many open files as the hard limit does: the usual limit of 1024 is below `max_connections`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
