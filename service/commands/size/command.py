"""`attendant size`: replicas, cores and memory for a load, with every step of the calculation."""

import argparse
import json
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from model.artifact.files import Artifact
from service.commands.arguments import Parser, integer, number
from service.commands.size.capacity import (
    DEFAULT_MODEL,
    LOAD_MIB,
    MANIFEST_LIMIT_MIB,
    MEASURED_CPU,
    TOKENS_PER_SECOND_PER_CORE,
    Capacity,
    Load,
    ModelShape,
    cheapest,
    memory_mib,
)

DESCRIPTION = "Calculate replicas, cores and memory for a load, showing every step."
EPILOG = f"""\
CPU figures were measured on one machine ({MEASURED_CPU}) with the default model.
Other CPUs differ by a factor of two or more: run `make bench`, divide W32's tokens/s by the number of cores, and pass
the result to --tokens-per-second-per-core. No GPU has been measured: run `make bench-gpu` and pass --tokens-per-second.

example: attendant size --texts-per-second 100000 --mean-tokens 16
"""


MEASURED_CORES = 2
"""Cores of the replica that --tokens-per-second was measured on, by default."""


def run(arguments: Sequence[str]) -> int:
    """Print the calculation and return 0. Raises `ArtifactError`, or `SystemExit` for a usage error."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.hardware == "gpu" and options.tokens_per_second is None:
        parser.error(
            "--hardware gpu: requires --tokens-per-second, because no GPU has been measured. "
            "Run make bench-gpu on yours and pass its tokens/s"
        )
    model = DEFAULT_MODEL
    if options.model_dir is not None:
        model = ModelShape.of(Artifact.open(options.model_dir).manifest)
    limit = model.max_input_tokens if options.max_tokens is None else options.max_tokens
    if options.mean_tokens > limit:
        parser.error(
            f"--mean-tokens: over the token limit of {model.name} ({_show(options.mean_tokens)}, limit {limit}). "
            "Longer texts are truncated or rejected; reduce it or set --max-tokens"
        )
    load = Load(options.texts_per_second, options.mean_tokens, options.inputs_per_request, options.utilization)
    (rate, source), spare = _throughput(options, model), options.spare_replicas
    best = cheapest(load, rate, spare)
    capacity = best
    if options.hardware == "gpu":
        capacity = Capacity(load, "gpu", rate, 1, spare)
    elif options.cores_per_replica is not None or options.tokens_per_second is not None:
        capacity = Capacity(load, "cpu", rate, options.cores_per_replica or MEASURED_CORES, spare)
    if options.json:
        print(json.dumps(_record(capacity, model), indent=2))  # orjson rejects integers over 64 bits
        return 0
    print("\n".join(_lines(capacity, model, source)))
    if capacity.hardware == "cpu" and best.total_units < capacity.total_units:
        shape = f"{_count(best.total_replicas)} of {best.cores_per_replica} cores"
        print(f"Cheaper: {shape}, {best.total_units:,} cores in total. Leave --cores-per-replica out.")
    return 0


def _parser() -> Parser:
    parser = Parser("attendant size", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--texts-per-second", type=number("1e-3", "1e12"), required=True, metavar="N", help="texts per second at peak")
    add("--mean-tokens", type=number("1", "1e6"), required=True, metavar="M",
        help="mean tokens per text including special tokens, as counted by /v1/tokenize")  # fmt: skip
    add("--inputs-per-request", type=integer(1, 2048), default=1, metavar="I", help="texts per request (default: 1)")
    add("--precision", choices=tuple(TOKENS_PER_SECOND_PER_CORE), default="bfloat16",
        help="precision on a CPU (default: bfloat16, which needs AVX512-BF16 or AMX)")  # fmt: skip
    add("--hardware", choices=("cpu", "gpu"), default="cpu", help="hardware of a replica (default: cpu)")
    shape = f"cores per replica (default: the cheapest shape, or {MEASURED_CORES} with --tokens-per-second)"
    add("--cores-per-replica", type=integer(1, 1024), metavar="C", help=shape)
    add("--spare-replicas", type=integer(0, 1000), default=1, metavar="S",
        help="replicas that may be lost or replaced at any time (default: 1)")  # fmt: skip
    add("--utilization", type=number("0.01", "1"), default=Fraction(6, 10), metavar="U",
        help="share of the capacity to use; the rest is headroom for peaks and autoscaling (default: 0.6)")  # fmt: skip
    add("--model-dir", type=Path, metavar="DIR", help="artifact to size for; an estimate (default: the default model)")
    add("--max-tokens", type=integer(1, 10**6), metavar="T", help="token limit per text (default: the model's)")
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--tokens-per-second-per-core", type=number("1", "1e9"), metavar="R",
        help="measured throughput of your model on your CPU, per core")  # fmt: skip
    rate.add_argument("--tokens-per-second", type=number("1", "1e12"), metavar="R",
        help="measured throughput of your model on a whole replica; required for a GPU")  # fmt: skip
    add("--json", action="store_true", help="print JSON")
    return parser


def _throughput(options: argparse.Namespace, model: ModelShape) -> tuple[Fraction, str]:
    """Return the tokens per second of a core or GPU, and how they were determined."""
    if options.tokens_per_second is not None:
        cores = 1 if options.hardware == "gpu" else options.cores_per_replica or MEASURED_CORES
        source = f"--tokens-per-second {_show(options.tokens_per_second)}"
        return options.tokens_per_second / cores, source if options.hardware == "gpu" else f"{source} / {cores} cores"
    if options.tokens_per_second_per_core is not None:
        return options.tokens_per_second_per_core, "--tokens-per-second-per-core"
    measured = TOKENS_PER_SECOND_PER_CORE[options.precision]
    source = f"{options.precision}, measured: {MEASURED_CPU}"
    default, own = DEFAULT_MODEL.flops_per_token(Fraction(1)), model.flops_per_token(options.mean_tokens)
    if default != own:
        source = (
            f"{measured:,} ({source}) x {_show(default / 10**6)} / {_show(own / 10**6)} MFLOP per token, estimated: "
            "L x (24 x H^2 + 4 x T x H)"
        )
    return measured * default / own, source


def _lines(capacity: Capacity, model: ModelShape, source: str) -> list[str]:
    """Return the calculation, one step per line: name, formula, result."""
    load = capacity.load
    gpu = capacity.hardware == "gpu"
    unit = "GPU" if gpu else "core"
    replica = f"{capacity.cores_per_replica} {unit}{'s' if capacity.cores_per_replica > 1 else ''}"
    used = f"{_show(load.utilization)} utilization"
    inference, event_loop = _show(capacity.inference_units), _show(capacity.event_loop_cores)
    busy = inference if gpu else f"({inference} + {event_loop})"
    steps = [
        ("tokens", f"{_show(load.tokens_per_second)} tokens/s",
         f"{_show(load.texts_per_second)} texts/s x {_show(load.mean_tokens)} tokens"),
        ("requests", f"{_show(load.requests_per_second)} requests/s",
         f"{_show(load.texts_per_second)} texts/s / {load.inputs_per_request} per request"),
        ("throughput", f"{_show(capacity.tokens_per_second)} tokens/s per {unit}", source),
        ("inference", f"{inference} {unit}s busy",
         f"{_show(load.tokens_per_second)} tokens/s / {_show(capacity.tokens_per_second)}"),
        ("event loop", f"{event_loop} cores busy",
         f"{_show(load.requests_per_second)} requests/s x {_show(1000 * capacity.event_loop_s_per_request)} ms"),
        ("for compute", _count(capacity.compute_replicas), f"{busy} / ({used} x {replica})"),
        ("for event loop", _count(capacity.event_loop_replicas), f"{event_loop} / ({used} x 1 core per process)"),
        ("for the load", _count(capacity.replicas), f"the larger of the two; the limit is {capacity.limit}"),
        ("replicas", _count(capacity.total_replicas), f"{capacity.replicas:,} + {capacity.spare_replicas} spare"),
    ]  # fmt: skip
    return [*(f"{name:<15} {result:<26} = {formula}" for name, result, formula in steps), *_totals(capacity, model)]


def _totals(capacity: Capacity, model: ModelShape) -> list[str]:
    if capacity.hardware == "gpu":
        return [f"{'total':<15} {capacity.total_units:,} GPUs; memory has not been measured on a GPU"]
    memory = math.ceil(memory_mib(model))
    gibibytes = Fraction(capacity.total_replicas * max(memory, MANIFEST_LIMIT_MIB), 1024)
    growth = _show(memory_mib(model) - LOAD_MIB)
    lines = [
        f"{'memory':<15} {f'{memory:,} MiB per replica':<26} = {growth} at rest + {LOAD_MIB} under load; "
        f"the manifests reserve {MANIFEST_LIMIT_MIB:,}",
        f"{'total':<15} {capacity.total_units:,} cores, {_show(gibibytes)} GiB reserved",
    ]
    if memory > MANIFEST_LIMIT_MIB:
        lines.append(f"Warning: raise the memory of the manifests to at least {memory:,} MiB.")
    return lines


def _record(capacity: Capacity, model: ModelShape) -> dict[str, Any]:
    """Return the calculation as JSON."""
    load, memory = capacity.load, math.ceil(memory_mib(model))
    return {
        "replicas": capacity.total_replicas,
        "spare_replicas": capacity.spare_replicas,
        "limit": capacity.limit,
        "hardware": capacity.hardware,
        "cores_per_replica": capacity.cores_per_replica if capacity.hardware == "cpu" else None,
        "memory_mib_per_replica": memory if capacity.hardware == "cpu" else None,
        "tokens_per_second_needed": float(load.tokens_per_second),
        "requests_per_second_needed": float(load.requests_per_second),
        "tokens_per_second_per_unit": float(capacity.tokens_per_second),
        "inference_units_busy": float(capacity.inference_units),
        "event_loop_cores_busy": float(capacity.event_loop_cores),
        "utilization": float(load.utilization),
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
