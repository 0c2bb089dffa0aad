"""The default model's varlen graph on this machine: real graph and weights, with attention as standard operators."""

from pathlib import Path

import onnxruntime

from model.artifact.files import Artifact
from model.export.parity import to_reference_graph
from service.engine.backends.base import BackendChoice
from service.engine.backends.cuda import CudaBackend
from service.engine.backends.sessions import add_weights


def cuda_choice(max_batch_tokens: int = 1024) -> BackendChoice:
    return BackendChoice("cuda", "float16", "cuda", 1, 1, max_batch_tokens, "test")


def open_varlen(artifact: Artifact, max_batch_tokens: int = 1024) -> CudaBackend:
    """Return the CUDA backend with its session and memory on the CPU."""
    graph = artifact.manifest.graphs["cuda"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    add_weights(options, artifact, "cuda")
    session = onnxruntime.InferenceSession(
        to_reference_graph(artifact.read(graph.file)), options, providers=["CPUExecutionProvider"]
    )
    return CudaBackend(artifact, cuda_choice(max_batch_tokens), session, "cpu")


def export_varlen(source: str, out: Path, *texts: str) -> Artifact:
    """Export with the CUDA graph, choosing its precision with these texts."""
    from model.export.export import Variants, export

    export(source, out, revision=None, name=None, progress=lambda step: None, variants=Variants(("cuda",), texts))
    return Artifact.open(out)
