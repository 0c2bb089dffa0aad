"""The memory of a GPU: what the models of this process use of it, and whether another one fits."""

import ctypes
from dataclasses import dataclass, replace
from weakref import WeakSet

from service.config import ConfigError
from service.engine.backends.base import Gpu
from service.engine.backends.cuda_session import DRIVER

OPTION = "ATTENDANT_GPU_MEMORY_LIMIT_BYTES"
OUT_OF_MEMORY = ("Available memory of", "Failed to allocate memory", "out of memory")
"""Parts of the messages with which ONNX Runtime reports that its limit or the device is exceeded."""


@dataclass(frozen=True)
class DeviceMemory:
    """The free and the total memory of a device, in bytes."""

    free: int
    total: int

    @classmethod
    def read(cls, device: int) -> "DeviceMemory | None":
        """Ask the driver; None if it does not answer.

        The context that it needs is the one that the session of the model will use, so it is never released.
        """
        try:
            driver = ctypes.CDLL(DRIVER)
        except OSError:
            return None
        handle, context, previous = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        failed = (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(handle), device)
            or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
            or driver.cuCtxPushCurrent_v2(context)
        )
        if failed:
            return None
        failed = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        driver.cuCtxPopCurrent_v2(ctypes.byref(previous))
        return None if failed else cls(free.value, total.value)


class GpuMemory:
    """The memory that a model takes, until the object is deleted with the model's session.

    Attributes:
        gpu: The device, whose memory limit is what the other models have left.
        bytes: What the model takes: at least its weights and buffers, more once `measure` has been called.
    """

    def __init__(self, gpu: Gpu, least: int) -> None:
        """Take memory for a model that needs at least `least` bytes. Raises `ConfigError` if it does not fit."""
        self._limit = gpu.memory_limit_bytes
        self.bytes = least
        self._used = sum(other.bytes for other in models)
        self._before = DeviceMemory.read(gpu.device)
        # A session cannot be given 0 bytes, which would set no limit.
        self.gpu = replace(gpu, memory_limit_bytes=max(1, self._limit - self._used)) if self._limit else gpu
        free = None if self._before is None else self._before.free
        if (self._limit and least > self._limit - self._used) or (free is not None and least > free):
            raise self.exceeded()
        models.add(self)

    def measure(self) -> None:
        """Note how much less memory is free than before the model was loaded."""
        now = DeviceMemory.read(self.gpu.device)
        if now is not None and self._before is not None:
            self.bytes = max(self.bytes, self._before.free - now.free)

    def exceeded(self) -> ConfigError:
        """Return the error of a model that does not fit."""
        facts = [f"at least {self.bytes:,} bytes needed", f"{self._used:,} in use by other models"]
        if self._limit:
            facts.append(f"{OPTION} {self._limit:,}")
        if self._before is not None:
            facts.append(f"{self._before.free:,} of {self._before.total:,} free on GPU {self.gpu.device}")
        remedies = "Unload another model, or set a smaller ATTENDANT_MAX_BATCH_TOKENS"
        remedies += f" or a larger {OPTION}." if self._limit else "."
        return ConfigError(f"not enough GPU memory ({', '.join(facts)}). {remedies}")


models: WeakSet[GpuMemory] = WeakSet()
"""The models of this process that are on a GPU."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an exception of ONNX Runtime says that memory is exhausted."""
    return any(part in str(error) for part in OUT_OF_MEMORY)
