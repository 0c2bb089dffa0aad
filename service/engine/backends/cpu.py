"""The CPUs available to this process: their number and instruction sets."""

import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
INTEL = "GenuineIntel"
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""File with the CPU quota and period of the cgroup, in microseconds. The quota is "max" if unlimited."""


@dataclass(frozen=True)
class CpuFeatures:
    """Instruction sets.

    Attributes:
        amx_bfloat16: Matrix tiles.
        bfloat16: Dot products, with AMX or without.
        fast_bfloat16: Whether bfloat16 dot products are faster than float32. On a Xeon without AMX they take 1.75 times
            as long.
        vnni: int8 dot products.
    """

    amx_bfloat16: bool
    bfloat16: bool
    fast_bfloat16: bool
    vnni: bool

    @classmethod
    def of(cls, cpu_info: str, machine: str = "x86_64") -> "CpuFeatures":
        """Read the text of /proc/cpuinfo. On Arm, `i8mm` and `asimddp` count as VNNI."""
        fields: dict[str, str] = {}
        for line in cpu_info.splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value)
        if machine in ("aarch64", "arm64"):
            flags = set(fields.get("Features", "").split())
            return cls(False, "bf16" in flags, "bf16" in flags, not {"i8mm", "asimddp"}.isdisjoint(flags))
        flags = set(fields.get("flags", "").split())
        amx = {"amx_tile", "amx_bf16"} <= flags
        bfloat16 = amx or "avx512_bf16" in flags
        fast = amx or (bfloat16 and fields.get("vendor_id", "").strip() != INTEL)
        return cls(amx, bfloat16, fast, not {"avx512_vnni", "avx_vnni"}.isdisjoint(flags))


def detect_cpu() -> CpuFeatures:
    """Return this CPU's features; none if /proc/cpuinfo cannot be read."""
    try:
        cpu_info = CPU_INFO.read_text()
    except OSError:
        cpu_info = ""
    return CpuFeatures.of(cpu_info, platform.machine())


def available_cpus(quota_file: Path = CGROUP_QUOTA) -> int:
    """Return the number of CPUs this process may use: the size of its affinity mask, capped by its cgroup's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, math.ceil(int(quota) / int(period))))
