"""Which kernels run on the GPU: onnxruntime's own words, out of a process in which it is told to speak.

Run as a module it opens an artifact's graph, runs it, and prints where each node was placed; the runtime prints its
choice of attention kernel in between. `read_kernels` asks for all that and reads it.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import ROOT
from tests.bench.targets import Verdict, judge

SPEAK = {"ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"}
SPOKEN = re.compile(r"Operator=(\w+) Node=(\S+) DataType=(\w+) SdpaKernel=(\w+)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PLACED = "PLACED "
FAST_KERNELS = {"FLASH_ATTENTION", "CUDNN_FLASH_ATTENTION", "EFFICIENT_ATTENTION"}
TIMEOUT_S = 180


@dataclass(frozen=True)
class Kernels:
    """The kernel of each attention node, and the operators that are not on the GPU."""

    attention: dict[str, set[str]]
    elsewhere: set[str]

    @classmethod
    def of(cls, output: str) -> "Kernels":
        """Read what the process printed."""
        attention: dict[str, set[str]] = {}
        elsewhere: set[str] = set()
        for line in COLOUR.sub("", output).splitlines():
            if found := SPOKEN.search(line):
                attention.setdefault(found[2], set()).add(found[4])
            elif line.startswith(PLACED):
                elsewhere.update(json.loads(line.removeprefix(PLACED)))
        return cls(attention, elsewhere)

    @property
    def fast_nodes(self) -> int:
        """Attention nodes that ran nothing but fast kernels."""
        return sum(kernels <= FAST_KERNELS for kernels in self.attention.values())

    def describe(self) -> str:
        used = ", ".join(sorted(set().union(*self.attention.values()))) or "none seen"
        return f"attention kernels: {used}; operators off the GPU: {', '.join(sorted(self.elsewhere)) or 'none'}"

    def verdicts(self, layers: int) -> list[Verdict]:
        return [
            judge("gpu_kernels", self.fast_nodes / layers),
            judge("gpu_fallback", len(self.elsewhere)),
        ]


def read_kernels(artifact: Path) -> Kernels:
    """In a process of its own, for onnxruntime reads the variable once."""
    command = [sys.executable, "-m", "tests.bench.gpu_kernels", str(artifact)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | SPEAK, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the kernels could not be read: {done.stderr.strip().splitlines()[-1:]}")
    return Kernels.of(done.stdout + done.stderr)


def main(directory: str) -> None:
    import onnxruntime

    from model.artifact import Artifact
    from service.engine.backends.base import FIRST_GPU
    from service.engine.backends.cuda_session import CUDA, open_session
    from tests.bench.gpu_engine import open_on

    artifact = Artifact.open(Path(directory))
    graph = artifact.manifest.graphs["cuda"]
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    weights = artifact.read(graph.weights)
    options.add_external_initializers_from_files_in_memory([graph.weights], [weights], [len(weights)])
    session = open_session(artifact.read(graph.file), options, FIRST_GPU)
    placed = session.get_provider_graph_assignment_info()
    print(
        PLACED
        + json.dumps(sorted({node.op_type for part in placed if part.ep_name != CUDA for node in part.get_nodes()}))
    )
    open_on(artifact, "cuda").warm_up()


if __name__ == "__main__":
    main(sys.argv[1])
