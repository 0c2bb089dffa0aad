"""Peers: other servers of the same weights, each installed in its own environment under bench-peers/.

One that cannot be installed, does not start, or answers with wrong vectors is left out by name and reason, and the
bench goes on without it. They take part as they come, but for what makes their vectors right.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray

from model.source import SourceError, locate
from tests.bench.closed import Contestant
from tests.bench.load import ROOT, started

HOME = ROOT / "bench-peers"
HERE = Path(__file__).parent
TORCH = "torch==2.13.0"
INSTALL_TIMEOUT_S, PREPARE_TIMEOUT_S, START_TIMEOUT_S, STEP_S = 1800, 300, 180, 5
LEAST_COSINE = 0.999
MODEL_NAME = "peer"

Say = Callable[[str], None]
Paths = Mapping[str, str]


class PeerError(Exception):
    """Why a peer does not take part."""


@dataclass(frozen=True)
class Environment:
    """What is installed together."""

    name: str
    requirements: tuple[str, ...]

    @property
    def directory(self) -> Path:
        return HOME / self.name

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    def install(self, say: Say) -> None:
        """Unless these very requirements are there already. Raises `PeerError`."""
        wanted, marker = "\n".join(self.requirements), self.directory / "installed.txt"
        if marker.is_file() and marker.read_text() == wanted:
            return
        say(f"{self.name}: making an environment in {self.directory.relative_to(ROOT)}")
        log = HOME / f"{self.name}.install.log"
        _run([sys.executable, "-m", "venv", "--clear", str(self.directory)], log, INSTALL_TIMEOUT_S, say)
        pip = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
        _run([*pip, *self.requirements], log, INSTALL_TIMEOUT_S, say)
        marker.write_text(wanted)


INFINITY = Environment(
    "infinity",
    ("infinity-emb[server,torch,optimum]==0.0.77", "optimum==1.24.0", "transformers<4.50", "click<8.2", "numpy<2",
     "pandas<2.3", "pyarrow<20", "datasets<4", "onnx", TORCH),
)  # fmt: skip
SENTENCE_TRANSFORMERS = Environment("sentence-transformers", ("sentence-transformers", "fastapi", "uvicorn", TORCH))


@dataclass(frozen=True)
class Peer:
    """How one is run: `{bin}`, `{model}`, `{port}` and `{here}` are filled in; `prepare` runs before the first."""

    name: str
    environment: Environment
    command: tuple[str, ...]
    route: str
    prepare: tuple[str, ...] = ()
    prepared: str = ""
    """What `prepare` makes, under the model's directory."""
    model: str = ""

    def contestant(self, port: int) -> Contestant:
        return Contestant(self.name, f"http://127.0.0.1:{port}{self.route}", model=self.model)


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
    Peer(
        "st fastapi",
        SENTENCE_TRANSFORMERS,
        ("{bin}/python", "{here}/peer_server.py", "{model}", "{port}"),
        "/encode",
    ),
)


@contextmanager
def serving_peers(
    texts: Sequence[str], reference: NDArray[np.float32], say: Say
) -> Iterator[tuple[list[Contestant], dict[str, str]]]:
    """Those that are up and answer `texts` with vectors like `reference`, and why the others are not."""
    contestants: list[Contestant] = []
    reasons: dict[str, str] = {}
    with ExitStack() as stack:
        for peer in PEERS:
            try:
                contestant = _start(peer, stack, say)
                cosine = least_cosine(_vectors(contestant, texts), reference)
                if not cosine >= LEAST_COSINE:
                    raise PeerError(f"its vectors are wrong: least cosine {cosine:.5f}, wanted {LEAST_COSINE}")
            except (PeerError, SourceError, OSError, httpx.HTTPError, subprocess.TimeoutExpired) as error:
                reasons[peer.name] = str(error) or type(error).__name__
                say(f"{peer.name}: left out: {reasons[peer.name]}")
            else:
                say(f"{peer.name}: up, least cosine {cosine:.7f}")
                contestants.append(contestant)
        yield contestants, reasons


def least_cosine(found: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """NaN when the shapes differ or anything is not a number."""
    if found.shape != reference.shape:
        return float("nan")
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(reference, axis=1)
    return float(((found * reference).sum(axis=1) / lengths).min())


def _start(peer: Peer, stack: ExitStack, say: Say) -> Contestant:
    """Install, prepare and start; return when it answers. Its process ends with the stack."""
    HOME.mkdir(exist_ok=True)
    peer.environment.install(say)
    # A copy of its own: some write beside what they read.
    model = HOME / "models" / peer.name.replace(" ", "-")
    if not (model / "config.json").is_file():
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(locate("default").directory, model)
    port = _free_port()
    paths = {"bin": str(peer.environment.python.parent), "model": str(model), "port": str(port), "here": str(HERE)}
    log = HOME / f"{peer.name.replace(' ', '-')}.log"
    log.unlink(missing_ok=True)
    if peer.prepare and not (model / peer.prepared).is_file():
        say(f"{peer.name}: making {peer.prepared}")
        _run(_fill(peer.prepare, paths), log, PREPARE_TIMEOUT_S, say)
    say(f"{peer.name}: starting")
    out = stack.enter_context(log.open("a"))
    command = _fill(peer.command, paths)
    process = stack.enter_context(started(command, env=_environment(), stdout=out, stderr=subprocess.STDOUT))
    contestant = peer.contestant(port)
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise PeerError(f"it ended with {process.returncode}: {_last_line(log)}")
        try:
            if httpx.post(contestant.url, json=contestant.body(["ready?"]), timeout=10).is_success:
                return contestant
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise PeerError(f"it did not answer within {START_TIMEOUT_S} s: {_last_line(log)}")


def _vectors(contestant: Contestant, texts: Sequence[str]) -> NDArray[np.float32]:
    vectors: list[list[float]] = []
    with httpx.Client(timeout=60) as client:
        for at in range(0, len(texts), 16):
            found = client.post(contestant.url, json=contestant.body(texts[at : at + 16])).raise_for_status().json()
            vectors += [one["embedding"] for one in found["data"]] if "data" in found else found["vectors"]
    return np.array(vectors, dtype=np.float32)


def _environment() -> dict[str, str]:
    """Ours, without our own options; nothing is fetched and nothing is told to anybody."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("ATTENDANT_", "PYTHON"))}
    return ours | {
        "DO_NOT_TRACK": "1",
        "INFINITY_ANONYMOUS_USAGE_STATS": "0",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(HOME / "cache"),
        "TOKENIZERS_PARALLELISM": "false",
    }


def _fill(command: Sequence[str], paths: Paths) -> list[str]:
    return [word.format_map(paths) for word in command]


def _run(command: Sequence[str], log: Path, timeout_s: float, say: Say) -> None:
    """Run to the end, telling now and then how far it is. Raises `PeerError`."""
    begun = time.monotonic()
    with log.open("a") as out, started(command, env=_environment(), stdout=out, stderr=subprocess.STDOUT) as process:
        while True:
            try:
                status = process.wait(STEP_S)
                break
            except subprocess.TimeoutExpired:
                seconds = time.monotonic() - begun
                if seconds > timeout_s:
                    raise PeerError(f"it took more than {timeout_s:.0f} s: {_last_line(log)}") from None
                say(f"  {seconds:4.0f} s  {_last_line(log)[:80]}")
    if status:
        raise PeerError(f"{Path(command[0]).name} ended with {status}: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("WARNING")]
    return lines[-1] if lines else "no word of why"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
