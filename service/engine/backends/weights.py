"""The weights of an ONNX graph as arrays over the verified, memory-mapped files."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.files import Artifact
from service.engine.backends.onnx_weights_pb2 import GraphProto, ModelProto

TYPES = {1: "<f4", 3: "i1", 6: "<i4", 7: "<i8", 10: "<f2", 16: "<u2"}
"""NumPy's type by the number of a type in ONNX. 16 is bfloat16, which NumPy lacks."""


@dataclass(frozen=True)
class Weight:
    """A weight in another file: the number of its type in ONNX, and its values."""

    data_type: int
    values: NDArray[Any]


def read_graph(artifact: Artifact, graph: str) -> ModelProto:
    """Return the message of a graph."""
    return ModelProto.FromString(artifact.read(artifact.manifest.graphs[graph].file))


def map_weights(artifact: Artifact, graph: GraphProto) -> dict[str, Weight]:
    """Return the weights of a graph that are in other files, by name. The artifact must outlive all uses."""
    weights = {}
    for tensor in graph.initializer:
        if tensor.external_data:
            location = {entry.key: entry.value for entry in tensor.external_data}
            mapping, offset = artifact.map_file(location["location"]), int(location.get("offset", 0))
            values = np.ndarray(tuple(tensor.dims), TYPES[tensor.data_type], mapping, offset)
            weights[tensor.name] = Weight(tensor.data_type, values)
    return weights
