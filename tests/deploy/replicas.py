"""Replicas on separate loopback addresses with the same ports, like pods, and a real nginx in front of them."""

import itertools
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import RunningServer, start_server
from tests.deploy.conftest import find_tool

EXIT_TIMEOUT_S = 40


class Replicas:
    """Starts replicas on new addresses. `stop_all` stops those that are still running."""

    def __init__(self, model_dir: Path, **options: object) -> None:
        # This provider starts in half the time of the default. With one thread per replica, they get equal shares of
        # the CPU.
        self._options = {
            "model_dir": model_dir, "provider": "cpu", "threads": 1, "access_log": "none",
            "max_queue_ms": 30_000,  # on a busy machine, requests wait for seconds
        } | options  # fmt: skip
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


START_TIMEOUT_S = 10
ADDRESS = "127.0.0.1"
# `error timeout` is the default in nginx and ingress-nginx. A POST request is only passed to the next server if it has
# not been sent yet, because nginx cannot know whether it is idempotent.
CONFIG = """
user root;
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log notice;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream rest {{ {rest_servers} keepalive 16; }}
  upstream grpc {{ {grpc_servers} keepalive 16; }}
  server {{
    listen {address}:{rest_port};
    location / {{
      proxy_pass http://rest;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_next_upstream error timeout;
    }}
  }}
  server {{
    listen {address}:{grpc_port} http2;
    location / {{
      grpc_pass grpc://grpc;
      grpc_next_upstream error timeout;
    }}
  }}
}}
"""

# Like a Service's proxy, this balances connections, and open ones survive when their endpoint is removed.
TCP_CONFIG = """
user root;
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log notice;
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
events {{ worker_connections 512; }}
stream {{
  upstream rest {{ {rest_servers} }}
  upstream grpc {{ {grpc_servers} }}
  server {{ listen {address}:{rest_port}; proxy_pass rest; }}
  server {{ listen {address}:{grpc_port}; proxy_pass grpc; }}
}}
"""


class Nginx:
    """A running nginx. `endpoints` are the replicas behind it."""

    def __init__(self, folder: Path, replicas: Replicas, config: str = CONFIG) -> None:
        self._folder = folder
        self._template = config
        self._replicas = replicas
        self.address = ADDRESS
        self.rest_port, self.grpc_port = free_ports(2)
        self.rest = f"http://{ADDRESS}:{self.rest_port}"
        self.grpc = f"{ADDRESS}:{self.grpc_port}"
        self.endpoints: list[Replica] = []

    def start(self) -> None:
        """Start nginx and wait until it accepts connections."""
        self._write_config()
        command = [find_tool("nginx"), "-p", str(self._folder), "-c", str(self._config)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection((ADDRESS, self.rest_port), START_TIMEOUT_S).close()
                return
            except ConnectionRefusedError:
                assert self._process.poll() is None, self.log
                assert time.monotonic() < deadline, self.log
                time.sleep(0.05)

    def add(self, replica: Replica) -> None:
        """Add a replica, as when a pod becomes ready."""
        self.endpoints.append(replica)
        self._reload()

    def remove(self, replica: Replica) -> None:
        """Remove a replica, as when a pod is deleted."""
        self.endpoints.remove(replica)
        self._reload()

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=START_TIMEOUT_S)

    @property
    def log(self) -> str:
        path = self._folder / "error.log"
        return path.read_text() if path.exists() else ""

    @property
    def _config(self) -> Path:
        return self._folder / "nginx.conf"

    def _reload(self) -> None:
        self._write_config()
        self._process.send_signal(signal.SIGHUP)

    def _write_config(self) -> None:
        rest, grpc = self._replicas.rest_port, self._replicas.grpc_port
        config = self._template.format(
            folder=self._folder,
            address=ADDRESS,
            rest_port=self.rest_port,
            grpc_port=self.grpc_port,
            rest_servers=" ".join(f"server {replica.address}:{rest};" for replica in self.endpoints),
            grpc_servers=" ".join(f"server {replica.address}:{grpc};" for replica in self.endpoints),
        )
        self._config.write_text(config)


@contextmanager
def nginx_before(replicas: Replicas, folder: Path, config: str = CONFIG) -> Iterator[Nginx]:
    """Yield a running nginx in front of the running replicas."""
    nginx = Nginx(folder, replicas, config)
    nginx.endpoints = list(replicas.running)
    nginx.start()
    try:
        yield nginx
    finally:
        nginx.stop()
