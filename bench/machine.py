"""The machine that a measurement ran on."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.load import ROOT

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
VNNI = ("avx512_vnni", "avx_vnni")
PACKAGES = ("attendant", "onnxruntime", "openvino", "torch", "numpy", "tokenizers", "uvicorn", "grpcio")


@dataclass(frozen=True)
class Machine:
    """Processor, CPU features that affect backend selection, cores available to this process, versions and commit."""

    name: str
    cpu: str
    features: tuple[str, ...]
    cores: int
    python: str
    versions: dict[str, str]
    commit: str

    @classmethod
    def read(cls) -> "Machine":
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        pairs = [line.partition(":") for line in lines]
        fields = {name.strip(): value.strip() for name, _, value in reversed(pairs)}
        flags = fields.get("flags", "").split()
        return cls(
            name=platform.node(),
            cpu=fields.get("model name", "unknown processor"),
            features=tuple(feature for feature in FEATURES if feature in flags),
            cores=len(os.sched_getaffinity(0)),
            python=platform.python_version(),
            versions={name: installed for name in PACKAGES if (installed := _version(name))},
            commit=_commit(),
        )

    @property
    def has_bfloat16(self) -> bool:
        """True if the CPU computes in bfloat16 faster than in float32."""
        return "amx_bf16" in self.features or ("avx512_bf16" in self.features and not self.cpu.startswith("Intel"))

    @property
    def has_vnni(self) -> bool:
        return any(feature in self.features for feature in VNNI)

    def describe(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return (
            f"{self.name}: {self.cores} cores of {self.cpu} ({', '.join(self.features) or 'no AVX'})\n"
            f"Python {self.python}, {versions}, commit {self.commit}"
        )


def load_average() -> str:
    """Return the load average; figures from a busy machine are less reliable."""
    return f"load average {' '.join(f'{load:.1f}' for load in os.getloadavg())}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
