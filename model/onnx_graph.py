"""Export of a torch module to an ONNX file with external weights; deterministic across machines."""

import logging
import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import torch
from torch import Tensor, nn

from model.artifact import ArtifactError, describe_file
from model.compact_weights import compact_weights
from model.manifest import GraphPrecision, GraphRecord, ValueRecord
from model.onnx_attention import define_attention

OPSET = 20


@dataclass(frozen=True)
class GraphSignature:
    """The inputs and outputs of a graph.

    `example_inputs` has an example of each input, and `dynamic_axes` the names of dynamic axes by input and axis
    number. `variadic` is the number of inputs, at the end, that are variadic arguments of the module.
    """

    example_inputs: dict[str, Tensor]
    dynamic_axes: dict[str, dict[int, str]]
    outputs: tuple[str, ...]
    variadic: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(self.example_inputs)


def write_graph(module: nn.Module, path: Path, weights: str | None, signature: GraphSignature) -> None:
    """Export `module` to the graph `path`, with its weights in the file `weights` next to it, or in the graph.

    Graphs may share a weights file. Raises ArtifactError if it exists with other contents.
    """
    save_graph(_to_onnx(module, signature), path, weights)


def save_graph(model: onnx_ir.Model, path: Path, weights: str | None) -> None:
    """Write an ONNX model like `write_graph`."""
    _strip_metadata(model)
    if weights is None:
        onnx_ir.save(model, path)
        return
    compact_weights(model)
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as scratch:
        onnx_ir.save(model, Path(scratch) / path.name, external_data=weights, size_threshold_bytes=64)
        written, shared = Path(scratch) / weights, path.parent / weights
        if shared.exists() and describe_file(written) != describe_file(shared):
            raise ArtifactError(f"{path.name}: weights differ from the existing {weights}. Report this as a bug.")
        os.replace(written, shared)
        os.replace(Path(scratch) / path.name, path)


def describe_graph(path: Path, weights: str | None, precision: GraphPrecision) -> GraphRecord:
    """Return the record of a graph that `write_graph` wrote."""
    graph = onnx_ir.load(path).graph
    return GraphRecord(
        file=path.name,
        weights=() if weights is None else (weights,),
        inputs=_describe_values(graph.inputs),
        outputs=_describe_values(graph.outputs),
        precision=precision,
    )


def _describe_values(values: Sequence[onnx_ir.Value]) -> tuple[ValueRecord, ...]:
    return tuple(
        ValueRecord.model_validate(
            {
                "name": value.name,
                "dtype": np.dtype(value.dtype.numpy()).name,
                "shape": [size if isinstance(size, int) else size.value for size in value.shape],
            }
        )
        for value in values
        if value.dtype is not None and value.shape is not None
    )


def _to_onnx(module: nn.Module, signature: GraphSignature) -> onnx_ir.Model:
    axes = signature.dynamic_axes
    sizes = {name: torch.export.Dim(name) for names in axes.values() for name in names.values()}
    shapes: list[Any] = [{axis: sizes[name] for axis, name in axes.get(key, {}).items()} for key in signature.inputs]
    if signature.variadic:
        shapes = [*shapes[: -signature.variadic], tuple(shapes[-signature.variadic :])]
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                tuple(signature.example_inputs.values()),
                input_names=signature.inputs,
                output_names=signature.outputs,
                dynamic_shapes=tuple(shapes),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    finally:
        exporter_log.setLevel(level)
    assert program is not None
    define_attention(program.model)
    return program.model


def _strip_metadata(model: onnx_ir.Model) -> None:
    """Remove the source paths and stack traces that the exporter adds to every node, which depend on the machine."""
    model.metadata_props.clear()
    for graph in model.graphs():
        graph.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = None
