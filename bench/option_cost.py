"""Costs of TLS and of traces (C20): W1 over 64 kept connections, relative to a server without them."""

import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from unittest.mock import patch

from bench.load import GZIP, Load, bodies_file, run_wrk
from bench.project import encode_body
from bench.targets import Verdict, judge
from tests.certificates import Identity
from tests.conftest import RunningServer, start_server, stop_server

CONNECTIONS = 64
WARM_UP_S = 1.0


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
            f"W1 c={CONNECTIONS} with {self.name} {median(self.with_option):.0f} texts/s, "
            f"without {median(self.without):.0f}, share {self.share:.3f}"
        )


def measure_option(  # what is compared, and how long  # what is compared, and how long
    name: str,
    server: RunningServer,
    other: RunningServer,
    sentences: Sequence[str],
    seconds: float,
    rounds: int,
) -> OptionFigures:
    """Send the same texts to `server` and to `other`, which has the option; the one that is first alternates."""
    without: list[float] = []
    with_option: list[float] = []
    failed = 0
    with bodies_file([encode_body([text]) for text in sentences]) as bodies:
        pairs = [(server, without), (other, with_option)]
        for number in range(rounds):
            for target, rates in pairs[:: -1 if number % 2 else 1]:
                load = Load(f"{target.rest}/v1/encode", CONNECTIONS, bodies, GZIP)
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
        server = start_server(model_dir=model_dir, tls_cert_file=f"{folder}/cert", tls_key_file=f"{folder}/key")
        try:
            yield server
        finally:
            stop_server(server)


@contextmanager
def serving_traces(model_dir: Path) -> Iterator[RunningServer]:
    """Serve with a span for each request inside a `with` block, exported over HTTP to a receiver that discards them."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{receiver.server_port}"
        with patch.dict(os.environ, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf"):
            server = start_server(model_dir=model_dir)
        try:
            yield server
        finally:
            stop_server(server)
            receiver.shutdown()


class Receiver(BaseHTTPRequestHandler):
    """Accepts each request and ignores its body."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass
