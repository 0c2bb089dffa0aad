"""A CUDA GPU: whether one is there, and a session that really runs on it or does not open."""

import contextlib
import ctypes
import logging
import sys
from dataclasses import dataclass

import onnxruntime

from service.config import ConfigError

CUDA = "CUDAExecutionProvider"
DRIVER = "libcuda.so.1"

log = logging.getLogger("attendant.gpu")


@dataclass(frozen=True)
class Gpu:
    """Which GPU, and how many bytes of its memory the model may take; 0 is all of them."""

    device: int = 0
    memory_bytes: int = 0


FIRST_GPU = Gpu()


def built_for_cuda() -> bool:
    """Whether this onnxruntime has the provider; the package is onnxruntime-gpu."""
    return CUDA in onnxruntime.get_available_providers()


def gpu_count() -> int:
    """GPUs that the driver knows; 0 where there is no driver."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def open_session(graph: bytes, options: onnxruntime.SessionOptions, gpu: Gpu) -> onnxruntime.InferenceSession:
    """A session on the GPU, ready to record CUDA graphs; raises `ConfigError` where it would run anywhere else.

    Of NVIDIA's libraries cuDNN is left out: nothing in our graph asks for it.
    """
    with contextlib.redirect_stdout(sys.stderr):  # it prints what it misses
        onnxruntime.preload_dlls(cudnn=False)
    session, reason = None, ""
    for recording in (True, False):
        try:
            session = _open(graph, options, gpu, recording=recording)
            break
        except Exception as error:  # noqa: BLE001  # its exceptions have no base of their own
            reason = str(error).strip().partition("\n")[0]
            if recording:
                log.warning("the model cannot be opened for recording CUDA graphs: %s", reason)
    if session is None or CUDA not in session.get_providers():
        raise ConfigError(
            f"ATTENDANT_PROVIDER: cuda: onnxruntime does not run the model on GPU {gpu.device}. The driver and the "
            f"libraries of CUDA 13 must be there: pip install 'attendant[gpu]'. It says: {reason or 'nothing'}"
        )
    return session


def _open(
    graph: bytes, options: onnxruntime.SessionOptions, gpu: Gpu, *, recording: bool
) -> onnxruntime.InferenceSession:
    chosen = {
        "device_id": str(gpu.device),
        "enable_cuda_graph": str(int(recording)),
        "arena_extend_strategy": "kSameAsRequested",
    }
    if gpu.memory_bytes:
        chosen["gpu_mem_limit"] = str(gpu.memory_bytes)
    return onnxruntime.InferenceSession(graph, options, providers=[(CUDA, chosen)], enable_fallback=0)
