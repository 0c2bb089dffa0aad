"""Fixtures for all tests: the default model, a running server, and clients."""

import os

# Set before imports: on a busy machine, torch and NumPy threads that wait for each other are slow.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc
import selectors
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import httpx
import hypothesis
import pytest

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.shared_models import load_shared

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
"""Examples per property. `make test-slow` and `make fuzz` use more."""
# Deadlines would fail tests on a busy machine.
hypothesis.settings.register_profile("attendant", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.load_profile("attendant")
# Shells ignore SIGINT in background jobs, and test processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent
WORKERS = os.environ.get("SERVER_WORKERS", "1")
"""Workers of the servers that tests start without this option."""
PROCESSES = 1 if WORKERS == "1" else int(WORKERS) + 1
"""Processes of such a server that read its files."""
READY_TIMEOUT_S = 120
HANG_TIMEOUT_S = 60


LONGEST = (
    "tests/e2e/test_training.py",
    "tests/model/train/test_examples.py",
    "tests/model/test_export_cuda.py",
    "tests/e2e/test_attention_families.py",
    "tests/service/test_supervisor.py",
    "tests/service/test_app.py",
    "tests/service/test_worker_models.py",
    "tests/e2e/test_similarity.py",
    "tests/model/train/test_objectives.py",
    "tests/service/commands/test_compare.py",
    "tests/service/commands/test_attribution.py",
    "tests/service/engine/backends/",
    "tests/browser/",
    "tests/service/commands/",
    "tests/e2e/",
    "tests/model/",
    "tests/deploy/",
    "tests/client",
)
"""Paths with the longest tests, which run first so that all workers finish at the same time."""


def pytest_collection_finish() -> None:
    """Share exported graphs, and exclude the imported modules from garbage collections, which tests run."""
    if "model.export.graphs" in sys.modules:  # importing it takes seconds
        from tests.model.shared_graphs import share_graphs

        share_graphs()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each file, exclude what remains, too: shared models, and the modules that the tests have imported."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by `LONGEST`, and mark property tests, which `make test-slow` repeats with more examples."""
    places = {path: place for place, path in enumerate(LONGEST)}

    def rank(item: pytest.Item) -> int:
        return min((place for path, place in places.items() if item.nodeid.startswith(path)), default=len(places))

    items.sort(key=rank)
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.examples)


def skip_without(tool: str, remedy: str) -> NoReturn:
    """Skip a test if its tool is missing. With CI set, fail instead, because CI must have every tool."""
    message = f"{tool} is missing: {remedy}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def default_artifact() -> Path:
    """Directory of the default model, which `make test` exports."""
    return ROOT / "models" / "all-MiniLM-L6-v2"


@pytest.fixture(scope="session")
def tiny_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifact of a tiny BERT with random weights, which servers load in a fraction of a second; read-only."""
    from tests.model.conftest import export_tiny

    return export_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session", autouse=True)
def shared_models() -> Iterator[None]:
    """Load a model once per process, including in the commands under test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoadedModel, "load", load_shared)
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_certificates() -> Iterator[None]:
    """Read the machine's CA certificates once per process, not for every HTTP client, because that takes 25 ms."""

    @cache
    def read_public(file: str | None, directory: str | None) -> ssl.SSLContext:
        return httpx.create_ssl_context()

    def create(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is True and cert is None and trust_env:
            return read_public(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        return httpx.create_ssl_context(verify, cert, trust_env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", create)
        yield


@pytest.fixture(scope="session")
def model(default_artifact: Path) -> LoadedModel:
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
    """Return the tests' environment with free ports and these options, and no other options."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTENDANT_")}
    values = {"rest_port": 0, "grpc_port": 0, "admin_port": 0, "workers": WORKERS} | options
    return environment | {f"ATTENDANT_{name.upper()}": str(value) for name, value in values.items()}


def run_python(
    *arguments: str, stdin: str = "", environment: dict[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment or server_environment(**options), input=stdin,
        capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False,
    )  # fmt: skip


def start_server(*arguments: str, **options: object) -> RunningServer:
    """Start a server and wait for its ready line. On a timeout, fail the test with the server log.

    `module` is the one that serves, if not `service`.
    """
    module = str(options.pop("module", "service"))
    process = subprocess.Popen(
        [sys.executable, "-m", module, "serve", *arguments],
        cwd=ROOT,
        env=server_environment(**options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(READY_TIMEOUT_S) else ""
    if not line.startswith("ready: "):
        process.terminate()
        _, log = process.communicate(timeout=READY_TIMEOUT_S)
        pytest.fail(f"the server did not become ready: {line}{log}")
    return describe_server(process, line)


def describe_server(process: subprocess.Popen[str], line: str) -> RunningServer:
    """Return the server that has printed a ready line."""
    words = line.replace(",", " ").replace(". Try:", " Try:").split()
    rest, grpc, admin = (words[words.index(name) + 1] for name in ("REST", "gRPC", "admin"))
    return RunningServer(process, rest, grpc, admin, line)


def stop_server(server: RunningServer) -> int:
    server.process.terminate()
    server.process.communicate(timeout=READY_TIMEOUT_S)
    return server.process.returncode


def wait_until(holds: Callable[[], bool]) -> None:
    """Poll until a condition holds. Fails after `HANG_TIMEOUT_S`."""
    deadline = time.monotonic() + HANG_TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def serving(*arguments: str, **options: object) -> Iterator[RunningServer]:
    """Run a server inside a `with` block. It must end with status 0."""
    running = start_server(*arguments, **options)
    try:
        yield running
    finally:
        status = stop_server(running)
    assert status == 0


@pytest.fixture(scope="session")
def server(default_artifact: Path) -> Iterator[RunningServer]:
    """A server shared by all tests, with the default model and options."""
    with serving(model_dir=default_artifact) as running:
        yield running


@pytest.fixture(scope="session")
def rest(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.rest, timeout=60) as client:
        yield client
