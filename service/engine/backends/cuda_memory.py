"""GPU memory: how much the models of this process use, and whether another model fits."""

import ctypes
from dataclasses import dataclass, replace
from weakref import WeakSet

from service.config import ConfigError
from service.engine.backends.base import Gpu
from service.engine.backends.cuda_session import DRIVER

OPTION = "ATTENDANT_GPU_MEMORY_LIMIT_BYTES"
CONTEXT_BYTES = 2**29
"""GPU memory that a process is assumed to use before it loads a model."""


@dataclass(frozen=True)
class DeviceMemory:
    """The free and the total memory of a device, in bytes."""

    free: int
    total: int

    @classmethod
    def read(cls, device: int) -> "DeviceMemory | None":
        """Query the driver; return None if it does not answer.

        This retains the device's primary context, which sessions also use, and never releases it.
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
    """The GPU memory of one model, counted until `release` or until this object is deleted with the model's session.

    Attributes:
        gpu: The device, with a limit that excludes the other models' memory.
        bytes: The model's memory: weights and buffers, or the use that `measure` found if larger.
    """

    def __init__(self, gpu: Gpu, least: int) -> None:
        """Reserve `least` bytes for weights and buffers. Raises `ConfigError` if less is available."""
        self.bytes = least
        self.limit = gpu.memory_limit_bytes
        self._used = sum(other.bytes for other in models)
        self._before = DeviceMemory.read(gpu.device)
        # For a session, 0 bytes would mean no limit.
        self.gpu = replace(gpu, memory_limit_bytes=max(1, self.limit - self._used)) if self.limit else gpu
        free = None if self._before is None else self._before.free
        if (self.limit and least > self.limit - self._used) or (free is not None and least > free):
            raise self.exceeded()
        models.add(self)

    def extend(self, size: int) -> Gpu | None:
        """Take memory for another session. Return the device with its limit; None if less than `size` bytes are left.

        Sessions have separate limits. `measure` must have been called.
        """
        now, left = DeviceMemory.read(self.gpu.device), self.limit - self._used - self.bytes
        if (self.limit and left < size) or (now is not None and now.free < size):
            return None
        self.bytes += size
        return replace(self.gpu, memory_limit_bytes=left) if self.limit else self.gpu

    def measure(self) -> None:
        """Record how much free memory has shrunk since the model began to load."""
        now = DeviceMemory.read(self.gpu.device)
        if now is not None and self._before is not None:
            self.bytes = max(self.bytes, self._before.free - now.free)

    def release(self) -> None:
        """Stop counting the model."""
        models.discard(self)

    def exceeded(self, *, by_batches: bool = False) -> ConfigError:
        """Return the error for a model whose weights and buffers, or whose batches, do not fit."""
        facts = [f"weights and buffers take {self.bytes:,} bytes{', and batches do not fit' if by_batches else ''}"]
        remedies = []
        if self._used:
            facts.append(f"other models {self._used:,}")
            remedies.append("unload another model")
        if by_batches:
            remedies.append("set a smaller ATTENDANT_MAX_BATCH_TOKENS")
        if self.limit:
            facts.append(f"{OPTION} allows this process {self.limit:,}")
            remedies.append(f"set a larger {OPTION}")
        if self._before is not None:
            facts.append(f"{self._before.free:,} of {self._before.total:,} were free on GPU {self.gpu.device}")
        remedies = remedies or ["end other processes that use the GPU"]
        remedy = " or ".join(remedies)
        return ConfigError(f"not enough GPU memory ({'; '.join(facts)}). {remedy[0].upper()}{remedy[1:]}.")


models: WeakSet[GpuMemory] = WeakSet()
"""The models of this process that are on a GPU."""


def count_copies() -> int | None:
    """Return how many processes with this process's models fit in its limit or on its GPU; at least 1.

    None if the driver does not report its memory.
    """
    used, first = sum(model.bytes for model in models), next(iter(models))
    if first.limit:
        return first.limit // used
    memory = DeviceMemory.read(first.gpu.device)
    return None if memory is None else 1 + memory.free // (used + CONTEXT_BYTES)
