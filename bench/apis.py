"""Cost of other APIs (C15): W32 through TEI and the Open Inference Protocol, relative to the native API."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.load import Load, bodies_file, run_wrk
from bench.project import served_name
from bench.targets import Verdict, judge
from tests.conftest import RunningServer

TEXTS, CONNECTIONS = 32, 4
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
        return f"time of W32 c={CONNECTIONS} relative to the native API: {costs}"


def measure_apis(
    server: RunningServer, sentences: Sequence[str], seconds: float, rounds: int, progress: Callable[[str], None]
) -> ApiFigures:
    """Send the same texts through each API, alternating."""
    batches = [sentences[start : start + TEXTS] for start in range(0, len(sentences) - TEXTS, TEXTS)]
    infer = f"/v2/models/{served_name(server.rest)}/infer"
    requests: dict[str, tuple[str, Callable[[Sequence[str]], Any]]] = {
        NATIVE: ("/v1/encode", lambda texts: {"inputs": texts}),
        "tei": ("/embed", lambda texts: {"inputs": texts}),
        "oip": (infer, lambda texts: infer_body(texts, binary=False)),
        "oip_binary": (infer, lambda texts: infer_body(texts, binary=True)),
    }
    figures = ApiFigures({api: [] for api in requests}, 0)
    failed = 0
    with ExitStack() as stack:
        loads = {
            api: Load(server.rest + path, CONNECTIONS, stack.enter_context(bodies_file([make(b) for b in batches])))
            for api, (path, make) in requests.items()
        }
        for load in loads.values():
            run_wrk(load, 1)
        for _ in range(rounds):
            for api, load in loads.items():
                answered = run_wrk(load, seconds)
                figures.per_second[api].append(answered.per_second)
                failed += answered.failed
    figures = ApiFigures(figures.per_second, failed)
    progress(figures.describe())
    return figures


def infer_body(texts: Sequence[str], *, binary: bool) -> dict[str, Any]:
    """Return an Open Inference Protocol request for embeddings as JSON or as raw bytes."""
    return {
        "inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}],
        "outputs": [{"name": "pooled", "parameters": {"binary_data": binary}}],
    }
