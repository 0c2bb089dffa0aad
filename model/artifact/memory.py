"""The memory that a new process can use."""

import contextlib
import re
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP_MEMORY = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Return how many bytes a new process can use, from the kernel's estimate and the cgroup limit; None if unknown."""
    values = []
    with contextlib.suppress(OSError, AttributeError):
        match = re.search(r"^MemAvailable: +(\d+) kB$", MEMINFO.read_text(), re.MULTILINE)
        values.append(1024 * int(match[1]))  # type: ignore[index]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        limit, used = (int((CGROUP_MEMORY / f"memory.{name}").read_text()) for name in ("max", "current"))
        cache = re.search(r"^inactive_file (\d+)$", (CGROUP_MEMORY / "memory.stat").read_text(), re.MULTILINE)
        values.append(limit - used + int(cache[1]))  # type: ignore[index]
    return min(values, default=None)
