"""The images, built once per session, and their containers."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.artifact.files import Artifact
from tests.conftest import ROOT
from tests.deploy.replicas import free_ports
from tests.image.docker_host import Daemon, download_wheels

SERVER, RUNTIME, EXPORT = "attendant:0.1.0-cpu", "attendant-runtime:0.1.0-cpu", "attendant-export:0.1.0"
HARDENED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--memory=1g",
            "--memory-swap=1g", "--cpus=2")  # fmt: skip
READY_TIMEOUT_S = 60


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    for tool in ("dockerd", "debootstrap"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; make image-test installs it on Debian")
    started = Daemon()
    try:
        started.start()
    except RuntimeError as error:
        pytest.skip(f"dockerd does not run here: {error}")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def images(daemon: Daemon, default_artifact: Path) -> dict[str, str]:
    """The images by name: the server, the server without a model, and the exporter."""
    daemon.import_base()
    download_wheels("build", "cpu", "export")
    daemon.build(RUNTIME, "runtime")
    daemon.build(SERVER, "server", MODEL_DIGEST=Artifact.open(default_artifact).digest)
    daemon.build(EXPORT, "export")
    daemon.run("image", "prune", "--force", check=False)
    return {"server": SERVER, "runtime": RUNTIME, "export": EXPORT}


@dataclass
class Container:
    """A server container on the host network."""

    daemon: Daemon
    id: str
    rest: str
    grpc: str
    admin: str

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.admin}/readyz").status_code == 200:
                    return
            assert self.state["Running"], self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.daemon.run("inspect", "--format={{json .State}}", self.id).stdout)
        return state

    @property
    def log(self) -> str:
        result = self.daemon.run("logs", self.id)
        return result.stdout + result.stderr

    def stop(self) -> int:
        """Send SIGTERM, then SIGKILL after 45 s; return the exit status."""
        self.daemon.run("stop", "--time=45", self.id)
        return int(self.state["ExitCode"])


@contextlib.contextmanager
def container(daemon: Daemon, image: str, *flags: str, ready: bool = True, **options: object) -> Iterator[Container]:
    """Run a container with the restrictions in deploy/base; `options` are server options."""
    ports = dict(zip(("rest", "grpc", "admin"), free_ports(3), strict=True))
    values = {"host": "127.0.0.1", "admin_host": "127.0.0.1", **{f"{name}_port": port for name, port in ports.items()}}
    environment = [f"--env=ATTENDANT_{name.upper()}={value}" for name, value in (values | options).items()]
    started = daemon.run("run", "--detach", "--network=host", *HARDENED, *environment, *flags, image)
    rest, grpc, admin = (f"127.0.0.1:{port}" for port in ports.values())
    running = Container(daemon, started.stdout.strip(), f"http://{rest}", grpc, f"http://{admin}")
    try:
        if ready:
            running.wait_until_ready()
        yield running
    finally:
        daemon.run("rm", "--force", running.id)


def python_in(daemon: Daemon, image: str, code: str) -> str:
    flags = ("--rm", "--network=host", *HARDENED, "--entrypoint=python")
    return daemon.run("run", *flags, image, "-c", code).stdout.strip()


def run_pytest(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a separate process with these environment variables."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)
