"""Closed loop: workloads over a fixed number of connections, per system under test, right after the limit."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from bench.limit import Limit, LimitFigure
from bench.load import CLOSE, GZIP, Answered, Load, LoadError, bodies_file, run_wrk
from bench.project import encode_body
from bench.rpc_load import run_rpc
from bench.workloads import Corpus
from tests.conftest import RunningServer

STAGES = ("tokenize", "queue", "inference", "postprocess")
STAGE_METRIC = "attendant_stage_duration_seconds"
REQUEST_METRIC = "attendant_request_duration_seconds"


@dataclass(frozen=True)
class Reading:
    """Sums and counts of the stage and request histograms."""

    sums: dict[str, float]
    counts: dict[str, float]

    @classmethod
    def of(cls, text: str) -> "Reading":
        """Parse the metrics of the fast lane, and of successful requests in all APIs."""
        sums: dict[str, float] = {}
        counts: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name, _, kind = sample.name.rpartition("_")
                if kind not in ("sum", "count"):
                    continue
                if name == STAGE_METRIC and sample.labels["lane"] == "fast":
                    key = sample.labels["stage"]
                elif name == REQUEST_METRIC and sample.labels["lane"] == "fast":
                    key = "request"
                else:
                    continue
                totals = sums if kind == "sum" else counts
                totals[key] = totals.get(key, 0.0) + sample.value
        return cls(sums, counts)

    @classmethod
    def take(cls, admin: str) -> "Reading":
        """Read the metrics from a server's admin URL."""
        return cls.of(httpx.get(f"{admin}/metrics", timeout=10).raise_for_status().text)

    def means_since(self, earlier: "Reading") -> dict[str, float]:
        """Return means in milliseconds per stage and per request. Inference is per batch, which requests share."""
        means = {}
        for key in (*STAGES, "request"):
            count = self.counts.get(key, 0.0) - earlier.counts.get(key, 0.0)
            if count:
                means[key] = (self.sums[key] - earlier.sums.get(key, 0.0)) / count * 1000
        return means


ATTENDANT = "attendant"
WARM_UP_S = 1.0
LIMIT_S = 2.0
SINGLE_TEXTS = 200
PEER_TIME = 1.5
"""Duration multiplier for peers; dilutes slow requests still in flight at the end."""
SETTLE_TIMEOUT_S = 60


@dataclass(frozen=True)
class Workload:
    """A load with `texts` per request over `connections`. Peers only run `common` workloads."""

    name: str
    section: str
    texts: int
    connections: int
    passages: bool = False
    encoding: str = "float"
    outputs: tuple[str, ...] = ()
    grpc: bool = False
    common: bool = False
    headers: Mapping[str, str] = field(default_factory=lambda: GZIP)


WORKLOADS = (
    Workload("W1 c=1", "W1", 1, 1, common=True),
    Workload("W1 c=16", "W1", 1, 16),
    Workload("W1 c=64", "W1", 1, 64, common=True),
    Workload("W1 c=64 plain", "W1", 1, 64, headers={}),
    Workload("W1 c=512", "W1", 1, 512),
    Workload("W32", "W32", 32, 4, common=True),
    Workload("W32 plain", "W32", 32, 4, headers={}),
    Workload("W32 base64", "W32", 32, 4, encoding="base64"),
    Workload("W32 gRPC", "W32", 32, 4, grpc=True),
    Workload("P8", "P8", 8, 4, passages=True, common=True),
    Workload("P8 plain", "P8", 8, 4, passages=True, headers={}),
    Workload("T32 base64", "T32", 32, 4, encoding="base64", outputs=("tokens",)),
    Workload("T32 gRPC", "T32", 32, 4, outputs=("tokens",), grpc=True),
    Workload("N1", "N1", 1, 16, headers=GZIP | CLOSE),
)
BY_NAME = {workload.name: workload for workload in WORKLOADS}


@dataclass(frozen=True)
class System:
    """A system under test: Attendant, or a peer with its own request format."""

    name: str
    url: str
    grpc: str = ""
    admin: str = ""
    model: str = ""
    """Model name for peers with OpenAI-style requests, empty for requests that contain only `inputs`."""

    @classmethod
    def attendant(cls, server: RunningServer) -> "System":
        return cls(ATTENDANT, f"{server.rest}/v1/encode", server.grpc, server.admin)

    def runs(self, workload: Workload) -> bool:
        return workload.common or self.name == ATTENDANT

    def body(self, texts: Sequence[str], workload: Workload | None = None) -> dict[str, object]:
        if self.model:
            return {"model": self.model, "input": list(texts)}
        if workload is None or self.name != ATTENDANT:
            return {"inputs": list(texts)}
        return encode_body(texts, workload.encoding, workload.outputs)


@dataclass(frozen=True)
class Figure:
    """One measurement of a workload on a system, with the limit measured just before."""

    workload: str
    system: str
    texts_per_second: float
    tokens_per_second: float
    limit: LimitFigure
    p50_ms: float
    p99_ms: float
    failed: int
    bytes_per_text: float = math.nan
    bare_run_ms: float | None = None
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return self.tokens_per_second / self.limit.tokens_per_second

    def describe(self) -> str:
        return (
            f"{self.workload:<13} {self.system:<22} {self.texts_per_second:7.0f} texts/s "
            f"{self.tokens_per_second:7.0f} tokens/s = {self.share:.2f} of {self.limit.tokens_per_second:6.0f} "
            f"({self.limit.float32_tokens_per_second:6.0f} float32)  p50 {self.p50_ms:7.2f}  p99 {self.p99_ms:7.2f} ms"
            + (f"  {self.failed} FAILED" if self.failed else "")
        )


def measure(
    workload: Workload, systems: Sequence[System], limit: Limit, corpus: Corpus, seconds: float
) -> list[Figure]:
    """Measure the limit, then the workload on each system that supports it."""
    limit_now = limit.measure(LIMIT_S)
    single = None
    if workload.texts == workload.connections == 1:
        single = limit.median_run_ms([text for text, _ in corpus.sentences[:SINGLE_TEXTS]])
    groups = _groups(workload, corpus)
    mean_tokens = sum(size for group in groups for _, size in group) / len(groups)
    figures = []
    for system in systems:
        if not system.runs(workload):
            continue
        with bodies_file([system.body([text for text, _ in group], workload) for group in groups]) as bodies:
            send(workload, system, bodies, WARM_UP_S)
            _settle(system, [text for text, _ in groups[0]])
            before = Reading.take(system.admin) if system.admin else None
            answered = send(workload, system, bodies, seconds if system.name == ATTENDANT else PEER_TIME * seconds)
            stages = Reading.take(system.admin).means_since(before) if before else {}
        figures.append(
            Figure(
                workload=workload.name,
                system=system.name,
                texts_per_second=answered.per_second * workload.texts,
                tokens_per_second=answered.per_second * mean_tokens,
                limit=limit_now,
                p50_ms=answered.p50_ms,
                p99_ms=answered.p99_ms,
                failed=answered.failed,
                bytes_per_text=answered.bytes / (answered.requests * workload.texts) if answered.requests else math.nan,
                bare_run_ms=single,
                stages=stages,
            )
        )
    return figures


def alternate(pair: tuple[Workload, Workload], system: System, corpus: Corpus, seconds: float, rounds: int) -> float:
    """Return the ratio of two workloads' rates, as the median over adjacent pairs of measurements."""
    rates: list[list[float]] = [[], []]
    for number in range(rounds):
        for place in (0, 1) if number % 2 else (1, 0):
            workload = pair[place]
            groups = _groups(workload, corpus)
            with bodies_file([system.body([text for text, _ in group], workload) for group in groups]) as bodies:
                rates[place].append(send(workload, system, bodies, seconds).per_second)
    return float(np.median(np.divide(rates[0], rates[1])))


def send(workload: Workload, system: System, bodies: str, seconds: float) -> Answered:
    """Send a workload to a system. If every request to a peer fails, the figure has no requests."""
    if workload.grpc:
        return run_rpc(Load(system.grpc, workload.connections, bodies), seconds)
    try:
        return run_wrk(Load(system.url, workload.connections, bodies, dict(workload.headers)), seconds)
    except LoadError:
        if system.name == ATTENDANT:
            raise
        return Answered(0, seconds, math.nan, math.nan, workload.connections)


def median(workload: str, system: str, figures: Sequence[Figure]) -> Figure | None:
    """Return the figure whose share of the limit is the median."""
    chosen = [figure for figure in figures if (figure.workload, figure.system) == (workload, system)]
    chosen.sort(key=lambda figure: figure.share)
    return chosen[len(chosen) // 2] if chosen else None


def _groups(workload: Workload, corpus: Corpus) -> list[list[tuple[str, int]]]:
    texts = corpus.passages if workload.passages else corpus.sentences
    usable = texts[: len(texts) // workload.texts * workload.texts]
    return [usable[at : at + workload.texts] for at in range(0, len(usable), workload.texts)]


def _settle(system: System, texts: Sequence[str]) -> None:
    """Wait until the system has finished the warm-up requests.

    Some servers keep processing requests of disconnected clients. If the system does not respond, the measurement will
    say so.
    """
    with suppress(httpx.HTTPError):
        httpx.post(system.url, json=system.body(texts), timeout=SETTLE_TIMEOUT_S)
