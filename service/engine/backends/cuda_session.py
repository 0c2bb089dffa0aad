"""CUDA device detection, and sessions that never fall back to the CPU."""

import contextlib
import ctypes
import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from service.config import ConfigError
from service.engine.backends.base import Gpu

if TYPE_CHECKING:
    import onnxruntime

CUDA = "CUDAExecutionProvider"
CUDA_LIBRARY = "capi/libonnxruntime_providers_cuda.so"
DRIVER = "libcuda.so.1"
WITHOUT_TENSORRT = ("ORT_DISABLE_FUSED_ATTENTION", "ORT_DISABLE_TRT_FLASH_ATTENTION")
"""Variables that disable TensorRT's attention kernels in ONNX Runtime.

ONNX Runtime would use them on GPUs before Hopper if the projections are fused. They accumulate in float16, which can
overflow; its other kernels accumulate in float32.
"""
OUT_OF_MEMORY = (
    "Available memory of", "Failed to allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
)  # fmt: skip
"""Substrings of ONNX Runtime's messages when its memory limit or the device's memory is exhausted."""

log = logging.getLogger("attendant.gpu")


def built_for_cuda() -> bool:
    """Return whether the installed onnxruntime includes the CUDA provider, without importing it."""
    spec = importlib.util.find_spec("onnxruntime")
    return spec is not None and spec.origin is not None and (Path(spec.origin).parent / CUDA_LIBRARY).is_file()


def gpu_count() -> int:
    """Return the number of GPUs that the driver reports; 0 without a driver."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def open_session(graph: bytes, options: "onnxruntime.SessionOptions", gpu: Gpu) -> "onnxruntime.InferenceSession":
    """Open a session on the GPU, with CUDA graphs if available. Raises `ConfigError` if the GPU cannot be used.

    cuDNN is not loaded: no node of the graph uses it.
    """
    import onnxruntime

    for name in WITHOUT_TENSORRT:
        os.environ.setdefault(name, "1")
    with contextlib.redirect_stdout(sys.stderr):  # preload_dlls prints missing libraries to stdout
        onnxruntime.preload_dlls(cudnn=False)
    session, reason = None, ""
    for capturing in (True, False):
        try:
            session = _open(graph, options, gpu, capturing=capturing)
            break
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            if is_out_of_memory(error):
                raise
            reason = str(error).strip().partition("\n")[0]
            if capturing:
                log.warning("cuda graphs unavailable reason=%s", reason)
    if session is None or CUDA not in session.get_providers():
        raise ConfigError(
            f'ATTENDANT_PROVIDER: "cuda" failed on GPU {gpu.device}: {reason or "no reason given"}. '
            "The driver and the CUDA 13 libraries are required; the gpu extra installs the libraries."
        )
    return session


def _open(
    graph: bytes, options: "onnxruntime.SessionOptions", gpu: Gpu, *, capturing: bool
) -> "onnxruntime.InferenceSession":
    import onnxruntime

    chosen = {
        "device_id": str(gpu.device),
        "enable_cuda_graph": str(int(capturing)),
        "arena_extend_strategy": "kSameAsRequested",
    }
    if gpu.memory_limit_bytes:
        chosen["gpu_mem_limit"] = str(gpu.memory_limit_bytes)
    return onnxruntime.InferenceSession(graph, options, providers=[(CUDA, chosen)], enable_fallback=0)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an ONNX Runtime exception reports exhausted memory."""
    return any(part in str(error) for part in OUT_OF_MEMORY)
