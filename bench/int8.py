"""C12: export of the int8 variant, and its speed and accuracy compared with float32."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.accuracy import Vectors, encode, min_cosine
from bench.closed_loop import BY_NAME, System, send
from bench.load import bodies_file
from bench.project import encode_body, export_int8
from bench.targets import Verdict, judge
from tests.conftest import start_server, stop_server

W32 = BY_NAME["W32"]


@dataclass(frozen=True)
class Int8Figures:
    """`digest` identifies the exported artifact and must be the same on all machines."""

    export_s: float
    digest: str
    rate: float
    float32_rate: float
    min_cosine: float
    min_cosine_alone: float
    texts: int

    def verdicts(self) -> list[Verdict]:
        return [
            judge("int8_rate", self.rate / self.float32_rate),
            judge("int8", self.min_cosine, f"{self.texts} texts"),
            judge("int8_alone", self.min_cosine_alone, f"{self.texts} texts"),
            judge("int8_export", self.export_s),
        ]

    def describe(self) -> str:
        return (
            f"int8: exported in {self.export_s:.0f} s, digest {self.digest[:16]}; W32 {self.rate:.0f} texts/s, "
            f"float32 {self.float32_rate:.0f}; smallest cosine {self.min_cosine:.5f}"
        )


def measure_int8(
    texts: Sequence[str], reference: Vectors, seconds: float, rounds: int, progress: Callable[[str], None]
) -> Int8Figures:
    """Export, serve int8 and float32, alternate W32 between them, and compare vectors with `reference`, (N, D)."""
    progress("exporting with int8")
    with tempfile.TemporaryDirectory(prefix="bench-int8-") as scratch:
        directory = Path(scratch) / "artifact"
        export_s = export_int8(directory)
        digest = (directory / "manifest.sha256").read_text().strip()
        servers = [start_server(model_dir=directory, precision=precision) for precision in ("int8", "float32")]
        try:
            groups = [texts[at : at + W32.texts] for at in range(0, len(texts) - W32.texts + 1, W32.texts)]
            rates: list[list[float]] = [[], []]
            with bodies_file([encode_body(group) for group in groups]) as bodies:
                for _ in range(rounds):
                    for place, server in enumerate(servers):
                        rates[place].append(send(W32, System.attendant(server), bodies, seconds).per_second * W32.texts)
            packed = encode(servers[0].rest, texts)
            alone = encode(servers[0].rest, texts, group=1, clients=1)
        finally:
            for server in servers:
                stop_server(server)
    rate, float32_rate = np.median(rates, axis=1).tolist()
    figures = Int8Figures(
        export_s, digest, rate, float32_rate, min_cosine(packed, reference), min_cosine(alone, packed), len(texts)
    )
    progress(figures.describe())
    return figures
