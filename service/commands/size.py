"""`attendant size`: replicas, cores and memory for a load, computed from measurements with exact fractions.

CPU figures come from bench/README.md: 2026-11-22, OpenVINO, two shared cores of an Intel Xeon with AMX and
AVX512-VNNI, the default model, sentences with a mean of 23 tokens, and the load generator running on the same cores.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from model.artifact.console import EX_CONFIG
from model.artifact.files import MANIFEST, Artifact
from model.artifact.manifest import Manifest
from model.artifact.names import SourceError
from model.source.model_size import read_model_size
from service.commands.arguments import CommandError, Parser, integer, number
from service.engine.loading_memory import WEIGHT_COPIES, weight_bytes

MEASURED_CPU = "Intel Xeon with AMX, 2 shared cores, 2026-11-22"
MEASURED_CORES = 2
TOKENS_PER_SECOND_PER_CORE = {"bfloat16": 13_600, "float32": 4_200, "int8": 6_400}
"""W32 of the bench: 1,185 texts/s of 23 tokens through the server on two cores in bfloat16.

float32 and int8 reached 0.31 and 0.47 of the bfloat16 throughput under the same load in the same minute.
"""
EVENT_LOOP_S_PER_REQUEST = Fraction(50, 100_000)
EVENT_LOOP_S_PER_TEXT = Fraction(8, 100_000)
"""CPU time of the event loop over REST at capacity: 0.58 ms per single-text request in the open-loop bench.

At lower load it is 0.38 ms, and 2.86 ms for a request with 32 texts.
"""
SHAPES = (2, 4, 8, 16)
"""Candidate numbers of cores per replica. A single core has not been measured with the load generator on other cores.
"""
MEASURED_GPU = "NVIDIA H200, the engine alone, float16, sentences of 24 tokens"
GPU_TOKENS_PER_SECOND, MOST_GPU_TOKENS_PER_SECOND = 1_570_000, 3_740_000
"""Throughput of BERT-base, and of the default model, which is not limited by GPU arithmetic."""
GPU_MIB = 1536
"""GPU memory of a server with the default model."""
DEFAULT_MEAN_TOKENS = 128
"""A passage of about 100 English words."""
ROW_TOKENS = 128
"""Texts share rows of this length, and attention is computed over whole rows."""
REST_MIB = 419
"""Resident memory of an idle server with the default model."""
LOAD_MIB = 353
"""Memory growth under load, up to the high-water mark of 772 MiB in `make soak`, an hour of mixed requests."""
MANIFEST_LIMIT_MIB = 2048
"""Container memory limit in deploy/overlays/cpu."""

DESCRIPTION = "Calculate replicas, cores and memory for a load, showing every step."
EPILOG = f"""\
CPU figures were measured on one machine ({MEASURED_CPU}) with the default model.
Other CPUs differ by a factor of two or more: run `make bench`, divide W32's tokens/s by the number of cores, and pass
the result to --tokens-per-second-per-core. GPU figures were measured on one GPU ({MEASURED_GPU});
measure yours with `make bench-gpu` and pass --tokens-per-second. Figures of other models are estimates: they are scaled
by the operations per token.

examples:
  attendant size --texts-per-second 100000 --mean-tokens 16
  attendant size BAAI/bge-m3 --texts-per-second 50 --mean-tokens 400
  attendant size BAAI/bge-m3 --texts-per-second 5000 --hardware gpu --workers 8
"""


@dataclass(frozen=True)
class ModelShape:
    """The properties of an encoder that determine its cost. `weights_mib` is the size of its weights in float32."""

    name: str
    num_hidden_layers: int
    attention_size: int
    layer_weights: int
    max_input_tokens: int
    weights_mib: Fraction

    @classmethod
    def of(cls, manifest: Manifest) -> "ModelShape":
        """Return the shape of an artifact, assuming BERT's feed-forward layers, of 4 * H."""
        sizes, weights = manifest.architecture, Fraction(weight_bytes(manifest), 2**20)
        size = sizes.hidden_size
        return cls(manifest.name, sizes.num_hidden_layers, size, 12 * size**2, manifest.max_input_tokens, weights)

    @classmethod
    def read(cls, source: str) -> "ModelShape":
        """Return the shape of an artifact, of published files, or of a Hugging Face model. Raises `CommandError`."""
        if (Path(source) / MANIFEST).is_file():
            return cls.of(Artifact.open(Path(source)).manifest)
        try:
            size = read_model_size(source)
        except SourceError as error:
            raise CommandError(str(error), EX_CONFIG) from None
        weights = Fraction(4 * size.parameters, 2**20)
        return cls(
            size.name, size.num_hidden_layers, size.attention_size, size.layer_weights, size.max_input_tokens, weights
        )

    def flops_per_token(self, tokens: Fraction) -> Fraction:
        """Return the floating-point operations per token of a text of `tokens`: L * (2 * W + 4 * T * H).

        Per layer, each token is multiplied by W weights, in BERT 4 * H^2 of query, key, value and output and 8 * H^2 of
        the feed-forward layers; query-key and probs-value products take T * H multiplications each. A multiplication
        plus an addition counts as two operations. Embeddings, softmax and normalization are ignored. A BERT-base-sized
        model needs 7.8 times as many operations as the default model but took 5 times as long, because large products
        are faster. Source: Kaplan et al., Scaling Laws for Neural Language Models, 2020, table 1, where the attention
        term is half of this one because of the causal mask.
        """
        length = max(tokens, Fraction(ROW_TOKENS))
        return self.num_hidden_layers * (2 * self.layer_weights + 4 * length * self.attention_size)

    @property
    def memory_mib(self) -> Fraction:
        """A replica's resident memory under load: the measured one plus the copies of additional weights."""
        return REST_MIB + LOAD_MIB + WEIGHT_COPIES * (self.weights_mib - DEFAULT_MODEL.weights_mib)

    @property
    def gpu_mib(self) -> Fraction:
        """A server's GPU memory: the measured one plus additional weights in float16."""
        return GPU_MIB + (self.weights_mib - DEFAULT_MODEL.weights_mib) / 2


DEFAULT_MODEL = ModelShape("all-MiniLM-L6-v2", 6, 384, 12 * 384**2, 256, Fraction(90_261_504, 2**20))
"""The model that was measured, with 22.7 million parameters."""
GPU_MODEL = ModelShape("BERT-base", 12, 768, 12 * 768**2, 512, Fraction(440_000_000, 2**20))
"""The model whose GPU throughput is scaled to estimate other models."""


@dataclass(frozen=True)
class Load:
    """The load to serve, and how replicas serve it.

    `utilization` is the share of the capacity to use; the rest is headroom for peaks. `workers`: processes per replica.
    """

    texts_per_second: Fraction
    mean_tokens: Fraction
    inputs_per_request: int
    utilization: Fraction
    workers: int = 1


class Capacity:
    """The replicas for a load.

    `tokens_per_second` is the inference throughput per core, or per GPU. Cores run inference and the event loop; on a
    GPU, `cores_per_replica` is 1, the GPU. `spare_replicas` may be lost or replaced while the load is served.
    """

    def __init__(
        self, load: Load, hardware: Literal["cpu", "gpu"], tokens_per_second: Fraction, cores_per_replica: int,
        spare_replicas: int = 0,
    ) -> None:  # fmt: skip
        self.load, self.hardware, self.tokens_per_second = load, hardware, tokens_per_second
        self.cores_per_replica, self.spare_replicas = cores_per_replica, spare_replicas
        self.needed_tokens_per_second = load.texts_per_second * load.mean_tokens
        self.requests_per_second = load.texts_per_second / load.inputs_per_request
        self.event_loop_s = EVENT_LOOP_S_PER_REQUEST + EVENT_LOOP_S_PER_TEXT * load.inputs_per_request
        # A worker has one event loop, which uses at most one core.
        self.event_loop_cores = self.requests_per_second * self.event_loop_s
        self.inference_units = self.needed_tokens_per_second / tokens_per_second
        self.busy_units = self.inference_units + (self.event_loop_cores if hardware == "cpu" else 0)
        self.compute_replicas = math.ceil(self.busy_units / (load.utilization * cores_per_replica))
        self.event_loop_replicas = math.ceil(self.event_loop_cores / (load.utilization * load.workers))
        self.replicas = max(self.compute_replicas, self.event_loop_replicas)
        self.limit = "event loop" if self.event_loop_replicas > self.compute_replicas else "compute"
        self.total_replicas = self.replicas + spare_replicas
        self.total_units = self.total_replicas * cores_per_replica


def cheapest(load: Load, tokens_per_second: Fraction, spare_replicas: int) -> Capacity:
    """Return the CPU configuration with the fewest cores or, if tied, the fewest replicas."""
    shapes = [Capacity(load, "cpu", tokens_per_second, cores, spare_replicas) for cores in SHAPES]
    return min(shapes, key=lambda shape: (shape.total_units, shape.total_replicas))


def run(arguments: Sequence[str]) -> int:
    """Print the calculation and return 0. Raises `ArtifactError`, or `SystemExit` for a usage error."""
    parser = _parser()
    options = parser.parse_args(arguments)
    source = options.source or options.model_dir
    if options.source is not None and options.model_dir is not None:
        parser.error("--model-dir: set together with SOURCE. Remove one of them")
    model = DEFAULT_MODEL if source is None else ModelShape.read(str(source))
    limit = options.max_tokens or model.max_input_tokens
    if options.mean_tokens is None:
        options.mean_tokens = Fraction(min(limit, DEFAULT_MEAN_TOKENS))
    elif options.mean_tokens > limit:
        problem = f"over the token limit of {model.name} ({_show(options.mean_tokens)}, limit {limit})"
        parser.error(f"--mean-tokens: {problem}. Reduce it or set --max-tokens")
    load = Load(
        options.texts_per_second, options.mean_tokens, options.inputs_per_request, options.utilization, options.workers
    )
    rate, source = _throughput(options, model)
    capacity = cheapest(load, rate, options.spare_replicas)
    if options.hardware == "gpu":
        capacity = Capacity(load, "gpu", rate, 1, options.spare_replicas)
    elif options.cores_per_replica is not None or options.tokens_per_second is not None:
        capacity = Capacity(load, "cpu", rate, options.cores_per_replica or MEASURED_CORES, options.spare_replicas)
    if options.json:
        print(json.dumps(_record(capacity, model), indent=2))  # orjson rejects integers over 64 bits
    else:
        for name, result, formula in _steps(capacity, model, source):
            print(f"{name:<12} {result:<26}{' = ' + formula if formula else ''}".rstrip())
    return 0


def _parser() -> Parser:
    parser = Parser("attendant size", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("source", nargs="?", metavar="SOURCE", help="artifact, directory with config.json, or Hugging Face model ID, "
        "of which only config.json is read (default: the default model)")  # fmt: skip
    add("--texts-per-second", type=number("1e-3", "1e12"), required=True, metavar="N", help="texts per second at peak")
    add("--mean-tokens", type=number("1", "1e6"), metavar="M",
        help="mean tokens per text including special tokens, as counted by /v1/tokenize (default: "
        f"{DEFAULT_MEAN_TOKENS}, a passage of about 100 words)")  # fmt: skip
    add("--inputs-per-request", type=integer(1, 2048), default=1, metavar="I", help="texts per request (default: 1)")
    add("--precision", choices=tuple(TOKENS_PER_SECOND_PER_CORE), default="bfloat16",
        help="precision on a CPU (default: bfloat16, which needs AVX512-BF16 or AMX)")  # fmt: skip
    add("--hardware", choices=("cpu", "gpu"), default="cpu", help="hardware of a replica (default: cpu)")
    shape = f"cores per replica (default: the cheapest shape, or {MEASURED_CORES} with --tokens-per-second)"
    add("--cores-per-replica", type=integer(1, 1024), metavar="C", help=shape)
    add("--workers", type=integer(1, 64), default=1, metavar="W",
        help="workers per replica, each with an event loop and the memory of a server (default: 1)")  # fmt: skip
    add("--spare-replicas", type=integer(0, 1000), default=1, metavar="S",
        help="replicas that may be lost or replaced at any time (default: 1)")  # fmt: skip
    add("--utilization", type=number("0.01", "1"), default=Fraction(6, 10), metavar="U",
        help="share of the capacity to use; the rest is headroom for peaks and autoscaling (default: 0.6)")  # fmt: skip
    add("--model-dir", type=Path, metavar="DIR", help="the same as SOURCE")
    add("--max-tokens", type=integer(1, 10**6), metavar="T", help="token limit per text (default: the model's)")
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--tokens-per-second-per-core", type=number("1", "1e9"), metavar="R",
        help="measured throughput of your model on your CPU, per core")  # fmt: skip
    rate.add_argument("--tokens-per-second", type=number("1", "1e12"), metavar="R",
        help="measured throughput of your model on a whole replica")  # fmt: skip
    add("--json", action="store_true", help="print JSON")
    return parser


def _throughput(options: argparse.Namespace, model: ModelShape) -> tuple[Fraction, str]:
    """Return the tokens per second of a core or GPU, and how they were determined."""
    if options.tokens_per_second is not None:
        cores = 1 if options.hardware == "gpu" else options.cores_per_replica or MEASURED_CORES
        return options.tokens_per_second / cores, "--tokens-per-second" + (f" / {cores} cores" if cores > 1 else "")
    if options.tokens_per_second_per_core is not None:
        return options.tokens_per_second_per_core, "--tokens-per-second-per-core"
    if options.hardware == "gpu":
        base, own = GPU_MODEL.flops_per_token(options.mean_tokens), model.flops_per_token(options.mean_tokens)
        rate = min(GPU_TOKENS_PER_SECOND * base / own, Fraction(MOST_GPU_TOKENS_PER_SECOND))
        return rate, f"estimated from {GPU_MODEL.name} ({MEASURED_GPU})"
    measured = TOKENS_PER_SECOND_PER_CORE[options.precision]
    source = f"{options.precision}, measured: {MEASURED_CPU}"
    default, own = DEFAULT_MODEL.flops_per_token(Fraction(1)), model.flops_per_token(options.mean_tokens)
    if default != own:
        source = f"{measured:,} ({source}) x {_show(default / 10**6)} / {_show(own / 10**6)} MFLOP per token, estimated"
    return measured * default / own, source


def _steps(capacity: Capacity, model: ModelShape, source: str) -> Iterator[tuple[str, str, str]]:
    """Yield the calculation: name, result and formula of each step."""
    load, cores = capacity.load, capacity.cores_per_replica
    unit = "GPU" if capacity.hardware == "gpu" else "core"
    inference, event_loop = _show(capacity.inference_units), _show(capacity.event_loop_cores)
    used = f"{_show(load.utilization)} utilization"
    loops = "1 core per process" if load.workers == 1 else f"{load.workers} workers x 1 core"
    yield ("tokens", f"{_show(capacity.needed_tokens_per_second)} tokens/s",
           f"{_show(load.texts_per_second)} texts/s x {_show(load.mean_tokens)} tokens")  # fmt: skip
    yield "throughput", f"{_show(capacity.tokens_per_second)} tokens/s per {unit}", source
    yield "inference", f"{inference} {unit}s busy", "tokens / throughput"
    yield ("event loop", f"{event_loop} cores busy",
           f"{_show(capacity.requests_per_second)} requests/s x {_show(1000 * capacity.event_loop_s)} ms")  # fmt: skip
    busy = inference if unit == "GPU" else f"({inference} + {event_loop})"
    yield "compute", _count(capacity.compute_replicas), f"{busy} / ({used} x {cores} {unit}{'s' * (cores > 1)})"
    yield (
        "event loops",
        _count(capacity.event_loop_replicas),
        f"{event_loop} / ({used} x {loops})",
    )
    yield ("replicas", _count(capacity.total_replicas),
           f"{capacity.replicas:,} (the limit is {capacity.limit}) + {capacity.spare_replicas} spare")  # fmt: skip
    if unit == "GPU":
        memory = math.ceil(model.gpu_mib) * load.workers
        yield "GPU memory", f"{memory:,} MiB per replica", "estimated; each worker has its copy of the model"
        yield "total", f"{capacity.total_units:,} GPUs", ""
        return
    memory = math.ceil(model.memory_mib) * load.workers
    raise_limit = "; raise the limit of the manifests" if memory > MANIFEST_LIMIT_MIB else ""
    parts = f"{_show(model.memory_mib - LOAD_MIB)} at rest + {LOAD_MIB} under load"
    parts = f"{load.workers} workers x ({parts})" if load.workers > 1 else parts
    yield ("memory", f"{memory:,} MiB per replica",
           f"{parts}{raise_limit}")  # fmt: skip
    reserved = Fraction(capacity.total_replicas * max(memory, MANIFEST_LIMIT_MIB), 1024)
    yield "total", f"{capacity.total_units:,} cores, {_show(reserved)} GiB reserved", ""


def _record(capacity: Capacity, model: ModelShape) -> dict[str, Any]:
    """Return the calculation as JSON."""
    is_cpu = capacity.hardware == "cpu"
    return {
        "replicas": capacity.total_replicas,
        "spare_replicas": capacity.spare_replicas,
        "limit": capacity.limit,
        "hardware": capacity.hardware,
        "cores_per_replica": capacity.cores_per_replica if is_cpu else None,
        "workers_per_replica": capacity.load.workers,
        "memory_mib_per_replica": math.ceil(model.memory_mib) * capacity.load.workers if is_cpu else None,
        "gpu_memory_mib_per_replica": None if is_cpu else math.ceil(model.gpu_mib) * capacity.load.workers,
        "tokens_per_second_needed": float(capacity.needed_tokens_per_second),
        "requests_per_second_needed": float(capacity.requests_per_second),
        "tokens_per_second_per_unit": float(capacity.tokens_per_second),
        "inference_units_busy": float(capacity.inference_units),
        "event_loop_cores_busy": float(capacity.event_loop_cores),
        "utilization": float(capacity.load.utilization),
        "compute_replicas": capacity.compute_replicas,
        "event_loop_replicas": capacity.event_loop_replicas,
    }


def _count(replicas: int) -> str:
    return f"{replicas:,} replica{'' if replicas == 1 else 's'}"


def _show(value: Fraction) -> str:
    """Format a number with thousands separators; non-integers have four significant digits."""
    if value >= 1000 or value.denominator == 1:
        return f"{round(value):,}"
    return f"{float(value):.4g}"
