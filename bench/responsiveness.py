"""/livez latency during the most expensive requests that the limits allow.

Run with python -m, this file is the probe: it requests /livez every 2 ms and prints the latencies.
"""

import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from bench.load import ROOT
from bench.targets import Verdict, judge
from tests.conftest import RunningServer

INTERVAL_S = 0.002
IDLE_S = 3.0
PREPARED_CHARACTERS = 20_000


@dataclass(frozen=True)
class ProbeResult:
    """Status and duration of a request, and the slowest /livez during it."""

    name: str
    status: int
    request_ms: float
    livez_ms: float


@dataclass(frozen=True)
class Responsiveness:
    """The slowest /livez on an idle server, and during each request."""

    idle_ms: float
    results: list[ProbeResult]
    preparation_ms: float

    def verdicts(self) -> list[Verdict]:
        worst = max(self.results, key=lambda result: result.livez_ms)
        return [
            judge("livez", worst.livez_ms - self.idle_ms, worst.name),
            judge("preparation", self.preparation_ms),
        ]

    def describe(self) -> str:
        lines = [f"/livez of an idle server: {self.idle_ms:.1f} ms at most"]
        lines += [
            f"  {result.livez_ms:6.1f} ms during {result.name} ({result.status}, {result.request_ms:.0f} ms)"
            for result in self.results
        ]
        return "\n".join([*lines, f"preparation of {PREPARED_CHARACTERS} characters: {self.preparation_ms:.0f} ms"])


def worst_requests() -> dict[str, tuple[str, Any]]:
    """Return the path and body of each request at the limits, by name."""
    cjk = "\u4e00" * 16_000
    passage = "the river bank " * 84  # 254 tokens
    return {
        "2 MiB of CJK, tokens": ("encode", {"inputs": [cjk] * 42, "outputs": ["tokens"], "truncation": "right"}),
        "2 MiB of CJK, words": ("encode", {"inputs": [cjk] * 42, "outputs": ["words"], "truncation": "left"}),
        "2 MiB of CJK, static": ("encode", {"inputs": [cjk] * 42, "outputs": ["static"], "truncation": "right"}),
        "2 MiB of CJK, attend by word": (
            "attend",
            {"inputs": [cjk] * 42, "unit": "word", "truncation": "right", "layers": [1], "head_reduce": "mean",
             "dtype": "float16", "encoding_format": "base64", "top_k": 1},
        ),
        "2 MiB of CJK, tokenize": ("tokenize", {"inputs": [cjk] * 42}),
        "64 long occurrences": ("compare", {"occurrences": [{"text": cjk[:10_000], "word_index": 0}] * 64}),
        "4,096 spans": (
            "encode",
            {"inputs": [{"text": passage, "spans": [[n % 900, n % 900 + 9] for n in range(1024)]}] * 4,
             "outputs": ["spans"]},
        ),
        "300,000 spans": ("encode", {"inputs": [{"text": "a", "spans": [[0, 1]] * 300_000}], "outputs": ["spans"]}),
        "400,000 wrong elements": ("encode", {"inputs": [1] * 400_000}),
        "400,000 texts": ("embeddings", {"input": ["a"] * 400_000, "model": "all-MiniLM-L6-v2"}),
        "700,000 ids": ("embeddings", {"input": [7] * 700_000, "model": "all-MiniLM-L6-v2"}),
        "60 MB of JSON": ("encode", {"inputs": [passage] * 38, "outputs": ["tokens"]}),
        "50 MB of maps": ("attend", {"inputs": passage, "layers": [1, 2, 3, 4]}),
        "256 passages": ("encode", {"inputs": [passage] * 256}),
        "similarity of 128 x 128 texts": ("similarity", {"queries": ["a b c"] * 128, "documents": ["d e f"] * 128}),
        "256 explained pairs": (
            "similarity",
            {"queries": [passage] * 16, "documents": [passage] * 16, "explain": True, "top_k": 10,
             "effect": "leave_one_out"},
        ),
        "one explained pair": (
            "similarity",
            {"queries": passage, "documents": passage, "explain": True, "effect": "leave_one_out"},
        ),
        "50 MB of contributions": ("similarity", {"queries": [passage] * 8, "documents": [passage] * 7,
                                                  "explain": True}),
        "4,000 occluded sequences": (
            "similarity",
            {"queries": ["word " * 31] * 64, "documents": ["word " * 31] * 64, "pairs": "zip", "explain": True,
             "effect": "occlusion"},
        ),
    }  # fmt: skip


def measure_responsiveness(server: RunningServer) -> Responsiveness:
    """Send each request once while the probe runs."""
    with httpx.Client(base_url=server.rest, timeout=120) as client:
        with probing(server.rest) as idle:
            time.sleep(IDLE_S)
        results = []
        for name, (operation, body) in worst_requests().items():
            content = json.dumps(body, ensure_ascii=False).encode()
            with probing(server.rest) as beside:
                started = time.perf_counter()
                response = client.post(
                    f"/v1/{operation}", content=content, headers={"content-type": "application/json"}
                )
                seconds = time.perf_counter() - started
            results.append(ProbeResult(name, response.status_code, seconds * 1e3, max(beside, default=0.0)))
        text = "\u6cb3 bank " * (PREPARED_CHARACTERS // 8)
        prepared = []
        for _ in range(3):
            body = {"inputs": [text[:10_000], text[10_000:]], "outputs": ["tokens", "words"], "truncation": "right"}
            timing = client.post("/v1/encode", json=body).headers["server-timing"]
            stages = dict(stage.strip().split(";dur=") for stage in timing.split(","))
            prepared.append(float(stages["tokenize"]) + float(stages["postprocess"]))
    return Responsiveness(max(idle), results, min(prepared))


@contextmanager
def probing(url: str) -> Any:
    """Run the probe in a separate process. When the block exits, the list contains the latencies in milliseconds."""
    latencies: list[float] = []
    command = [sys.executable, "-m", "bench.responsiveness", url]
    probe = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert probe.stdout is not None
    probe.stdout.readline()
    try:
        yield latencies
    finally:
        out, _ = probe.communicate("stop\n", timeout=60)
        latencies += json.loads(out)


def main(url: str) -> None:
    """Probe until a line of input arrives."""
    stop = threading.Event()

    def wait_for_line() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=wait_for_line, daemon=True).start()
    latencies = []
    with httpx.Client(base_url=url, timeout=60) as client:
        client.get("/livez")
        print("probing", flush=True)
        while not stop.wait(INTERVAL_S):
            started = time.perf_counter()
            client.get("/livez").raise_for_status()
            latencies.append((time.perf_counter() - started) * 1e3)
    print(json.dumps(latencies))


if __name__ == "__main__":
    main(sys.argv[1])
