"""GPU kernels in use, parsed from ONNX Runtime's debug log in a separate process.

Run as a module, this opens and runs an artifact's graph and prints the operators that are not on the GPU, while ONNX
Runtime logs the attention kernels it selects. `read_kernels` runs the module and parses its output.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.load import ROOT
from bench.targets import Verdict, judge

DEBUG_ENVIRONMENT = {"ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"}
KERNEL_LINE = re.compile(r"Operator=(\w+) Node=(\S+) DataType=(\w+) SdpaKernel=(\w+)")
COLOR_CODE = re.compile(r"\x1b\[[0-9;]*m")
PLACED = "PLACED "
FAST_KERNELS = {"FLASH_ATTENTION", "CUDNN_FLASH_ATTENTION", "EFFICIENT_ATTENTION"}
TIMEOUT_S = 180


@dataclass(frozen=True)
class Kernels:
    """Kernels per attention node, and operators that do not run on the GPU."""

    attention: dict[str, set[str]]
    off_gpu: set[str]

    @classmethod
    def of(cls, output: str) -> "Kernels":
        """Parse the process output."""
        attention: dict[str, set[str]] = {}
        off_gpu: set[str] = set()
        for line in COLOR_CODE.sub("", output).splitlines():
            if match := KERNEL_LINE.search(line):
                attention.setdefault(match[2], set()).add(match[4])
            elif line.startswith(PLACED):
                off_gpu.update(json.loads(line.removeprefix(PLACED)))
        return cls(attention, off_gpu)

    @property
    def fast_nodes(self) -> int:
        """Number of attention nodes that only ran fast kernels."""
        return sum(kernels <= FAST_KERNELS for kernels in self.attention.values())

    def describe(self) -> str:
        used = ", ".join(sorted(set().union(*self.attention.values()))) or "none"
        return f"attention kernels: {used}; operators off the GPU: {', '.join(sorted(self.off_gpu)) or 'none'}"

    def verdicts(self, layers: int) -> list[Verdict]:
        return [
            judge("gpu_kernels", self.fast_nodes / layers),
            judge("gpu_fallback", len(self.off_gpu)),
        ]


def read_kernels(artifact: Path) -> Kernels:
    """Run this module in a new process, because ONNX Runtime reads the environment variable only once."""
    command = [sys.executable, "-m", "bench.gpu_kernels", str(artifact)]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | DEBUG_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"the kernels could not be read: {result.stderr.strip().splitlines()[-1:]}")
    return Kernels.of(result.stdout + result.stderr)


def main(directory: str) -> None:
    import onnxruntime

    from bench.gpu_engine import open_on
    from model.artifact.files import Artifact
    from service.engine.backends.base import DEFAULT_GPU
    from service.engine.backends.cuda_session import CUDA, open_session
    from service.engine.backends.sessions import add_weights

    artifact = Artifact.open(Path(directory))
    graph = artifact.manifest.graphs["cuda"]
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    add_weights(options, artifact, "cuda")
    session = open_session(artifact.read(graph.file), options, DEFAULT_GPU)
    placed = session.get_provider_graph_assignment_info()
    print(
        PLACED
        + json.dumps(sorted({node.op_type for part in placed if part.ep_name != CUDA for node in part.get_nodes()}))
    )
    open_on(artifact, "cuda").warm_up()


if __name__ == "__main__":
    main(sys.argv[1])
