"""The default model's varlen graph on this machine: real graph and weights, with attention as standard operators."""

from pathlib import Path

import onnxruntime

from model.artifact.files import Artifact
from model.artifact.names import CUDA, CUDA_SHORT, CUDA_SPARSE
from model.export.parity import to_reference_graph
from service.engine.backends.base import DEFAULT_GPU, BackendChoice, Gpu
from service.engine.backends.cuda import CudaBackend
from service.engine.backends.sessions import add_weights


def cuda_choice(max_batch_tokens: int = 1024, gpu: Gpu = DEFAULT_GPU) -> BackendChoice:
    return BackendChoice("cuda", "float16", "cuda", 1, 1, max_batch_tokens, "test", gpu)


def open_varlen(artifact: Artifact, max_batch_tokens: int = 1024, gpu: Gpu = DEFAULT_GPU) -> CudaBackend:
    """Return the CUDA backend with its sessions and memory on the CPU."""
    sessions = {}
    for name in {CUDA, CUDA_SHORT, CUDA_SPARSE} & artifact.manifest.graphs.keys():
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        add_weights(options, artifact, name)
        graph = to_reference_graph(artifact.read(artifact.manifest.graphs[name].file))
        sessions[name] = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return CudaBackend(artifact, cuda_choice(max_batch_tokens, gpu), sessions, "cpu")


def export_varlen(source: str, out: Path, *texts: str) -> Artifact:
    """Export with the CUDA graph, choosing its precision with these texts."""
    from model.export.export import Variants, export

    export(source, out, revision=None, name=None, progress=lambda step: None, variants=Variants(("cuda",), texts))
    return Artifact.open(out)
