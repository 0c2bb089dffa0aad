"""Backend selection at startup, based on settings, artifact and machine."""

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from model.artifact.files import Artifact
from model.artifact.manifest import GraphPrecision
from model.artifact.names import FAST, PADDED
from service.config import ConfigError, PrecisionOption, Provider
from service.engine.backends.base import DEFAULT_GPU, Backend, BackendChoice, Gpu
from service.engine.backends.cpu import CpuFeatures, available_cpus, detect_cpu
from service.engine.backends.cuda_session import built_for_cuda, gpu_count
from service.engine.backends.onnxruntime_cpu import OnnxRuntimeCpuBackend, PaddedBackend
from service.engine.backends.openvino import OpenVinoBackend
from service.engine.tasks import EncodeTask, TextVectors

OPENVINO_BATCH_TOKENS = 512
"""Eight rows of 64 tokens. Larger batches are slower, since their activations exceed a core's L2 cache."""
ONNXRUNTIME_BATCH_TOKENS = 128
"""One row. Longer rows cost more per token, since attention is quadratic."""
GPU_BATCH_TOKENS = 16384
"""Enough to saturate a large GPU."""
EXPORT_HINT = "Export it again: attendant-model export SOURCE -o DIR --variant"


@dataclass(frozen=True)
class Machine:
    """Hardware and software properties that determine the selection."""

    cpu: CpuFeatures
    cpus: int
    openvino: bool
    cuda_build: bool
    gpus: int

    @classmethod
    def detect(cls) -> "Machine":
        """Detect this machine."""
        cuda_build = built_for_cuda()
        openvino = importlib.util.find_spec("openvino") is not None
        return cls(detect_cpu(), available_cpus(), openvino, cuda_build, gpu_count() if cuda_build else 0)


@dataclass(frozen=True)
class BackendOptions:
    """Backend settings. 0 for `threads` or `max_batch_tokens` selects the backend's default."""

    provider: Provider = "auto"
    precision: PrecisionOption = "auto"
    threads: int = 0
    max_batch_tokens: int = 0
    gpu: Gpu = DEFAULT_GPU


def select_backend(options: BackendOptions, graphs: Mapping[str, GraphPrecision], machine: Machine) -> BackendChoice:
    """Return the backend to open for these options and the precisions of the artifact's graphs.

    Raises `ConfigError` if the requested one is not available.
    """
    provider, precision = options.provider, options.precision
    if PADDED in graphs:
        return _select_padded(options, graphs[PADDED], machine)
    if provider in ("auto", "cuda") and precision in ("auto", "float16"):
        missing = _missing_for_cuda(options, graphs, machine)
        if missing is None:
            tokens = options.max_batch_tokens or GPU_BATCH_TOKENS
            return BackendChoice("cuda", "float16", "cuda", 1, 1, tokens, "CUDA GPU found", options.gpu)
        if provider == "cuda":
            raise ConfigError(f'ATTENDANT_PROVIDER: "cuda" is not available: {missing}')
        if precision == "float16":
            raise ConfigError(f'ATTENDANT_PRECISION: "float16" requires a CUDA GPU: {missing}')
    _check_cpu(options, graphs, machine)
    openvino = machine.openvino and provider != "cpu"
    chosen, reason = _cpu_precision(options, graphs, machine)
    if machine.gpus and provider == "auto" and "cuda" not in graphs:
        reason += "; GPU unused: the artifact has no cuda graph"
    tokens = options.max_batch_tokens or (OPENVINO_BATCH_TOKENS if openvino else ONNXRUNTIME_BATCH_TOKENS)
    graph = "int8" if chosen == "int8" else FAST
    threads = options.threads or machine.cpus
    return BackendChoice("openvino" if openvino else "cpu", chosen, graph, threads, 1, tokens, reason)


def _select_padded(options: BackendOptions, precision: GraphPrecision, machine: Machine) -> BackendChoice:
    """Return the backend for an imported graph: only ONNX Runtime is certain to support its operators."""
    for name, value, supported in (
        ("PROVIDER", options.provider, "cpu"),
        ("PRECISION", options.precision, precision),
    ):
        if value not in ("auto", supported):
            raise ConfigError(
                f'ATTENDANT_{name}: "{value}" is not available for a model imported from an ONNX graph in {precision}. '
                'Use "auto", or export its PyTorch weights.'
            )
    tokens, threads = options.max_batch_tokens or ONNXRUNTIME_BATCH_TOKENS, options.threads or machine.cpus
    return BackendChoice("cpu", precision, PADDED, threads, 1, tokens, "imported from an ONNX graph")


def _missing_for_cuda(options: BackendOptions, graphs: Collection[str], machine: Machine) -> str | None:
    """Return the first unmet requirement for CUDA, with its remedy; None if all are met."""
    if not machine.cuda_build:
        return "onnxruntime-gpu is not installed. Replace onnxruntime with the gpu extra: pip install '.[gpu]'"
    if options.gpu.device >= machine.gpus:
        return f"ATTENDANT_GPU_DEVICE is {options.gpu.device}, but the driver reports {machine.gpus} GPUs."
    if "cuda" not in graphs:
        return f'the artifact has no "cuda" graph. {EXPORT_HINT} cuda'
    return None


def _check_cpu(options: BackendOptions, graphs: Collection[str], machine: Machine) -> None:
    """Raise `ConfigError` unless the requested provider and precision are available on this CPU."""
    provider, precision = options.provider, options.precision
    if provider == "cuda" or precision == "float16":
        raise ConfigError(f'ATTENDANT_PRECISION: "{precision}" is not supported by provider "{provider}". Use "auto".')
    if provider == "openvino" and not machine.openvino:
        raise ConfigError('ATTENDANT_PROVIDER: "openvino" is not installed. Use "auto", or: pip install openvino')
    if precision in ("bfloat16", "int8") and (provider == "cpu" or not machine.openvino):
        raise ConfigError(f'ATTENDANT_PRECISION: "{precision}" requires provider "openvino". Use "float32".')
    if precision == "bfloat16" and not machine.cpu.bfloat16:
        raise ConfigError('ATTENDANT_PRECISION: "bfloat16" requires a CPU with AVX512-BF16 or AMX. Use "auto".')
    if precision == "int8" and "int8" not in graphs:
        raise ConfigError(f'ATTENDANT_PRECISION: the artifact has no "int8" graph. {EXPORT_HINT} int8')
    if precision == "int8" and not machine.cpu.vnni:
        raise ConfigError('ATTENDANT_PRECISION: "int8" requires a CPU with VNNI. Use "auto" or "float32".')


def _cpu_precision(
    options: BackendOptions, graphs: Collection[str], machine: Machine
) -> tuple[Literal["bfloat16", "float32", "int8"], str]:
    """Return the precision to use on this CPU, and the reason."""
    precision, cpu = options.precision, machine.cpu
    if precision in ("bfloat16", "float32", "int8"):
        return precision, f"ATTENDANT_PRECISION={precision}"
    if cpu.fast_bfloat16 and machine.openvino and options.provider != "cpu":
        return "bfloat16", "CPU has AMX" if cpu.amx_bfloat16 else "CPU has AVX512-BF16"
    if cpu.fast_bfloat16:
        reason = "openvino is not in use, so bfloat16 is not available"
    elif cpu.bfloat16:
        reason = "CPU has AVX512-BF16 but no AMX, so float32 is faster than bfloat16"
    elif cpu.vnni and machine.openvino:
        reason = "CPU has VNNI but no bfloat16 support: ATTENDANT_PRECISION=int8 is faster and less accurate"
    else:
        reason = "CPU has no bfloat16 support (AVX512-BF16 or AMX)"
    if "cuda" in graphs and options.provider == "auto":
        reason += f"; cuda graph unused: {_missing_for_cuda(options, graphs, machine)}"
    return "float32", reason


def open_backend(artifact: Artifact, choice: BackendChoice) -> Backend[EncodeTask, TextVectors]:
    """Open the selected backend. Takes several seconds."""
    if choice.provider == "cuda":
        from service.engine.backends.cuda import CudaBackend  # imports onnxruntime, which may not be needed

        return CudaBackend(artifact, choice)
    if choice.graph == PADDED:
        return PaddedBackend(artifact, choice)
    return (
        OpenVinoBackend(artifact, choice) if choice.provider == "openvino" else OnnxRuntimeCpuBackend(artifact, choice)
    )


def explain_choice(graph: str, threads: int) -> BackendChoice:
    """Return the explain lane's choice: float32, one sequence at a time, on half of `threads` (0: half of all CPUs).

    With all threads, fast-lane throughput fell by a third and the explain lane was no faster.
    """
    half = max(1, (threads or available_cpus()) // 2)
    return BackendChoice("cpu", "float32", graph, 1, half, 1, "maps are computed in float32")
