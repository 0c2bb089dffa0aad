"""A real nginx in front of the replicas, with REST on one port and gRPC on another."""

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deploy.conftest import find_tool
from tests.deploy.replicas import Replica, Replicas, free_ports

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
