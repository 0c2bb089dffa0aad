"""Throughput with other APIs and with a flooded second model (C15), with TLS and with traces (C20)."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from bench.load import GZIP, Answered, Load, bodies_file, run_wrk, started_wrk, wrk_result
from bench.project import encode_body, served_name
from bench.targets import Verdict, judge
from tests.certificates import Identity
from tests.conftest import RunningServer, serving

TEXTS = 32
FEW, MANY = 4, 64
"""Small and large number of connections."""
WARM_UP_S = 1.0
NATIVE = "native"


@dataclass(frozen=True)
class ApiFigures:
    """Requests per second of each API, one value per round."""

    per_second: dict[str, list[float]]
    failed: int

    def cost(self, api: str) -> float:
        """Return the median time per request relative to the native API in the same round."""
        pairs = zip(self.per_second[NATIVE], self.per_second[api], strict=True)
        return median(native / other for native, other in pairs)

    def verdicts(self) -> list[Verdict]:
        costs = [judge(f"cost_{api}", self.cost(api)) for api in self.per_second if api != NATIVE]
        return [*costs, judge("failed", self.failed, "TEI and OIP")]

    def describe(self) -> str:
        costs = ", ".join(f"{api} {self.cost(api):.2f}" for api in self.per_second if api != NATIVE)
        return f"time of W32 c={FEW} relative to the native API: {costs}"


def measure_apis(server: RunningServer, sentences: Sequence[str], seconds: float, rounds: int) -> ApiFigures:
    """Send the same texts through each API, alternating."""
    batches = [sentences[start : start + TEXTS] for start in range(0, len(sentences) - TEXTS, TEXTS)]
    infer = f"/v2/models/{served_name(server.rest)}/infer"
    requests: dict[str, tuple[str, Callable[[Sequence[str]], Any]]] = {
        NATIVE: ("/v1/encode", lambda texts: {"inputs": texts}),
        "tei": ("/embed", lambda texts: {"inputs": texts}),
        "oip": (infer, lambda texts: infer_body(texts, binary=False)),
        "oip_binary": (infer, lambda texts: infer_body(texts, binary=True)),
    }
    rates: dict[str, list[float]] = {api: [] for api in requests}
    failed = 0
    with ExitStack() as stack:
        loads = {
            api: Load(server.rest + path, FEW, stack.enter_context(bodies_file([make(b) for b in batches])))
            for api, (path, make) in requests.items()
        }
        for load in loads.values():
            run_wrk(load, WARM_UP_S)
        for _ in range(rounds):
            for api, load in loads.items():
                answered = run_wrk(load, seconds)
                rates[api].append(answered.per_second)
                failed += answered.failed
    return ApiFigures(rates, failed)


def infer_body(texts: Sequence[str], *, binary: bool) -> dict[str, Any]:
    """Return an Open Inference Protocol request for embeddings as JSON or as raw bytes."""
    return {
        "inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}],
        "outputs": [{"name": "pooled", "parameters": {"binary_data": binary}}],
    }


@dataclass(frozen=True)
class OptionFigures:
    """Requests per second without and with an option, one value per round. `name` selects the target."""

    name: str
    without: list[float]
    with_option: list[float]
    failed: int

    @property
    def share(self) -> float:
        """Return the median over the rounds of the rate with the option, relative to the rate without it."""
        return median(changed / plain for plain, changed in zip(self.without, self.with_option, strict=True))

    def verdicts(self) -> list[Verdict]:
        return [judge(self.name, self.share), judge("failed", self.failed, self.name)]

    def describe(self) -> str:
        return (
            f"W1 c={MANY} with {self.name} {median(self.with_option):.0f} texts/s, "
            f"without {median(self.without):.0f}, share {self.share:.3f}"
        )


def measure_option(
    name: str, server: RunningServer, other: RunningServer, sentences: Sequence[str], seconds: float, rounds: int
) -> OptionFigures:
    """Send the same texts to `server` and to `other`, which sets the option, in alternating order."""
    without: list[float] = []
    with_option: list[float] = []
    failed = 0
    with bodies_file([encode_body([text]) for text in sentences]) as bodies:
        pairs = [(server, without), (other, with_option)]
        for number in range(rounds):
            for target, rates in pairs[:: -1 if number % 2 else 1]:
                load = Load(f"{target.rest}/v1/encode", MANY, bodies, GZIP)
                run_wrk(load, WARM_UP_S)
                answered = run_wrk(load, seconds)
                rates.append(answered.per_second)
                failed += answered.failed
    return OptionFigures(name, without, with_option, failed)


@contextmanager
def serving_tls(model_dir: Path) -> Iterator[RunningServer]:
    """Serve with an ECDSA certificate inside a `with` block."""
    identity = Identity.make_ca("CA").issue("server")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("cert", identity.pem), ("key", identity.key_pem)):
            (Path(folder) / name).write_bytes(content)
            (Path(folder) / name).chmod(0o600)
        files = {"tls_cert_file": f"{folder}/cert", "tls_key_file": f"{folder}/key"}
        with serving(model_dir=model_dir, **files) as server:
            yield server


@contextmanager
def serving_traces(model_dir: Path) -> Iterator[RunningServer]:
    """Serve with a span for each request inside a `with` block, exported over HTTP to a receiver that discards them."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{receiver.server_port}"
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        with patch.dict(os.environ, variables), serving(model_dir=model_dir) as server:
            yield server
        receiver.shutdown()


class Receiver(BaseHTTPRequestHandler):
    """Accepts each request and ignores its body."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


FLOODED, OTHER = "flooded", "other"
FLOOD_CONNECTIONS = 16


@dataclass(frozen=True)
class ModelFigures:
    """Figures of W1 at 4 for one model, in pairs: alone, and alongside W32 at 16 for another model."""

    alone: list[Answered]
    beside: list[Answered]

    @property
    def tail_ratio(self) -> float:
        """Median ratio of the 99th percentiles."""
        return median(beside.p99_ms / alone.p99_ms for alone, beside in zip(self.alone, self.beside, strict=True))

    def verdicts(self) -> list[Verdict]:
        failed = sum(figure.failed for figure in (*self.alone, *self.beside))
        return [judge("models_tail", self.tail_ratio), judge("models_failed", failed)]

    def describe(self) -> str:
        alone, beside = (
            ", ".join(f"{figure.p99_ms:.0f}" for figure in figures) for figures in (self.alone, self.beside)
        )
        return f"W1 c={FEW} of one model: p99 {alone} ms alone, {beside} ms beside a flood of another one"


def measure_models(server: RunningServer, sentences: Sequence[str], seconds: float, rounds: int) -> ModelFigures:
    """Measure a server with two models in alternating rounds."""
    url = f"{server.rest}/v1/encode"
    starts = range(0, len(sentences) - TEXTS, TEXTS)
    flood_bodies = [{"inputs": sentences[start : start + TEXTS], "model": FLOODED} for start in starts]
    figures = ModelFigures([], [])
    with (
        bodies_file([{"inputs": [text], "model": OTHER} for text in sentences]) as single,
        bodies_file(flood_bodies) as flood,
    ):
        load = Load(url, FEW, single, GZIP)
        run_wrk(load, WARM_UP_S)
        for _ in range(rounds):
            figures.alone.append(run_wrk(load, seconds))
            with started_wrk(Load(url, FLOOD_CONNECTIONS, flood, GZIP), 2 * seconds + 5) as wrk:
                run_wrk(load, WARM_UP_S)
                figures.beside.append(run_wrk(load, seconds))
                wrk_result(wrk, stop=True)
    return figures
