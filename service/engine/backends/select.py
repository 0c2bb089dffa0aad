"""Selection of a backend at startup, from settings, artifact and machine."""

import importlib.util
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from model.artifact.files import Artifact
from service.config import ConfigError
from service.engine.backends.base import DEFAULT_GPU, Backend, BackendChoice, Gpu
from service.engine.backends.cpu import CpuFeatures, available_cpus, detect_cpu
from service.engine.backends.cuda_session import built_for_cuda, gpu_count
from service.engine.backends.onnxruntime_cpu import OnnxRuntimeCpuBackend
from service.engine.backends.openvino import OpenVinoBackend
from service.engine.tasks import EncodeTask, TextVectors

Provider = Literal["auto", "cuda", "openvino", "cpu"]
PrecisionOption = Literal["auto", "bfloat16", "float16", "float32", "int8"]

OPENVINO_BATCH_TOKENS = 512
"""Eight rows of 64 tokens: more per batch is slower, since the activations exceed the L2 cache of a core."""
ONNXRUNTIME_BATCH_TOKENS = 128
"""One row: longer ones cost more per token, since attention is quadratic."""
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


@dataclass(frozen=True)
class Selection:
    """Selection of a backend for given options, graphs and machine."""

    options: BackendOptions
    graphs: Collection[str]
    machine: Machine

    @cached_property
    def choice(self) -> BackendChoice:
        """The selected backend. Raises `ConfigError` if the requested one is unavailable."""
        provider, precision = self.options.provider, self.options.precision
        if provider in ("auto", "cuda") and precision in ("auto", "float16"):
            missing = self._missing_for_cuda
            if missing is None:
                return self._cuda()
            if provider == "cuda":
                raise ConfigError(f'ATTENDANT_PROVIDER: "cuda" is not available: {missing}')
            if precision == "float16":
                raise ConfigError(f'ATTENDANT_PRECISION: "float16" requires a CUDA GPU: {missing}')
        if provider == "cuda" or precision == "float16":
            raise ConfigError(
                f'ATTENDANT_PRECISION: "{precision}" is not supported by provider "{provider}". Use "auto".'
            )
        if provider == "openvino" and not self.machine.openvino:
            raise ConfigError('ATTENDANT_PROVIDER: "openvino" is not installed. Use "auto", or: pip install openvino')
        if precision == "int8":
            return self._int8()
        return self._cpu()

    def _cpu(self) -> BackendChoice:
        cpu, precision = self.machine.cpu, self.options.precision
        openvino = self.machine.openvino and self.options.provider != "cpu"
        if precision == "bfloat16":
            if not openvino:
                raise ConfigError('ATTENDANT_PRECISION: "bfloat16" requires provider "openvino". Use "float32".')
            if not cpu.bfloat16:
                raise ConfigError('ATTENDANT_PRECISION: "bfloat16" requires a CPU with AVX512-BF16 or AMX. Use "auto".')
            return self._openvino("bfloat16", "fast", "ATTENDANT_PRECISION=bfloat16")
        if precision == "auto" and openvino and cpu.fast_bfloat16:
            return self._openvino("bfloat16", "fast", "CPU has AMX" if cpu.amx_bfloat16 else "CPU has AVX512-BF16")
        reason = f"ATTENDANT_PRECISION={precision}" if precision != "auto" else self._float32_reason
        if openvino:
            return self._openvino("float32", "fast", reason)
        threads = self.options.threads or self.machine.cpus
        tokens = self.options.max_batch_tokens or ONNXRUNTIME_BATCH_TOKENS
        return BackendChoice("cpu", "float32", "fast", threads, 1, tokens, reason)

    def _int8(self) -> BackendChoice:
        if self.options.provider == "cpu" or not self.machine.openvino:
            raise ConfigError('ATTENDANT_PRECISION: "int8" requires provider "openvino". Use "float32".')
        if "int8" not in self.graphs:
            raise ConfigError(f'ATTENDANT_PRECISION: the artifact has no "int8" graph. {EXPORT_HINT} int8')
        if not self.machine.cpu.vnni:
            raise ConfigError('ATTENDANT_PRECISION: "int8" requires a CPU with VNNI. Use "auto" or "float32".')
        return self._openvino("int8", "int8", "ATTENDANT_PRECISION=int8")

    def _openvino(self, precision: Literal["float32", "bfloat16", "int8"], graph: str, reason: str) -> BackendChoice:
        threads = self.options.threads or self.machine.cpus
        tokens = self.options.max_batch_tokens or OPENVINO_BATCH_TOKENS
        return BackendChoice("openvino", precision, graph, threads, 1, tokens, reason)

    def _cuda(self) -> BackendChoice:
        tokens = self.options.max_batch_tokens or GPU_BATCH_TOKENS
        return BackendChoice("cuda", "float16", "cuda", 1, 1, tokens, "CUDA GPU found", self.options.gpu)

    @property
    def _missing_for_cuda(self) -> str | None:
        """The first unmet requirement for CUDA, with its remedy; None if all are met."""
        if not self.machine.cuda_build:
            return "onnxruntime-gpu is not installed. Replace onnxruntime with the gpu extra: pip install '.[gpu]'"
        if self.options.gpu.device >= self.machine.gpus:
            return (
                f"ATTENDANT_GPU_DEVICE is {self.options.gpu.device}, but the driver reports {self.machine.gpus} GPUs."
            )
        if "cuda" not in self.graphs:
            return f'the artifact has no "cuda" graph. {EXPORT_HINT} cuda'
        return None

    @property
    def _float32_reason(self) -> str:
        reasons = []
        if self.machine.cpu.fast_bfloat16:
            reasons.append("openvino is not in use, so bfloat16 is not available")
        elif self.machine.cpu.bfloat16:
            reasons.append("CPU has AVX512-BF16 but no AMX, so float32 is faster than bfloat16")
        elif self.machine.cpu.vnni and self.machine.openvino:
            reasons.append("CPU has VNNI but no bfloat16 support: ATTENDANT_PRECISION=int8 is faster and less accurate")
        else:
            reasons.append("CPU has no bfloat16 support (AVX512-BF16 or AMX)")
        if "cuda" in self.graphs and self.options.provider == "auto":
            reasons.append(f"cuda graph unused: {self._missing_for_cuda}")
        return "; ".join(reasons)


def select_backend(options: BackendOptions, graphs: Collection[str], machine: Machine) -> BackendChoice:
    """Return the backend for these options; raises `ConfigError` if it is not available."""
    choice = Selection(options, graphs, machine).choice
    if choice.provider != "cuda" and machine.gpus and options.provider == "auto" and "cuda" not in graphs:
        reason = f"{choice.reason}; GPU unused: the artifact has no cuda graph"
        return BackendChoice(**{**choice.__dict__, "reason": reason})
    return choice


def open_backend(artifact: Artifact, choice: BackendChoice) -> Backend[EncodeTask, TextVectors]:
    """Open the selected backend. Takes several seconds."""
    if choice.provider == "cuda":
        from service.engine.backends.cuda import CudaBackend  # imports onnxruntime, which may not be needed

        return CudaBackend(artifact, choice)
    return (
        OpenVinoBackend(artifact, choice) if choice.provider == "openvino" else OnnxRuntimeCpuBackend(artifact, choice)
    )


def explain_choice(graph: str, threads: int) -> BackendChoice:
    """Return the choice of the explain lane: float32, one sequence at a time, on half the threads (0: of all CPUs).

    With all threads, fast-lane throughput fell by a third and the explain lane was no faster.
    """
    half = max(1, (threads or available_cpus()) // 2)
    return BackendChoice("cpu", "float32", graph, 1, half, 1, "maps are computed in float32")
