"""C10: time until ready with a warm file cache, memory of an idle server, and import time in a new process."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.load import ROOT
from bench.targets import Verdict, judge
from tests.conftest import serving

SETTLE_S = 2.0


@dataclass(frozen=True)
class StartFigures:
    """Medians. `import_app_s` is the time of all imports of `attendant serve`."""

    ready_s: float
    rest_mib: float
    import_app_s: float

    def verdicts(self) -> list[Verdict]:
        return [
            judge("ready", self.ready_s),
            judge("at_rest", self.rest_mib),
            judge("import", self.import_app_s),
        ]

    def describe(self) -> str:
        return (
            f"ready in {self.ready_s:.2f} s, {self.rest_mib:.0f} MiB at rest; "
            f"import service.app {self.import_app_s:.2f} s"
        )


def measure_start(model_dir: Path, times: int) -> StartFigures:
    """Start and stop a server `times` times, after a first start that warms the file cache."""
    ready, rest = [], []
    for _ in range(times + 1):
        started = time.perf_counter()
        with serving(model_dir=model_dir) as server:
            ready.append(time.perf_counter() - started)
            time.sleep(SETTLE_S)
            rest.append(resident_mib(server.pid))
    imports = [_import_s("service.app") for _ in range(times + 1)]
    return StartFigures(float(np.median(ready[1:])), float(np.median(rest[1:])), float(np.median(imports[1:])))


def resident_mib(pid: int, field: str = "VmRSS") -> float:
    """Return a process's resident memory in MiB, or another `field` such as VmHWM."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:"))) / 1024


def _import_s(module: str) -> float:
    """Return how long an import takes in a new process in seconds, without interpreter startup."""
    code = f"import time; started = time.perf_counter(); import {module}; print(time.perf_counter() - started)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(result.stdout)
