"""`make bench`: the workloads of the bench, the ceiling beside each, in one run on one machine.

Writes a table on the screen and bench-results/results.json. `make bench BENCH=quick` is a short run.
"""

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import numpy as np

from model.artifact import Artifact
from model.tokenizer import Tokenizer
from service.config import load_settings
from service.engine.providers import choose_provider
from tests.bench.attention import NORM_TOKENS, AttentionFigures, measure_attention
from tests.bench.ceiling import Bare, describe_machine
from tests.bench.load import Load, run_wrk
from tests.bench.workloads import read_corpus
from tests.conftest import RunningServer, start_server, stop_server

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "bench-results" / "results.json"
ACCURACY_TEXTS = 500


@dataclass(frozen=True)
class Workload:
    """What is sent: `texts` a request, over `connections`, with the encoding asked for."""

    name: str
    texts: int
    connections: int
    passages: bool = False
    encoding: str = "float"


@dataclass(frozen=True)
class Bar:
    """A figure that a workload must reach: `at_least` of the ceiling, or `at_most` times a bare run."""

    workload: str
    at_least: float | None = None
    at_most: float | None = None


WORKLOADS = (
    Workload("W1 c=1", 1, 1),
    Workload("W1 c=16", 1, 16),
    Workload("W1 c=64", 1, 64),
    Workload("W32", 32, 4),
    Workload("W32 base64", 32, 4, encoding="base64"),
    Workload("P8", 8, 4, passages=True),
)
BARS = (Bar("W1 c=1", at_most=3.0), Bar("W1 c=64", at_least=0.5), Bar("W32", at_least=0.5))
RSS_BAR_MIB = 600


@dataclass
class Figure:
    """One measurement of one workload."""

    workload: str
    texts_per_second: float
    tokens_per_second: float
    ceiling_tokens_per_second: float
    p50_ms: float
    p99_ms: float
    failed: int

    @property
    def share(self) -> float:
        return self.tokens_per_second / self.ceiling_tokens_per_second


def main(arguments: list[str]) -> int:
    """Measure everything; the exit status says whether every bar was reached."""
    quick = "quick" in arguments
    seconds, rounds = (3.0, 1) if quick else (8.0, 3)
    settings = load_settings(environ={})
    provider = choose_provider("auto", "auto")
    artifact = Artifact.open(ROOT / settings.model_dir)
    corpus = read_corpus(Tokenizer(artifact.read("tokenizer.json")))
    bare = Bare(artifact, provider)
    machine = describe_machine(provider)
    print(machine)
    lengths = [size for _, size in corpus.sentences]
    print(
        f"{len(corpus.sentences)} sentences, mean {np.mean(lengths):.1f} tokens, quantiles 5/25/50/75/95 % "
        f"{'/'.join(f'{q:.0f}' for q in np.quantile(lengths, (0.05, 0.25, 0.5, 0.75, 0.95)))}; "
        f"{len(corpus.passages)} passages, mean {np.mean([size for _, size in corpus.passages]):.0f}"
    )
    server = start_server(model_dir=artifact.root)
    try:
        rest_mib = resident_mib(server.pid)
        figures = []
        for number in range(rounds):
            for workload in WORKLOADS:
                texts = corpus.passages if workload.passages else corpus.sentences
                figure = measure(workload, server, bare, texts, seconds)
                figures.append(figure)
                print(f"[{number + 1}/{rounds}] {describe(figure)}", flush=True)
        cosine = smallest_cosine(
            server, bare, [text for text, _ in (*corpus.sentences, *corpus.passages)][-ACCURACY_TEXTS:]
        )
        single = bare.median_run_ms([text for text, _ in corpus.sentences[:300]])
        loaded_mib = resident_mib(server.pid)
        print("attention maps, alone and beside W1", flush=True)
        passage = next(text for text, size in corpus.passages if size > NORM_TOKENS)
        attention = measure_attention(server, [text for text, _ in corpus.sentences], passage, seconds, rounds)
    finally:
        stop_server(server)
    medians = [median(workload.name, figures) for workload in WORKLOADS]
    print("\nmedians\n" + "\n".join(describe(figure) for figure in medians))
    verdicts = judge({figure.workload: figure for figure in medians}, single, rest_mib) + attention.verdicts()
    print(f"bare run of one sentence, tokenising included: p50 {single:.2f} ms")
    print(describe_attention(attention))
    print(f"memory: {rest_mib:.0f} MiB at rest, {loaded_mib:.0f} MiB after the load")
    print(f"smallest cosine to the f32 reference over {ACCURACY_TEXTS} texts: {cosine:.7f}")
    print("\n".join(line for line, _ in verdicts))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps(
            {
                "machine": machine,
                "figures": [asdict(figure) for figure in figures],
                "attention": asdict(attention),
                "bare_run_ms": single,
                "rss_at_rest_mib": rest_mib,
                "rss_after_load_mib": loaded_mib,
                "smallest_cosine": cosine,
                "bars": [line for line, _ in verdicts],
            },
            indent=1,
        )
    )
    return 0 if all(reached for _, reached in verdicts) else 1


def measure(
    workload: Workload, server: RunningServer, bare: Bare, texts: list[tuple[str, int]], seconds: float
) -> Figure:
    """The ceiling, and right after it the workload."""
    ceiling = bare.tokens_per_second(seconds / 2)
    usable = texts[: len(texts) // workload.texts * workload.texts]
    groups = [usable[at : at + workload.texts] for at in range(0, len(usable), workload.texts)]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as bodies:
        for group in groups:
            inputs = [text for text, _ in group]
            bodies.write(json.dumps({"inputs": inputs, "encoding": workload.encoding}) + "\n")
        bodies.flush()
        load = Load(f"{server.rest}/v1/encode", workload.connections, bodies.name)
        run_wrk(load, 1.0)
        found = run_wrk(load, seconds)
    mean_tokens = sum(size for _, size in usable) / len(groups)
    return Figure(
        workload=workload.name,
        texts_per_second=found.per_second * workload.texts,
        tokens_per_second=found.per_second * mean_tokens,
        ceiling_tokens_per_second=ceiling,
        p50_ms=found.p50_ms,
        p99_ms=found.p99_ms,
        failed=found.failed,
    )


def smallest_cosine(server: RunningServer, bare: Bare, texts: list[str]) -> float:
    """Between what the server answers and float32 alone, over `texts`, 32 a request."""
    answers = []
    with httpx.Client(base_url=server.rest, timeout=60) as client:
        for at in range(0, len(texts), 32):
            reply = client.post("/v1/encode", json={"inputs": texts[at : at + 32]}).raise_for_status().json()
            answers += [result["pooled"] for result in reply["results"]]
    return float((np.array(answers) * bare.reference(texts)).sum(axis=1).min())


def judge(medians: dict[str, Figure], single_ms: float, rest_mib: float) -> list[tuple[str, bool]]:
    """Each bar with what was measured."""
    verdicts = []
    for bar in BARS:
        figure = medians[bar.workload]
        if bar.at_least is not None:
            reached, found, wanted = figure.share >= bar.at_least, figure.share, f">= {bar.at_least} of the ceiling"
        else:
            assert bar.at_most is not None
            found = figure.p50_ms / single_ms
            reached, wanted = found <= bar.at_most, f"<= {bar.at_most} x a bare run"
        verdicts.append((f"{'pass ' if reached else 'short'} {bar.workload}: {found:.2f} ({wanted})", reached))
    failed = sum(figure.failed for figure in medians.values())
    verdicts.append((f"{'pass ' if not failed else 'short'} failed requests: {failed} (0)", not failed))
    lean = rest_mib <= RSS_BAR_MIB
    verdicts.append((f"{'pass ' if lean else 'short'} memory at rest: {rest_mib:.0f} MiB (<= {RSS_BAR_MIB})", lean))
    return verdicts


def median(name: str, figures: list[Figure]) -> Figure:
    """The figure whose share of the ceiling is in the middle."""
    ours = sorted((figure for figure in figures if figure.workload == name), key=lambda figure: figure.share)
    return ours[len(ours) // 2]


def describe(figure: Figure) -> str:
    return (
        f"{figure.workload:<11} {figure.texts_per_second:8.0f} texts/s {figure.tokens_per_second:8.0f} tokens/s "
        f"= {figure.share:.2f} of {figure.ceiling_tokens_per_second:6.0f}   p50 {figure.p50_ms:7.2f} ms  "
        f"p99 {figure.p99_ms:7.2f} ms" + (f"  {figure.failed} FAILED" if figure.failed else "")
    )


def describe_attention(found: AttentionFigures) -> str:
    return (
        f"A1 c=1 p50 {found.served_ms:.1f} ms, transformers eager {found.eager_ms:.1f} ms; "
        f"A1 c=8 {found.a1_rate_alone:.0f}/s, beside W1 {found.a1_rate_beside:.0f}/s; "
        f"W1 c=16 p99 {found.w1_p99_alone_ms:.0f} ms, beside A1 {found.w1_p99_beside_ms:.0f} ms"
    )


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
