"""Kernels, accuracy and speed of artifacts on a GPU, measured in a separate process.

Run as a module, this opens and runs the graphs of artifacts and prints the operators that are not on the GPU, how close
the golden vectors are, and the time of the largest batch, while ONNX Runtime logs the attention kernels it selects.
`read_kernels` runs the module and parses its output.
"""

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load import ROOT
from bench.targets import Verdict, judge

DEBUG_ENVIRONMENT = {"ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"}
KERNEL_LINE = re.compile(r"Operator=(\w+) Node=(\S+) DataType=(\w+) SdpaKernel=(\w+)")
COLOR_CODE = re.compile(r"\x1b\[[0-9;]*m")
ARTIFACT, PLACED, MEASURED, FAILED = "ARTIFACT ", "PLACED ", "MEASURED ", "FAILED "
FAST_KERNELS = {"FLASH_ATTENTION", "CUDNN_FLASH_ATTENTION", "EFFICIENT_ATTENTION"}
TIMEOUT_S = 180
TIMED_RUNS = 5


@dataclass
class Kernels:
    """Measurements of an artifact on the GPU.

    Attributes:
        attention: The kernels of each attention node.
        off_gpu: Operators that do not run on the GPU.
        cosine: The smallest cosine of the golden vectors.
        batch_ms: The time of the largest batch.
        memory_bytes: The GPU memory that the model uses.
        error: Why the graph does not run; "" if it does.
    """

    attention: dict[str, set[str]]
    off_gpu: set[str]
    cosine: float = math.nan
    batch_ms: float = math.nan
    memory_bytes: int = 0
    error: str = ""

    @property
    def fast_nodes(self) -> int:
        """Number of attention nodes that only ran fast kernels."""
        return sum(kernels <= FAST_KERNELS for kernels in self.attention.values())

    def describe(self) -> str:
        if self.error:
            return self.error
        used = ", ".join(sorted(set().union(*self.attention.values()))) or "none"
        return (
            f"cosine {self.cosine:.6f}, largest batch {self.batch_ms:.2f} ms, {self.memory_bytes / 2**20:.0f} MiB, "
            f"attention kernels: {used}; operators off the GPU: {', '.join(sorted(self.off_gpu)) or 'none'}"
        )

    def verdicts(self, layers: int) -> list[Verdict]:
        return [
            judge("gpu_kernels", self.fast_nodes / layers),
            judge("gpu_fallback", len(self.off_gpu)),
        ]


def parse(output: str) -> dict[str, Kernels]:
    """Return the measurements by artifact, from the output of the process."""
    found: dict[str, Kernels] = {}
    kernels = Kernels({}, set())
    for line in COLOR_CODE.sub("", output).splitlines():
        if match := KERNEL_LINE.search(line):
            kernels.attention.setdefault(match[2], set()).add(match[4])
        elif line.startswith(ARTIFACT):
            kernels = found[line.removeprefix(ARTIFACT)] = Kernels({}, set())
        elif line.startswith(PLACED):
            kernels.off_gpu.update(json.loads(line.removeprefix(PLACED)))
        elif line.startswith(MEASURED):
            kernels.cosine, kernels.batch_ms, kernels.memory_bytes = json.loads(line.removeprefix(MEASURED))
        elif line.startswith(FAILED):
            kernels.error = line.removeprefix(FAILED)
    return found


def read_kernels(artifacts: Sequence[Path]) -> list[Kernels]:
    """Run this module in a new process, because ONNX Runtime reads the environment variable only once."""
    command = [sys.executable, "-m", "bench.gpu_kernels", *map(str, artifacts)]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | DEBUG_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    found = parse(result.stdout)
    if len(found) < len(artifacts):
        raise RuntimeError(f"the kernels could not be read: {result.stdout.strip().splitlines()[-1:]}")
    return [found[str(artifact)] for artifact in artifacts]


def main(directories: Sequence[str]) -> None:
    for directory in directories:
        print(ARTIFACT + directory, flush=True)
        try:
            measure(Path(directory))
        except Exception as error:  # noqa: BLE001  # the others are measured, too
            print(FAILED + f"{type(error).__name__}: {error}".replace("\n", " ")[:300], flush=True)


def measure(directory: Path) -> None:
    import onnxruntime

    from bench.gpu_engine import open_on
    from model.artifact import names
    from model.artifact.files import TOKENIZER, Artifact
    from model.artifact.tokenizer import Tokenizer
    from service.engine.backends.base import DEFAULT_GPU
    from service.engine.backends.cuda import CudaBackend
    from service.engine.backends.cuda_session import CUDA, open_session
    from service.engine.backends.sessions import add_weights
    from service.engine.backends.varlen import pack_varlen
    from service.engine.golden_check import golden_cosines
    from service.engine.vectors import DenseLayers

    artifact = Artifact.open(directory)
    graphs = artifact.manifest.graphs
    off_gpu = set()
    for name in (names.CUDA, names.CUDA_SHORT, names.CUDA_SPARSE):
        if name not in graphs:
            continue
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        add_weights(options, artifact, name)
        session = open_session(artifact.read(graphs[name].file), options, DEFAULT_GPU)
        placed = session.get_provider_graph_assignment_info()
        off_gpu |= {node.op_type for part in placed if part.ep_name != CUDA for node in part.get_nodes()}
    print(PLACED + json.dumps(sorted(off_gpu)), flush=True)
    backend = open_on(artifact, "cuda")
    assert isinstance(backend, CudaBackend)
    backend.warm_up()
    golden, tokenizer = artifact.read_golden_vectors(), Tokenizer(artifact.read(TOKENIZER))
    assert golden is not None
    cosines = golden_cosines(golden, artifact.manifest, tokenizer, backend, DenseLayers(artifact))
    largest = pack_varlen([([0], None)], backend.shapes.shapes[-1])
    started = time.perf_counter()
    for _ in range(TIMED_RUNS):
        backend._infer(largest, hidden=False)
    seconds = (time.perf_counter() - started) / TIMED_RUNS
    print(MEASURED + json.dumps([min(cosines.values()), 1000 * seconds, backend.gpu_memory_bytes]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
