"""Fixtures for all tests: the default model, a running server, and clients."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import hypothesis
import pytest

from service.config import Settings
from service.engine.model_loader import LoadedModel

# Deadlines would make tests fail on a busy machine.
hypothesis.settings.register_profile("attendant", deadline=None)
hypothesis.settings.load_profile("attendant")
# Shells start background jobs with SIGINT ignored, which processes of tests would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent
READY_TIMEOUT_S = 60
HANG_TIMEOUT_S = 60


@pytest.fixture(scope="session")
def default_artifact() -> Path:
    """The directory of the default model, which `make test` exports."""
    return ROOT / "models" / "all-MiniLM-L6-v2"


@pytest.fixture(scope="session")
def model(default_artifact: Path) -> LoadedModel:
    """The default model, loaded once."""
    return LoadedModel.load(Settings(model_dir=default_artifact))


@dataclass
class RunningServer:
    """A server in its own process, started like `attendant serve`."""

    process: subprocess.Popen[str]
    rest: str
    grpc: str
    admin: str
    ready_line: str

    @property
    def pid(self) -> int:
        return self.process.pid


def server_environment(**options: object) -> dict[str, str]:
    """Return the environment of the tests with free ports and these options, and without other options."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTENDANT_")}
    values = {"rest_port": 0, "grpc_port": 0, "admin_port": 0} | options
    return environment | {f"ATTENDANT_{name.upper()}": str(value) for name, value in values.items()}


def run_python(
    *arguments: str, stdin: str = "", environment: dict[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments until it exits."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment or server_environment(**options), input=stdin,
        capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False,
    )  # fmt: skip


def start_server(**options: object) -> RunningServer:
    """Start a server and wait for its ready line. After a timeout, fail the test with the log of the server."""
    process = subprocess.Popen(
        [sys.executable, "-m", "service", "serve"],
        cwd=ROOT,
        env=server_environment(**options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], READY_TIMEOUT_S)
    line = process.stdout.readline() if readable else ""
    if not line.startswith("ready: "):
        process.terminate()
        _, log = process.communicate(timeout=READY_TIMEOUT_S)
        pytest.fail(f"the server did not become ready: {line}{log}")
    words = line.replace(",", " ").replace(". Try:", " Try:").split()
    rest, grpc, admin = (words[words.index(name) + 1] for name in ("REST", "gRPC", "admin"))
    return RunningServer(process, rest, grpc, admin, line)


def stop_server(server: RunningServer) -> int:
    """Send SIGTERM and return the exit status."""
    server.process.terminate()
    server.process.communicate(timeout=READY_TIMEOUT_S)
    return server.process.returncode


@pytest.fixture(scope="session")
def server(default_artifact: Path) -> Iterator[RunningServer]:
    """A server for all tests, with the default model and options."""
    running = start_server(model_dir=default_artifact)
    yield running
    assert stop_server(running) == 0


@pytest.fixture(scope="session")
def rest(server: RunningServer) -> Iterator[httpx.Client]:
    """An HTTP client of the server."""
    with httpx.Client(base_url=server.rest, timeout=60) as client:
        yield client
