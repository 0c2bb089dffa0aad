"""ONNX Runtime sessions on the CPU, with weights memory-mapped from the artifact."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.files import Artifact
from service.engine.backends.onnx_weights_pb2 import GraphProto, ModelProto

if TYPE_CHECKING:  # imported with the first session: it takes 19 MiB, and a server with OpenVINO may never need it
    import onnxruntime


TYPES = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2", 11: "<f8", 16: "<u2"}
"""NumPy types by ONNX type number. 16 is bfloat16, which NumPy lacks."""


@dataclass(frozen=True)
class Weight:
    """A weight stored outside the graph: its ONNX type number and its values."""

    data_type: int
    values: NDArray[Any]


def read_graph(artifact: Artifact, graph: str) -> ModelProto:
    """Parse a graph's protobuf message."""
    return ModelProto.FromString(artifact.read(artifact.manifest.graphs[graph].file))


def map_weights(artifact: Artifact, graph: GraphProto) -> dict[str, Weight]:
    """Return the weights stored outside a graph, by name. The artifact must outlive all uses."""
    weights = {}
    for tensor in graph.initializer:
        if tensor.external_data:
            location = {entry.key: entry.value for entry in tensor.external_data}
            mapping, offset = artifact.map_file(location["location"]), int(location.get("offset", 0))
            values = np.ndarray(tuple(tensor.dims), TYPES[tensor.data_type], mapping, offset)
            weights[tensor.name] = Weight(tensor.data_type, values)
    return weights


CPU = "CPUExecutionProvider"


def open_cpu_session(
    artifact: Artifact, graph: str, threads: int, *, arena: bool = True
) -> "onnxruntime.InferenceSession":
    """Open a graph from its verified bytes.

    Without an `arena`, memory is freed after each run; an arena keeps the memory of every shape it has seen.
    """
    import onnxruntime

    record = artifact.manifest.graphs[graph]
    options = session_options(threads)
    options.enable_cpu_mem_arena = arena
    add_weights(options, artifact, graph)
    session = onnxruntime.InferenceSession(artifact.read(record.file), options, providers=[CPU])
    artifact.release_pages()
    return session


def add_weights(options: "onnxruntime.SessionOptions", artifact: Artifact, graph: str) -> None:
    """Add a graph's weights from the verified files to session options. The artifact must outlive the session.

    `add_external_initializers_from_files_in_memory` rejects tensors over 2 GiB.
    """
    import onnxruntime

    weights = map_weights(artifact, read_graph(artifact, graph).graph)
    create = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
    values = [create(weight.values, weight.data_type) for weight in weights.values()]
    options.add_external_initializers([*weights], values)


def session_options(threads: int) -> "onnxruntime.SessionOptions":
    """Return options for a session whose idle threads do not spin, to leave CPU time to the event loop."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
