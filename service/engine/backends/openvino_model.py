"""Reading an ONNX graph with OpenVINO over memory-mapped weights, which are neither copied nor limited in size.

OpenVINO reads external weights only from a path, and what the path leads to may have changed since it was verified.
So each weight is first declared as an input of the graph. After OpenVINO has read the graph, a constant backed by the
map of the verified file replaces it.
"""

import sys
from typing import Any

from model.artifact.files import Artifact
from service.engine.backends.onnx_weights_pb2 import GraphProto
from service.engine.backends.weights import map_weights, read_graph

TYPES = {1: "f32", 3: "i8", 6: "i32", 7: "i64", 10: "f16", 16: "bf16"}
"""OpenVINO's type by the number of a type in ONNX."""
FUSED = "fused_attention"
"""The constant of a graph that selects attention without loops, which OpenVINO turns into one kernel per layer."""


def import_openvino() -> Any:
    """Import the package without its telemetry, which would send usage data to a third party.

    It does so from a forked child, and a fork of a process with running threads can also hang the server.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None makes its import fail
    import openvino

    return openvino


def read_model(core: Any, artifact: Artifact, graph: str) -> Any:
    """Return a graph as an `openvino.Model`. The artifact must outlive every model compiled from it."""
    openvino, message = import_openvino(), read_graph(artifact, graph)
    weights = map_weights(artifact, message.graph)
    _turn_into_inputs(message.graph)
    model = core.read_model(message.SerializeToString())
    for parameter in model.get_parameters():
        name = parameter.get_friendly_name()
        if name == FUSED:
            constant = openvino.op.Constant(openvino.Type.boolean, openvino.Shape([]), [True])
        elif name in weights:
            values, dtype = weights[name].values, getattr(openvino.Type, TYPES[weights[name].data_type])
            constant = openvino.op.Constant(openvino.Tensor(values, openvino.Shape(values.shape), dtype), True)
        else:
            continue
        constant.set_friendly_name(name)
        parameter.output(0).replace(constant.output(0))
        model.remove_parameter(parameter)
    model.validate_nodes_and_infer_types()
    return model


def _turn_into_inputs(graph: GraphProto) -> None:
    """Replace each weight in another file, and `FUSED`, by an input of its name, type and shape."""
    tensors = list(graph.initializer)
    del graph.initializer[:]
    for tensor in tensors:
        if not (tensor.external_data or tensor.name == FUSED):
            graph.initializer.append(tensor)
            continue
        value = graph.input.add(name=tensor.name)
        value.type.tensor_type.elem_type = tensor.data_type
        for size in tensor.dims:
            value.type.tensor_type.shape.dim.add(dim_value=size)
