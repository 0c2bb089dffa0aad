"""Peers: other servers with the same weights, installed in separate environments under bench-peers/.

A peer that cannot be installed, does not start, or returns wrong vectors is skipped, and the reason is reported. Peers
run with their default settings, except where correct vectors require others.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray

from bench.accuracy import min_cosine
from bench.closed_loop import System
from bench.load import ROOT, progress, started
from bench.project import checkpoint_directory

HOME = ROOT / "bench-peers"
HERE = Path(__file__).parent
TORCH = "torch==2.13.0"
INSTALL_TIMEOUT_S, PREPARE_TIMEOUT_S, START_TIMEOUT_S, STEP_S = 1800, 300, 180, 5
MIN_COSINE = 0.999
MODEL_NAME = "peer"

Paths = Mapping[str, str]


class PeerError(Exception):
    """Why a peer is skipped."""


@dataclass(frozen=True)
class Environment:
    """Packages that are installed together."""

    name: str
    requirements: tuple[str, ...]
    removed: tuple[str, ...] = ()
    """Dependencies that do not work with this torch version."""

    @property
    def directory(self) -> Path:
        return HOME / self.name

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    def install(self) -> None:
        """Install the requirements unless the same ones are installed already. Raises `PeerError`."""
        requirements, marker = (
            "\n".join((*self.requirements, *(f"not {name}" for name in self.removed))),
            self.directory / "installed.txt",
        )
        if marker.is_file() and marker.read_text() == requirements:
            return
        HOME.mkdir(exist_ok=True)
        progress(f"{self.name}: creating an environment in {self.directory.relative_to(ROOT)}")
        log = HOME / f"{self.name}.install.log"
        _run([sys.executable, "-m", "venv", "--clear", str(self.directory)], log, INSTALL_TIMEOUT_S)
        pip = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
        _run([*pip, *self.requirements], log, INSTALL_TIMEOUT_S)
        if self.removed:
            _run([str(self.python), "-m", "pip", "uninstall", "--yes", *self.removed], log, INSTALL_TIMEOUT_S)
        marker.write_text(requirements)


INFINITY = Environment(
    "infinity",
    ("infinity-emb[server,torch,optimum]==0.0.77", "optimum==1.24.0", "transformers<4.50", "click<8.2", "numpy<2",
     "pandas<2.3", "pyarrow<20", "datasets<4", "onnx", TORCH),
)  # fmt: skip
WEB = ("fastapi", "uvicorn")
SENTENCE_TRANSFORMERS = Environment("sentence-transformers", ("sentence-transformers", *WEB, TORCH))
# The two extras pin different versions of transformers.
ST_ONNX = Environment("st-onnx", ("sentence-transformers[onnx]", *WEB, TORCH))
# PyPI's torchvision requires torch with CUDA.
ST_OPENVINO = Environment("st-openvino", ("sentence-transformers[openvino]", *WEB, TORCH), removed=("torchvision",))
FASTEMBED = Environment("fastembed", ("fastembed", *WEB))


@dataclass(frozen=True)
class Peer:
    """A command with the placeholders bin, model, port and here. `prepare` runs before the first start."""

    name: str
    environment: Environment
    command: tuple[str, ...]
    route: str
    prepare: tuple[str, ...] = ()
    prepared: str = ""
    """File that `prepare` writes, relative to the model directory."""
    model: str = ""

    def system(self, port: int) -> System:
        return System(self.name, f"http://127.0.0.1:{port}{self.route}", model=self.model)


def _served(
    name: str, environment: Environment, engine: str, prepare: tuple[str, ...] = (), prepared: str = ""
) -> Peer:
    """Return a peer that runs `peer_server.py`."""
    command = ("{bin}/python", "{here}/peer_server.py", engine, "{model}", "{port}")
    return Peer(name, environment, command, "/encode", prepare, prepared)


INFINITY_COMMAND = (
    "{bin}/infinity_emb", "v2", "--model-id", "{model}", "--served-model-name", MODEL_NAME,
    "--device", "cpu", "--host", "127.0.0.1", "--port", "{port}", "--log-level", "warning", "--engine",
)  # fmt: skip
PEERS = (
    Peer(
        "infinity onnx",
        INFINITY,
        (*INFINITY_COMMAND, "optimum", "--pooling-method", "mean"),
        "/embeddings",
        prepare=("{bin}/python", "{here}/peer_export.py", "{model}", "{model}/onnx/model.onnx"),
        prepared="onnx/model.onnx",
        model=MODEL_NAME,
    ),
    Peer("infinity torch", INFINITY, (*INFINITY_COMMAND, "torch"), "/embeddings", model=MODEL_NAME),
    _served("st torch", SENTENCE_TRANSFORMERS, "torch"),
    _served("st onnx", ST_ONNX, "onnx"),
    _served("st openvino", ST_OPENVINO, "openvino"),
    # fastembed only reads ONNX, so an environment with torch exports the model.
    _served(
        "fastembed",
        FASTEMBED,
        "fastembed",
        prepare=(str(INFINITY.python), "{here}/peer_export.py", "{model}", "{model}/model.onnx"),
        prepared="model.onnx",
    ),
)


@contextmanager
def serving_peers(
    texts: Sequence[str], reference: NDArray[np.float64]
) -> Iterator[tuple[list[System], dict[str, str]]]:
    """Start the peers. Yield the ones whose vectors match `reference`, (N, D), and the reasons why others were
    skipped.
    """
    systems: list[System] = []
    reasons: dict[str, str] = {}
    with ExitStack() as stack:
        for peer in PEERS:
            try:
                system = _start(peer, stack)
                cosine = min_cosine(_vectors(system, texts), reference)
                if not cosine >= MIN_COSINE:
                    raise PeerError(f"wrong vectors: smallest cosine {cosine:.5f}, limit {MIN_COSINE}")
            except (PeerError, OSError, httpx.HTTPError, subprocess.TimeoutExpired) as error:
                reasons[peer.name] = str(error) or type(error).__name__
                progress(f"{peer.name}: skipped: {reasons[peer.name]}")
            else:
                progress(f"{peer.name}: up, smallest cosine {cosine:.7f}")
                systems.append(system)
        yield systems, reasons


def _start(peer: Peer, stack: ExitStack) -> System:
    """Install, prepare and start a peer, and wait until it responds. The exit stack stops its process."""
    HOME.mkdir(exist_ok=True)
    peer.environment.install()
    # Some peers write to the model directory, so each one gets a copy.
    model = HOME / "models" / peer.name.replace(" ", "-")
    if not (model / "config.json").is_file():
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(checkpoint_directory(), model)
    port = _free_port()
    paths = {"bin": str(peer.environment.python.parent), "model": str(model), "port": str(port), "here": str(HERE)}
    log = HOME / f"{peer.name.replace(' ', '-')}.log"
    log.unlink(missing_ok=True)
    if peer.prepare and not (model / peer.prepared).is_file():
        progress(f"{peer.name}: creating {peer.prepared}")
        _run(_fill(peer.prepare, paths), log, PREPARE_TIMEOUT_S)
    progress(f"{peer.name}: starting")
    out = stack.enter_context(log.open("a"))
    command = _fill(peer.command, paths)
    process = stack.enter_context(started(command, env=_environment(), stdout=out, stderr=subprocess.STDOUT))
    system = peer.system(port)
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise PeerError(f"exited with status {process.returncode}: {_last_line(log)}")
        try:
            if httpx.post(system.url, json=system.body(["ready?"]), timeout=10).is_success:
                return system
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise PeerError(f"no response within {START_TIMEOUT_S} s: {_last_line(log)}")


def _vectors(system: System, texts: Sequence[str]) -> NDArray[np.float64]:
    vectors: list[list[float]] = []
    with httpx.Client(timeout=60) as client:
        for at in range(0, len(texts), 16):
            response = client.post(system.url, json=system.body(texts[at : at + 16])).raise_for_status().json()
            vectors += response.get("vectors") or [item["embedding"] for item in response["data"]]
    return np.array(vectors, dtype=np.float64)


def _environment() -> dict[str, str]:
    """Return the environment without Attendant's options, and with downloads and usage reports disabled."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ATTENDANT_", "PYTHON"))}
    return environment | {
        "DO_NOT_TRACK": "1",
        "INFINITY_ANONYMOUS_USAGE_STATS": "0",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(HOME / "cache"),
        "TOKENIZERS_PARALLELISM": "false",
    }


def _fill(command: Sequence[str], paths: Paths) -> list[str]:
    return [word.format_map(paths) for word in command]


def _run(command: Sequence[str], log: Path, timeout_s: float) -> None:
    """Run a command and report its progress. Raises `PeerError`."""
    started_at = time.monotonic()
    with log.open("a") as out, started(command, env=_environment(), stdout=out, stderr=subprocess.STDOUT) as process:
        while True:
            try:
                status = process.wait(STEP_S)
                break
            except subprocess.TimeoutExpired:
                seconds = time.monotonic() - started_at
                if seconds > timeout_s:
                    raise PeerError(f"took more than {timeout_s:.0f} s: {_last_line(log)}") from None
                progress(f"  {seconds:4.0f} s  {_last_line(log)[:80]}")
    if status:
        raise PeerError(f"{Path(command[0]).name} exited with status {status}: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("WARNING")]
    return lines[-1] if lines else "the log is empty"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
