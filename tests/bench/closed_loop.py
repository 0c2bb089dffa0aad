"""Closed loop: workloads over so many connections, each contestant right after the ceiling and after one another."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import numpy as np

from tests.bench.bars import Verdict, at_least, at_most, unmeasured
from tests.bench.ceiling import Bare
from tests.bench.load import Answered, Load, LoadError, bodies_file, run_wrk
from tests.bench.rpc_load import run_rpc
from tests.bench.stages import Reading
from tests.bench.workloads import Corpus
from tests.conftest import RunningServer

US = "attendant"
WARM_UP_S = 1.0
SINGLE_TEXTS = 300
PEER_TIME = 2
"""Peers get so many times our time: what a slow one has in flight at the end counts for less then."""
SETTLE_TIMEOUT_S = 60


@dataclass(frozen=True)
class Workload:
    """What is sent: `texts` a request, over `connections`. Peers take part in what is `common`."""

    name: str
    texts: int
    connections: int
    passages: bool = False
    encoding: str = "float"
    outputs: tuple[str, ...] = ()
    grpc: bool = False
    common: bool = False


WORKLOADS = (
    Workload("W1 c=1", 1, 1, common=True),
    Workload("W1 c=16", 1, 16),
    Workload("W1 c=64", 1, 64, common=True),
    Workload("W32", 32, 4, common=True),
    Workload("W32 base64", 32, 4, encoding="base64"),
    Workload("W32 gRPC", 32, 4, grpc=True),
    Workload("P8", 8, 4, passages=True, common=True),
    Workload("T32 base64", 32, 4, encoding="base64", outputs=("tokens",)),
    Workload("T32 gRPC", 32, 4, outputs=("tokens",), grpc=True),
)
CEILING_BARS = (
    ("C1", "W32", 0.70),
    ("C1", "W32 base64", 0.78),
    ("C1", "W32 gRPC", 0.78),
    ("C2", "P8", 0.75),
    ("C3", "W1 c=64", 0.65),
    ("C6", "T32 base64", 0.65),
    ("C6", "T32 gRPC", 0.65),
)
PEER_BARS = (("C3", "W1 c=64", 7.0), ("C5", "W32", 7.0), ("C5", "P8", 5.5))
TAIL_BAR, SINGLE_BAR = 3.0, 1.5


@dataclass(frozen=True)
class Contestant:
    """A server that takes part: ours, or a peer with its own spelling of a request."""

    name: str
    url: str
    grpc: str = ""
    admin: str = ""
    model: str = ""
    """What an OpenAI-style peer calls the model; empty means the plain body {"inputs": [...]}."""

    @classmethod
    def ours(cls, server: RunningServer) -> "Contestant":
        return cls(US, f"{server.rest}/v1/encode", server.grpc, server.admin)

    def takes(self, workload: Workload) -> bool:
        return workload.common or self.name == US

    def body(self, texts: Sequence[str], workload: Workload | None = None) -> dict[str, object]:
        if self.model:
            return {"model": self.model, "input": list(texts)}
        body: dict[str, object] = {"inputs": list(texts)}
        if workload is not None and self.name == US:
            body |= {"encoding": workload.encoding}
            if workload.outputs:
                body |= {"outputs": workload.outputs}
        return body


@dataclass(frozen=True)
class Figure:
    """One measurement of one workload on one contestant."""

    workload: str
    contestant: str
    texts_per_second: float
    tokens_per_second: float
    ceiling_tokens_per_second: float
    p50_ms: float
    p99_ms: float
    failed: int
    bare_run_ms: float | None = None
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return self.tokens_per_second / self.ceiling_tokens_per_second

    def describe(self) -> str:
        return (
            f"{self.workload:<11} {self.contestant:<14} {self.texts_per_second:8.0f} texts/s "
            f"{self.tokens_per_second:8.0f} tokens/s = {self.share:.2f} of {self.ceiling_tokens_per_second:6.0f}   "
            f"p50 {self.p50_ms:7.2f} ms  p99 {self.p99_ms:7.2f} ms" + (f"  {self.failed} FAILED" if self.failed else "")
        )


def measure(
    workload: Workload, contestants: Sequence[Contestant], bare: Bare, corpus: Corpus, seconds: float
) -> list[Figure]:
    """The ceiling, and right after it the workload on each contestant that takes it."""
    ceiling = bare.tokens_per_second(seconds / 2)
    single = None
    if workload.texts == workload.connections == 1:
        single = bare.median_run_ms([text for text, _ in corpus.sentences[:SINGLE_TEXTS]])
    texts = corpus.passages if workload.passages else corpus.sentences
    usable = texts[: len(texts) // workload.texts * workload.texts]
    groups = [usable[at : at + workload.texts] for at in range(0, len(usable), workload.texts)]
    mean_tokens = sum(size for _, size in usable) / len(groups)
    figures = []
    for contestant in contestants:
        if not contestant.takes(workload):
            continue
        with bodies_file([contestant.body([text for text, _ in group], workload) for group in groups]) as bodies:
            _send(workload, contestant, bodies, WARM_UP_S)
            _settle(contestant, [text for text, _ in groups[0]])
            before = Reading.take(contestant.admin) if contestant.admin else None
            found = _send(workload, contestant, bodies, seconds if contestant.name == US else PEER_TIME * seconds)
            stages = Reading.take(contestant.admin).means_since(before) if before else {}
        figures.append(
            Figure(
                workload=workload.name,
                contestant=contestant.name,
                texts_per_second=found.per_second * workload.texts,
                tokens_per_second=found.per_second * mean_tokens,
                ceiling_tokens_per_second=ceiling,
                p50_ms=found.p50_ms,
                p99_ms=found.p99_ms,
                failed=found.failed,
                bare_run_ms=single,
                stages=stages,
            )
        )
    return figures


def _settle(contestant: Contestant, texts: Sequence[str]) -> None:
    """Return when the contestant is through with what the warm-up left behind; not all drop it.

    One that does not answer at all shows in what is measured next.
    """
    with suppress(httpx.HTTPError):
        httpx.post(contestant.url, json=contestant.body(texts), timeout=SETTLE_TIMEOUT_S)


def _send(workload: Workload, contestant: Contestant, bodies: str, seconds: float) -> Answered:
    if workload.grpc:
        return run_rpc(Load(contestant.grpc, workload.connections, bodies), seconds)
    try:
        return run_wrk(Load(contestant.url, workload.connections, bodies), seconds)
    except LoadError:
        if contestant.name == US:
            raise
        return Answered(0, seconds, math.nan, math.nan, workload.connections)


def median(workload: str, contestant: str, figures: Sequence[Figure]) -> Figure | None:
    """The figure whose share of the ceiling is in the middle."""
    found = [figure for figure in figures if (figure.workload, figure.contestant) == (workload, contestant)]
    found.sort(key=lambda figure: figure.share)
    return found[len(found) // 2] if found else None


def judge(figures: Sequence[Figure]) -> list[Verdict]:
    """C1 to C6, and that nothing failed; medians of the rounds."""
    verdicts = []
    for bar, workload, wanted in CEILING_BARS:
        shares = [figure.share for figure in figures if (figure.workload, figure.contestant) == (workload, US)]
        verdicts.append(at_least(bar, workload, float(np.median(shares)), wanted, "of the ceiling"))
    tails = [figure.p99_ms / figure.p50_ms for figure in _ours(figures, "W1 c=64") if figure.p50_ms]
    verdicts.append(at_most("C3", "p99 of W1 c=64", float(np.median(tails)), TAIL_BAR, "x its p50"))
    singles = [figure.p50_ms / figure.bare_run_ms for figure in _ours(figures, "W1 c=1") if figure.bare_run_ms]
    verdicts.append(at_most("C4", "p50 of W1 c=1", float(np.median(singles)), SINGLE_BAR, "x a bare run"))
    verdicts += [_beside_peers(bar, workload, wanted, figures) for bar, workload, wanted in PEER_BARS]
    failed = sum(figure.failed for figure in figures if figure.contestant == US)
    verdicts.append(at_most("", "failed requests", failed, 0))
    return sorted(verdicts, key=lambda verdict: verdict.bar or "C99")


def _ours(figures: Sequence[Figure], workload: str) -> list[Figure]:
    return [figure for figure in figures if (figure.workload, figure.contestant) == (workload, US)]


def _beside_peers(bar: str, workload: str, wanted: float, figures: Sequence[Figure]) -> Verdict:
    """Against the better of infinity's engines, by medians."""
    ours = float(np.median([figure.texts_per_second for figure in _ours(figures, workload)]))
    rates: dict[str, list[float]] = {}
    for figure in figures:
        if figure.workload == workload and figure.contestant.startswith("infinity"):
            rates.setdefault(figure.contestant, []).append(figure.texts_per_second)
    medians = {engine: float(np.median(found)) for engine, found in rates.items()}
    best = max(medians, key=lambda engine: medians[engine], default="")
    if not best:
        return unmeasured(bar, f"{workload} beside infinity", "no engine of it took part")
    if not medians[best]:
        return unmeasured(bar, f"{workload} beside infinity", "it answered nothing in the time")
    return at_least(bar, f"{workload} beside infinity", ours / medians[best], wanted, f"x {best}")
