"""The default model's flat graph on this machine: the real graph and weights, the attention as standard operators."""

from pathlib import Path

import onnxruntime

from model.artifact import Artifact
from model.reference import reference_of
from service.engine.backends.cuda import FlatRuntime
from service.engine.backends.select import gpu_provider


def open_flat(artifact: Artifact, row_tokens: int = 1024) -> FlatRuntime:
    """A runtime as it is on a GPU, with its memory on the CPU."""
    graph = artifact.manifest.graphs["cuda"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    weights = artifact.read(graph.weights)
    options.add_external_initializers_from_files_in_memory([graph.weights], [weights], [len(weights)])
    session = onnxruntime.InferenceSession(
        reference_of(artifact.read(graph.file)), options, providers=["CPUExecutionProvider"]
    )
    return FlatRuntime(artifact.manifest, gpu_provider(row_tokens), session, "cpu")


def export_flat(source: str, out: Path, *texts: str) -> Artifact:
    """Export with the graph for CUDA, measured over these texts."""
    from model.export import Variants, export

    export(source, out, revision=None, name=None, progress=lambda step: None, variants=Variants(("cuda",), texts))
    return Artifact.open(out)
