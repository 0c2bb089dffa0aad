"""`make soak`: memory growth (C8) under mixed requests over 16 connections, for an hour or `SOAK` seconds."""

import dataclasses
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from prometheus_client.parser import text_string_to_metric_families

from bench.load import GZIP, Answered, Load, bodies_file, started_wrk, wrk_result
from bench.machine import Machine
from bench.project import Model, attend_body, encode_body
from bench.report import DIRECTORY, clean, plot_soak
from bench.startup import resident_mib
from bench.targets import Verdict, all_passed, judge, not_measured
from bench.workloads import Corpus, read_corpus
from tests.conftest import serving
from tests.operation_requests import Body, ModelFacts, requests

SEED = 20_264
OUTPUTS = (("pooled",), ("words",), ("tokens",), ("pooled", "words", "static"))
COUNTS = (1, 1, 1, 4, 32)
ENCODINGS = ("float", "base64")
ATTEND_SHARE = 0.05
"""Assumed share of attend requests, which cost more than encode requests."""


def draw_requests(rest: str, corpus: Corpus, count: int) -> list[tuple[str, Body]]:
    """Return about `count` requests (path and body) that the server at `rest` accepts.

    Half are from the tests' generator, and half have real texts. Raises RuntimeError for a 5xx response.
    """
    drawn = [*_draw_products(rest, count // 2), *_draw_texts(corpus, count // 2)]
    with httpx.Client(base_url=rest, timeout=60) as client:
        accepted = [(path, body) for path, body in drawn if _is_accepted(client, path, body)]
    random.Random(SEED).shuffle(accepted)
    return accepted


def _is_accepted(client: httpx.Client, path: str, body: Body) -> bool:
    response = client.post(path, json=body)
    if response.status_code >= 500:
        raise RuntimeError(f"{path} answered {response.status_code} to {body}")
    return response.is_success


def _draw_products(rest: str, count: int) -> list[tuple[str, Body]]:
    model = httpx.get(f"{rest}/v1/model", timeout=10).raise_for_status().json()
    facts = ModelFacts(**{field.name: model[field.name] for field in dataclasses.fields(ModelFacts)})
    drawn: list[tuple[str, Body]] = []

    @settings(
        max_examples=count, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(requests(facts))
    def collect(request: tuple[str, Body]) -> None:
        drawn.append((f"/v1/{request[0]}", request[1]))

    collect()
    return drawn


def _draw_texts(corpus: Corpus, count: int) -> Iterator[tuple[str, Body]]:
    rng = random.Random(SEED)
    texts = [text for text, _ in (*corpus.sentences, *corpus.passages)]
    options = list(itertools.product(OUTPUTS, COUNTS, ENCODINGS))
    for _ in range(count):
        if rng.random() < ATTEND_SHARE:
            yield "/v1/attend", attend_body(rng.choice(corpus.sentences)[0], unit="word")
        else:
            outputs, size, encoding = rng.choice(options)
            yield "/v1/encode", encode_body([rng.choice(texts) for _ in range(size)], encoding, outputs)


HOUR_S, MAX_S = 3600, 24 * 3600
SETTLED_S = 300
SAMPLES = 360
REQUESTS = 2000
CONNECTIONS = 16


@dataclass(frozen=True)
class Soak:
    """Memory samples (time in seconds, resident MiB), the peak memory, and the responses."""

    seconds: list[float]
    mib: list[float]
    peak_mib: float
    answered: Answered
    server_errors: float

    def verdicts(self) -> list[Verdict]:
        settled = [mib for second, mib in zip(self.seconds, self.mib, strict=True) if second >= SETTLED_S]
        growth = (
            judge("soak_growth", abs(self.mib[-1] - settled[0]) / settled[0], f"over {self.seconds[-1]:.0f} s")
            if self.seconds[-1] >= 2 * SETTLED_S
            else not_measured("soak_growth", f"{self.seconds[-1]:.0f} s are too short")
        )
        return [growth, judge("soak_peak", self.peak_mib), judge("soak_errors", self.server_errors)]

    def describe(self) -> str:
        answered = self.answered
        return (
            f"{answered.requests} requests in {answered.seconds:.0f} s, {answered.per_second:.0f}/s, "
            f"p50 {answered.p50_ms:.1f} ms, p99 {answered.p99_ms:.1f} ms, {answered.failed} rejected or failed\n"
            f"memory {self.mib[0]:.1f} MiB first, {self.mib[-1]:.1f} last, {self.peak_mib:.1f} at most"
        )


def soak(seconds: float) -> Soak:
    """Start a server, send requests, and sample its resident memory."""
    model = Model.default()
    corpus = read_corpus(model.tokenizer())
    interval = max(0.5, seconds / SAMPLES)
    times: list[float] = []
    mib: list[float] = []
    with serving(model_dir=model.directory) as server:
        drawn = draw_requests(server.rest, corpus, REQUESTS)
        with bodies_file([body for _, body in drawn], [path for path, _ in drawn]) as bodies:
            started = reported = time.monotonic()
            with started_wrk(Load(server.rest, CONNECTIONS, bodies, GZIP), seconds) as wrk:
                while wrk.poll() is None and time.monotonic() - started < seconds + interval:
                    try:
                        wrk.wait(interval)
                        break
                    except subprocess.TimeoutExpired:
                        now = time.monotonic()
                    times.append(now - started)
                    mib.append(resident_mib(server.pid))
                    if now - reported >= max(10.0, seconds / 20):
                        reported = now
                        print(f"{times[-1]:6.0f} of {seconds:.0f} s  {mib[-1]:.1f} MiB", flush=True)
                answered = wrk_result(wrk)
        return Soak(times, mib, resident_mib(server.pid, "VmHWM"), answered, _server_errors(server.admin))


def _server_errors(admin: str) -> float:
    """Return the number of 5xx responses."""
    metrics = text_string_to_metric_families(httpx.get(f"{admin}/metrics", timeout=30).text)
    return sum(
        sample.value
        for family in metrics
        if family.name == "attendant_requests"
        for sample in family.samples
        if sample.labels.get("code", "").startswith("5")
    )


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every measured target was met."""
    seconds = float(arguments[0]) if arguments else HOUR_S
    if not 10 <= seconds <= MAX_S:
        print(f"soak: {seconds:g} s: out of range (10 to {MAX_S} s)", file=sys.stderr)
        return 2
    try:
        result = soak(seconds)
    except KeyboardInterrupt:
        print("\ninterrupted, no results written", file=sys.stderr)
        return 130
    print(result.describe())
    verdicts = result.verdicts()
    print("\n".join(verdict.describe() for verdict in verdicts))
    DIRECTORY.mkdir(exist_ok=True)
    record = {
        "machine": asdict(Machine.read()),
        **asdict(result),
        "targets": [verdict.describe() for verdict in verdicts],
    }
    (DIRECTORY / "soak.json").write_text(json.dumps(clean(record), indent=1))
    plot_soak(result.seconds, result.mib, DIRECTORY)
    return 0 if all_passed(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
