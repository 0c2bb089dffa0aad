"""Cost of TLS (C20): W1 over 64 kept connections, relative to a server without encryption."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.load import GZIP, Load, bodies_file, run_wrk
from tests.bench.project import encode_body
from tests.bench.targets import Verdict, judge
from tests.certificates import Identity
from tests.conftest import RunningServer, start_server, stop_server

CONNECTIONS = 64
WARM_UP_S = 1.0


@dataclass(frozen=True)
class TlsFigures:
    """Requests per second without and with TLS, one value per round."""

    plain: list[float]
    tls: list[float]
    failed: int

    @property
    def share(self) -> float:
        """Return the median over the rounds of the rate with TLS, relative to the rate without it."""
        return median(tls / plain for plain, tls in zip(self.plain, self.tls, strict=True))

    def verdicts(self) -> list[Verdict]:
        return [judge("tls", self.share), judge("failed", self.failed, "TLS")]

    def describe(self) -> str:
        return (
            f"W1 c={CONNECTIONS} with TLS {median(self.tls):.0f} texts/s, without {median(self.plain):.0f}, "
            f"share {self.share:.3f}"
        )


def measure_tls(
    server: RunningServer,
    model_dir: Path,
    sentences: Sequence[str],
    seconds: float,
    rounds: int,
    progress: Callable[[str], None],
) -> TlsFigures:
    """Send the same texts to `server` and to one with TLS, alternating, each first in half of the rounds."""
    figures = TlsFigures([], [], 0)
    failed = 0
    with serving_tls(model_dir) as encrypted, bodies_file([encode_body([text]) for text in sentences]) as bodies:
        pairs = [(server, figures.plain), (encrypted, figures.tls)]
        for number in range(rounds):
            for target, rates in pairs[:: -1 if number % 2 else 1]:
                load = Load(f"{target.rest}/v1/encode", CONNECTIONS, bodies, GZIP)
                run_wrk(load, WARM_UP_S)
                answered = run_wrk(load, seconds)
                rates.append(answered.per_second)
                failed += answered.failed
    figures = TlsFigures(figures.plain, figures.tls, failed)
    progress(figures.describe())
    return figures


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
