"""The CPUs available to this process: their number and instruction sets."""

import contextlib
import math
import os
import platform
import threading
from dataclasses import dataclass
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
INFERENCE_NICE = 10
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""File with the CPU quota and period of the cgroup, in microseconds. The quota is "max" if unlimited."""


@dataclass(frozen=True)
class CpuFeatures:
    """`amx_bfloat16`: matrix tiles. `bfloat16`: dot products, with AMX or without. `vnni`: int8 dot products."""

    amx_bfloat16: bool
    bfloat16: bool
    vnni: bool

    @classmethod
    def of(cls, cpu_info: str, machine: str = "x86_64") -> "CpuFeatures":
        """Read the text of /proc/cpuinfo. On Arm, `i8mm` and `asimddp` count as VNNI."""
        flags: set[str] = set()
        for line in cpu_info.splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                flags = set(value.split())
                break
        if machine in ("aarch64", "arm64"):
            return cls(False, "bf16" in flags, not {"i8mm", "asimddp"}.isdisjoint(flags))
        amx = {"amx_tile", "amx_bf16"} <= flags
        return cls(amx, amx or "avx512_bf16" in flags, not {"avx512_vnni", "avx_vnni"}.isdisjoint(flags))


def detect_cpu() -> CpuFeatures:
    """Return the features of this CPU; none where /proc/cpuinfo cannot be read."""
    try:
        cpu_info = CPU_INFO.read_text()
    except OSError:
        cpu_info = ""
    return CpuFeatures.of(cpu_info, platform.machine())


def lower_thread_priority() -> None:
    """Let the event loop preempt the calling thread, and the threads that it creates from now on.

    Under overload, inference threads at equal priority leave the event loop so little time that requests wait for
    seconds before they are read.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), INFERENCE_NICE)


def available_cpus(quota_file: Path = CGROUP_QUOTA) -> int:
    """Return the number of CPUs this process may use: its affinity, and at most its cgroup's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, math.ceil(int(quota) / int(period))))
