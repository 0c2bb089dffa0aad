"""C10: from start to ready with warm files, memory at rest, and what importing costs a fresh process."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.bench.bars import Verdict, at_most
from tests.bench.load import ROOT
from tests.conftest import start_server, stop_server

READY_BAR_S, REST_BAR_MIB, IMPORT_BAR_S = 5.0, 600.0, 0.3
SETTLE_S = 2.0


@dataclass(frozen=True)
class StartFigures:
    """Medians; `import_app_s` is of all that `attendant serve` imports before it does anything."""

    ready_s: float
    rest_mib: float
    import_s: float
    import_app_s: float

    def verdicts(self) -> list[Verdict]:
        return [
            at_most("C10", "start to ready, warm", self.ready_s, READY_BAR_S, "s"),
            at_most("C10", "memory at rest", self.rest_mib, REST_BAR_MIB, "MiB"),
            at_most("C10", "import service", self.import_s, IMPORT_BAR_S, "s"),
        ]

    def describe(self) -> str:
        return (
            f"ready in {self.ready_s:.2f} s, {self.rest_mib:.0f} MiB at rest; "
            f"import service {self.import_s:.3f} s, service.app with all it needs {self.import_app_s:.2f} s"
        )


def measure_start(model_dir: Path, times: int) -> StartFigures:
    """Start and stop a server so many times; the first is not counted, for it warms the files."""
    ready, rest = [], []
    for _ in range(times + 1):
        started = time.perf_counter()
        server = start_server(model_dir=model_dir)
        ready.append(time.perf_counter() - started)
        try:
            time.sleep(SETTLE_S)
            rest.append(resident_mib(server.pid))
        finally:
            stop_server(server)
    imports = [(_import_s("service"), _import_s("service.app")) for _ in range(times)]
    short, whole = np.median(imports, axis=0).tolist()
    return StartFigures(float(np.median(ready[1:])), float(np.median(rest[1:])), short, whole)


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


def _import_s(module: str) -> float:
    """In a fresh process, by its own clock: the interpreter's start is not ours."""
    code = f"import time; started = time.perf_counter(); import {module}; print(time.perf_counter() - started)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)
