"""Replicas of the server on separate loopback addresses with the same ports, like the pods of a Deployment."""

import itertools
import os
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import RunningServer, start_server

EXIT_TIMEOUT_S = 40


class Replicas:
    """Starts replicas on new addresses. `stop_all` stops those that are still running."""

    def __init__(self, model_dir: Path, **options: object) -> None:
        # This provider starts in half the time of the default. With one thread per replica, they get equal shares of
        # the CPU.
        self._options = {"model_dir": model_dir, "provider": "cpu", "threads": 1, "access_log": "none"} | options
        # Processes use different addresses, so that tests can run in parallel.
        network = f"127.{os.getpid() >> 8 & 127}.{os.getpid() & 255}"
        self._addresses = (f"{network}.{number}" for number in itertools.count(1))
        self.rest_port, self.grpc_port, self.admin_port = free_ports(3)
        self.running: list[Replica] = []

    def start(self, **options: object) -> "Replica":
        address = next(self._addresses)
        server = start_server(
            host=address, admin_host=address,
            rest_port=self.rest_port, grpc_port=self.grpc_port, admin_port=self.admin_port,
            **self._options | options,
        )  # fmt: skip
        replica = Replica(address, server)
        self.running.append(replica)
        return replica

    @property
    def grpc_target(self) -> str:
        """A gRPC target with the addresses of all replicas, which is what a headless Service's name resolves to."""
        return "ipv4:" + ",".join(f"{replica.address}:{self.grpc_port}" for replica in self.running)

    def start_all(self, count: int, **options: object) -> list["Replica"]:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(lambda _: self.start(**options), range(count)))

    def stop(self, replica: "Replica") -> None:
        replica.server.process.terminate()
        _, log = replica.server.process.communicate(timeout=EXIT_TIMEOUT_S)
        assert replica.server.process.returncode == 0, log
        self.running.remove(replica)

    def kill(self, replica: "Replica") -> float:
        """Send SIGKILL; return the time when the process and its sockets are gone."""
        replica.server.process.kill()
        replica.server.process.communicate(timeout=EXIT_TIMEOUT_S)
        self.running.remove(replica)
        return time.monotonic()

    def stop_all(self) -> None:
        for replica in self.running:
            replica.server.process.kill()
            replica.server.process.communicate(timeout=EXIT_TIMEOUT_S)


class Replica:
    def __init__(self, address: str, server: RunningServer) -> None:
        self.address = address
        self.server = server

    def requests(self, api: str) -> int:
        """Return the number of successful requests according to the replica's metrics."""
        families = text_string_to_metric_families(httpx.get(f"{self.server.admin}/metrics", timeout=10).text)
        samples = next(family.samples for family in families if family.name == "attendant_requests")
        return round(sum(sample.value for sample in samples if self._is_success(sample.labels, api)))

    def metric(self, name: str, context: ssl.SSLContext) -> float:
        """Return a value of a replica with TLS, whose certificate is for another name; 0 if it does not exist yet."""
        context.check_hostname = False
        text = httpx.get(f"{self.server.admin}/metrics", timeout=10, verify=context).text
        return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)), 0)

    @staticmethod
    def _is_success(labels: dict[str, str], api: str) -> bool:
        return labels.get("api") == api and labels.get("code") in ("OK", "200")


@contextmanager
def run_replicas(model_dir: Path, **options: object) -> Iterator[Replicas]:
    """Yield replicas of a model, and stop them at the end of the block."""
    replicas = Replicas(model_dir, **options)
    try:
        yield replicas
    finally:
        replicas.stop_all()


def free_ports(count: int) -> list[int]:
    """Return ports that are free on all addresses."""
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports
