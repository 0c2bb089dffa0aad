"""`make bench-gpu`: measures the GPU targets in a few minutes, on a machine with only Python and CUDA.

The models have random weights, which do not change the speed. Alternatively, options name artifacts that were exported
with `--variant cuda` on a machine with torch.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench import gpu_artifacts
from bench.load import ROOT, Load, bodies_file, started
from bench.targets import Verdict, all_passed, judge, not_measured

FULL_SIZE = 128
FULL_TEXTS = 1024
SINGLE_RUNS = 400
ACCURACY_TEXTS = 2000
SERVED_TEXTS = 32
CALLS = 128
SECONDS = 8.0
STARTED = time.monotonic()


SECTIONS = {"families": 60, "engine": 60, "server": 60, "workers": 90}
"""Sections, the most important first, and their expected durations in seconds."""
SERVER_TARGETS = {"server": "gpu_grpc", "workers": "gpu_workers"}
"""The target of each section that needs the packages of the server."""
WORKERS = (1, 2, 4, 8, 16)


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every measured target was met, else 1, including when there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--bert", type=Path, help="artifact of the size of BERT-base (default: random weights)")
    parser.add_argument("--minilm", type=Path, help="artifact of the size of MiniLM-L6 (default: the default model)")
    parser.add_argument("--families", type=Path, help="folder of artifacts, from python -m bench.gpu_artifacts FOLDER")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="duration of each throughput measurement")
    parser.add_argument("--budget", type=float, default=math.inf, help="skip sections that would end later, in seconds")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections: " + ", ".join(SECTIONS))
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--missing", action="store_true", help="print the missing packages for pip, and exit")
    options = parser.parse_args(arguments)
    if options.missing:
        print(" ".join(gpu_artifacts.missing_packages()))
        return 0
    sections = options.only.split(",")
    if unknown := set(sections) - SECTIONS.keys():
        return _fail(f"unknown section {', '.join(sorted(unknown))}: use {', '.join(SECTIONS)}")
    needed = ["model", "engine", *([] if options.bert and options.minilm else ["export"])]
    if missing := gpu_artifacts.missing_packages(needed):
        return _fail(f"missing packages: pip install {' '.join(missing)}")
    from service.engine.backends.cuda_session import built_for_cuda, gpu_count

    if not built_for_cuda():
        return _fail("onnxruntime is not built for CUDA. Install onnxruntime-gpu in its place.")
    if not gpu_count():
        return _fail("no CUDA device: the driver is missing or reports none")
    with tempfile.TemporaryDirectory() as scratch:
        models = Models(options.bert, options.minilm, options.families, Path(scratch))
        verdicts = run(models, sections, options.seconds, options.budget)
    progress("\n".join(verdict.describe() for verdict in verdicts))
    if options.json is not None:
        results = [{"target": each.target.name, "measured": each.measured, "note": each.note} for each in verdicts]
        options.json.write_text(json.dumps({"machine": describe_machine(), "results": results}, indent=1))
    return 0 if all_passed(verdicts) else 1


@dataclass
class Models:
    """The artifacts, which are exported when they are first used unless options name them."""

    bert_option: Path | None
    minilm_option: Path | None
    families_option: Path | None
    scratch: Path

    @cached_property
    def bert(self) -> Path:
        if self.bert_option is not None:
            return self.bert_option
        progress("exporting a random model of the size of BERT-base")
        return gpu_artifacts.make_artifact(gpu_artifacts.BERT_BASE, self.scratch / "bert" / "artifact")

    @cached_property
    def minilm(self) -> Path:
        if self.minilm_option is not None:
            return self.minilm_option
        progress("exporting a model of the size of MiniLM-L6")
        return make_minilm(self.scratch / "minilm" / "artifact")

    @property
    def families(self) -> list[Path]:
        if self.families_option is None:
            return []
        return sorted(path.parent for path in self.families_option.glob("*/manifest.json"))


def run(models: Models, sections: Sequence[str], seconds: float, budget: float) -> list[Verdict]:
    progress(describe_machine())
    verdicts: list[Verdict] = []
    for section, expected in SECTIONS.items():
        if section not in sections:
            continue
        left = budget - (time.monotonic() - STARTED)
        if expected > left:
            progress(f"{section} skipped: {expected} s needed, {left:.0f} s left")
            continue
        match section:
            case "families":
                verdicts += measure_families(models.families)
            case "engine":
                verdicts += measure_engine(models.bert, seconds)
            case _ if missing := gpu_artifacts.missing_packages(["server"]):
                verdicts.append(not_measured(SERVER_TARGETS[section], f"missing packages: {' '.join(missing)}"))
            case "server":
                texts, tokens = measure_server(models.bert, seconds)
                verdicts.append(judge("gpu_grpc", texts * tokens))
                texts, _ = measure_server(models.minilm, seconds)
                verdicts.append(judge("gpu_minilm", texts))
            case "workers":
                verdicts += measure_workers(models.minilm, seconds)
    return sorted(verdicts, key=lambda verdict: verdict.target.name)


def measure_families(artifacts: Sequence[Path]) -> list[Verdict]:
    """Run the graph of every architecture."""
    from bench.gpu_kernels import read_kernels

    if not artifacts:
        return [not_measured("gpu_families", "no artifacts: --families FOLDER")]
    found = read_kernels(artifacts)
    for artifact, kernels in zip(artifacts, found, strict=True):
        progress(f"{artifact.name:<24} {kernels.describe()}")
    cosines = [-1.0 if kernels.error else kernels.cosine for kernels in found]
    return [
        judge("gpu_families", min(cosines), f"{len(artifacts)} architectures"),
        judge("gpu_fallback", max(len(kernels.off_gpu) for kernels in found), f"{len(artifacts)} architectures"),
    ]


def measure_workers(directory: Path, seconds: float) -> list[Verdict]:
    """Print the throughput of several workers beside the GPU's utilization."""
    best = 0.0
    progress("workers   texts/s   GPU utilization")
    for workers in WORKERS:
        if workers > (os.cpu_count() or 1):
            break
        with gpu_utilization() as used:
            texts, _ = measure_server(directory, seconds, workers=workers)
        progress(f"{workers:>7} {texts:>9.0f} {sum(used) / max(1, len(used)):>13.0f} %")
        best = max(best, texts)
    return [judge("gpu_workers", best)]


@contextmanager
def gpu_utilization() -> Iterator[list[float]]:
    """Yield a list that contains the GPU utilization samples, in percent, after the block."""
    samples: list[float] = []
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield samples
    finally:
        process.terminate()
        output, _ = process.communicate()
        samples += [float(line) for line in output.split() if line.strip().isdigit()]


def make_minilm(out: Path) -> Path:
    """Export the default model if its package is installed, otherwise a random model of the same size."""
    from model.source.hub import SourceError

    try:
        return gpu_artifacts.export_artifact("default", out)
    except SourceError:
        return gpu_artifacts.make_artifact(gpu_artifacts.MINILM, out)


def measure_engine(directory: Path, seconds: float) -> list[Verdict]:
    """Measure G1, G2, G4 and G5. Only the kernels are read in a separate process."""
    from bench import gpu_engine
    from bench.gpu_kernels import read_kernels
    from bench.project import Model
    from bench.workloads import read_corpus
    from model.artifact.files import TOKENIZER, Artifact
    from model.artifact.tokenizer import Tokenizer

    artifact = Artifact.open(directory)
    manifest = artifact.manifest
    (kernels,) = read_kernels([directory])
    progress(kernels.describe())
    backend = gpu_engine.open_on(artifact, "cuda")
    before = time.perf_counter()
    backend.warm_up()
    progress(f"warm-up of all shapes took {time.perf_counter() - before:.1f} s")
    tokenizer = Tokenizer(artifact.read(TOKENIZER))
    full = gpu_engine.full_texts(tokenizer, manifest.architecture.vocab_size, FULL_SIZE, FULL_TEXTS)
    sentences = [text for text, _ in read_corpus(Model(directory).tokenizer()).sentences]
    mixed = gpu_engine.sentence_texts(tokenizer, sentences, manifest.max_input_tokens)
    full_rate = gpu_engine.measure_throughput(backend, full, seconds)
    mixed_rate = gpu_engine.measure_throughput(backend, mixed, seconds)
    single_ms = gpu_engine.measure_latency_ms(backend, full, SINGLE_RUNS)
    cosine = gpu_engine.measure_accuracy(backend, artifact, mixed[:ACCURACY_TEXTS])
    progress(
        f"full batches {full_rate:.0f} tokens/s, mixed {mixed_rate:.0f}, one text {single_ms:.2f} ms, "
        f"cosine {cosine:.7f}"
    )
    return [
        judge("gpu_full", full_rate),
        judge("gpu_mixed", mixed_rate / full_rate),
        judge("gpu_single", single_ms),
        *kernels.verdicts(manifest.architecture.num_hidden_layers),
        judge("gpu_cosine", cosine, f"{ACCURACY_TEXTS} texts"),
    ]


def measure_server(directory: Path, seconds: float, workers: int = 1) -> tuple[float, float]:
    """Return texts per second over gRPC, and the mean number of tokens per text."""
    from bench.project import Model
    from bench.rpc_load import run_rpc
    from bench.workloads import read_corpus

    corpus = read_corpus(Model(directory).tokenizer()).sentences
    texts = [text for text, _ in corpus]
    bodies = [{"inputs": texts[at : at + SERVED_TEXTS]} for at in range(0, len(texts), SERVED_TEXTS)]
    processes = max(1, (os.cpu_count() or 2) // 2)
    with serving(directory, workers=workers) as address, bodies_file(bodies) as file:
        load = Load(address, CALLS // processes * processes, file)
        run_rpc(load, 2.0, processes)
        answered = run_rpc(load, seconds, processes)
    rate = answered.per_second * SERVED_TEXTS
    progress(
        f"{directory.parent.name} over gRPC: {rate:.0f} texts/s, p50 {answered.p50_ms:.1f} ms, "
        f"p99 {answered.p99_ms:.1f} ms, {answered.failed} failed"
    )
    return rate, sum(size for _, size in corpus) / len(corpus)


@contextmanager
def serving(directory: Path, **options: object) -> Iterator[str]:
    """Start a server on the GPU in a separate process and yield its gRPC address."""
    values = {"model_dir": directory, "provider": "cuda", "rest_port": 0, "grpc_port": 0, "admin_port": 0}
    values |= {"max_queue_tokens": 1 << 20} | options
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTENDANT_")}
    environment |= {f"ATTENDANT_{name.upper()}": str(value) for name, value in values.items()}
    command = [sys.executable, "-m", "service", "serve"]
    with started(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        words = process.stdout.readline().replace(",", " ").split()
        if "gRPC" not in words:
            raise RuntimeError("the server did not become ready, see its log above")
        yield words[words.index("gRPC") + 1]


def describe_machine() -> str:
    import onnxruntime

    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        gpu = "unknown GPU (nvidia-smi failed)"
    return f"{gpu}; {os.cpu_count()} CPUs; onnxruntime {onnxruntime.__version__}; Python {platform.python_version()}"


def progress(line: str) -> None:
    print(f"[{time.monotonic() - STARTED:5.1f} s] {line}", flush=True)


def _fail(message: str) -> int:
    print(f"bench-gpu: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
