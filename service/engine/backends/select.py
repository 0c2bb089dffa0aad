"""Where the model runs: a CUDA GPU, else the OpenVINO plugin where it can be had, else onnxruntime's CPU provider.

A GPU takes a graph of its own, which the artifact must hold.

The plugin computes in bfloat16 on CPUs that have the unit, which makes it several times faster; it is a separate
package that exists for x86-64 Linux and takes Intel processors only.
"""

import json
import math
import os
import platform
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import onnxruntime

from model.artifact import Artifact, GraphRecord
from service.config import ConfigError
from service.engine.backends.cuda_session import CUDA, FIRST_GPU, Gpu, built_for_cuda, gpu_count, open_session

OPENVINO = "OpenVINOExecutionProvider"
CPU = "CPUExecutionProvider"
PLUGIN_LIBRARY = "attendant_openvino"
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU time that a container may take in a period of so many; "max" where there is no limit."""

FEW_LENGTHS = (16, 32, 48, 64, 96, 128, 160, 192, 256)
"""For the plugin, which compiles for each new shape (3 to 25 ms) and keeps what it compiled."""
MANY_LENGTHS = tuple(range(4, 257, 4))
"""For onnxruntime itself, to which a new shape is nothing, and padding is all it could save."""
MOST_WIDE_THREADS = 4
"""A row of a few texts is too small for more."""

GPU_ROW_TOKENS = 16384
"""Enough to keep a large GPU busy."""
GPU_WINDOW = 1024
"""Texts that are looked at for such a row; with 16 tokens each they fill it."""

Precision = Literal["bfloat16", "float16", "float32", "int8"]


@dataclass(frozen=True)
class Provider:
    """A chosen provider: its precision, its graph, how many rows are in hand at once, and what rows suit it."""

    name: str
    precision: Precision
    workers: int
    shared_row_tokens: int
    row_lengths: tuple[int, ...]
    threads_per_run: int = 1
    wide_threads: int = 1
    """For a row that has the machine to itself; 1 where such a row is run like any other."""
    wide_tokens: int = 0
    """The longest such row; what is more is sooner done in several rows side by side."""
    compiles: bool = False
    """Whether it prepares for each length of row that it meets, so that all are to be run before the first request."""
    graph: str = "fast"
    window: int = 64
    gpu: Gpu = FIRST_GPU

    def open(self, artifact: Artifact, graph: GraphRecord, *, wide: bool = False) -> onnxruntime.InferenceSession:
        """A session over the very bytes that were verified.

        The threads of a `wide` run wait for each other awake: there are a hundred such waits in a run of 3 ms, and
        nothing else that has work. Those of others sleep, for the event loop needs the core.
        """
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self.wide_threads if wide else self.threads_per_run
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if wide else "0")
        options.add_session_config_entry("session.force_spinning_stop", "1")
        weights = artifact.read(graph.weights)
        options.add_external_initializers_from_files_in_memory([graph.weights], [weights], [len(weights)])
        if self.name == CUDA:
            return open_session(artifact.read(graph.file), options, self.gpu)
        if self.name == CPU:
            return onnxruntime.InferenceSession(artifact.read(graph.file), options, providers=[CPU])
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        device = _openvino_cpu()
        assert device is not None
        plugin = {
            "INFERENCE_PRECISION_HINT": {"bfloat16": "bf16", "float32": "f32"}[self.precision],
            "INFERENCE_NUM_THREADS": str(self.workers),
            "NUM_STREAMS": str(self.workers),
        }
        options.add_provider_for_devices([device], {"load_config": json.dumps({"CPU": plugin})})
        return onnxruntime.InferenceSession(artifact.read(graph.file), options)


def choose_provider(
    provider: Literal["auto", "cuda", "openvino", "cpu"],
    precision: Literal["auto", "bfloat16", "float16", "float32", "int8"],
    threads: int = 0,
    row_tokens: int = 0,
    graphs: Collection[str] = ("fast",),
    gpu: Gpu = FIRST_GPU,
) -> Provider:
    """Decide where to run; raise `ConfigError` when what was asked for cannot be had here.

    `graphs` are the names of those that the artifact holds.
    """
    if provider in ("auto", "cuda") and precision in ("auto", "float16"):
        missing = _why_no_gpu(graphs, gpu)
        if missing is None:
            return gpu_provider(row_tokens, gpu)
        if provider == "cuda" or precision == "float16":
            option = "ATTENDANT_PROVIDER: cuda" if provider == "cuda" else "ATTENDANT_PRECISION: float16"
            raise ConfigError(f"{option} cannot be had here: {missing}")
    elif provider == "cuda" or precision == "float16":
        raise ConfigError(
            f"ATTENDANT_PRECISION: {provider} cannot compute in {precision}; float16 is CUDA's. Use auto."
        )
    workers = threads or available_cpus()
    if precision == "int8":
        return _choose_int8(provider, workers, row_tokens, graphs)
    return _choose_cpu(provider, precision, workers, row_tokens)


def gpu_provider(row_tokens: int = 0, gpu: Gpu = FIRST_GPU) -> Provider:
    """A GPU: long rows, and two workers, of whom one makes its row while the other's runs."""
    return Provider(CUDA, "float16", 2, row_tokens or GPU_ROW_TOKENS, (), graph="cuda", window=GPU_WINDOW, gpu=gpu)


def _why_no_gpu(graphs: Collection[str], gpu: Gpu) -> str | None:
    """What is missing for running on the GPU, and what to do about it; None when nothing is."""
    if not built_for_cuda():
        return "it needs onnxruntime-gpu in place of onnxruntime. Run: pip install 'attendant[gpu]'"
    if gpu.device >= (count := gpu_count()):
        return f"ATTENDANT_GPU_DEVICE is {gpu.device}, and the CUDA driver knows {count} devices."
    if "cuda" not in graphs:
        return "the artifact has no graph for it. Export it again: attendant-model export SOURCE -o DIR --with cuda"
    return None


def _choose_cpu(provider: str, precision: str, workers: int, row_tokens: int) -> Provider:
    device = None if provider == "cpu" else _openvino_cpu()
    if device is None:
        if provider == "openvino":
            raise ConfigError(
                "ATTENDANT_PROVIDER: openvino cannot be had here: it needs the package onnxruntime-ep-openvino "
                "and an Intel CPU. Leave it at auto."
            )
        if precision == "bfloat16":
            raise ConfigError(
                "ATTENDANT_PRECISION: bfloat16 needs the OpenVINO plugin on an Intel CPU; "
                "this is not one. Use auto or float32."
            )
        return _own_provider("float32", workers, row_tokens)
    has_bf16 = "BF16" in device.ep_metadata.get("OPTIMIZATION_CAPABILITIES", "").split()
    if precision == "bfloat16" and not has_bf16:
        raise ConfigError("ATTENDANT_PRECISION: this CPU has no bfloat16 unit. Use auto or float32.")
    chosen: Precision = "bfloat16" if precision != "float32" and has_bf16 else "float32"
    return Provider(OPENVINO, chosen, workers, row_tokens or 256, FEW_LENGTHS, compiles=True)


def _choose_int8(provider: str, workers: int, row_tokens: int, graphs: Collection[str]) -> Provider:
    """The graph of that name, on the provider that its cosine was measured on."""
    if provider == "openvino":
        raise ConfigError(
            "ATTENDANT_PRECISION: int8 runs on onnxruntime's own provider: set ATTENDANT_PROVIDER to cpu."
        )
    if "int8" not in graphs:
        raise ConfigError(
            "ATTENDANT_PRECISION: the artifact has no graph in int8. Export it again: "
            "attendant-model export SOURCE -o DIR --with int8"
        )
    if not _multiplies_int8():
        raise ConfigError(
            "ATTENDANT_PRECISION: int8 needs a CPU with VNNI; without it sums of products saturate. "
            "Use auto or float32."
        )
    return _own_provider("int8", workers, row_tokens, "int8")


def _own_provider(precision: Precision, workers: int, row_tokens: int, graph: str = "fast") -> Provider:
    shared, wide = row_tokens or 128, min(workers, MOST_WIDE_THREADS)
    return Provider(
        CPU, precision, workers, shared, MANY_LENGTHS, wide_threads=wide, wide_tokens=shared * 3 // 2, graph=graph
    )


def _multiplies_int8() -> bool:
    """Whether the CPU adds products of bytes in 32 bits; x86 without VNNI does it in 16."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return not {"avx512_vnni", "avx_vnni"}.isdisjoint(flags)


def explain_provider(threads: int = 0) -> Provider:
    """Where maps and layers are computed: float32, one text at a time, with half the threads for it.

    With all of them, embedding beside it lost a third of its rate and explaining gained nothing.
    """
    return Provider(CPU, "float32", 1, 1, MANY_LENGTHS, threads_per_run=max(1, (threads or available_cpus()) // 2))


def available_cpus(quota_file: Path = CGROUP_QUOTA) -> int:
    """CPUs this process may use: its affinity, and no more than its cgroup's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, math.ceil(int(quota) / int(period))))


@cache
def _openvino_cpu() -> onnxruntime.OrtEpDevice | None:
    """The plugin's CPU device; None where the package is not installed or does not take this processor."""
    try:
        import onnxruntime_ep_openvino
    except ModuleNotFoundError:
        return None
    onnxruntime.register_execution_provider_library(PLUGIN_LIBRARY, onnxruntime_ep_openvino.get_library_path())
    for device in onnxruntime.get_ep_devices():
        if device.ep_name == OPENVINO and device.ep_metadata.get("ov_device") == "CPU":
            return device
    return None
