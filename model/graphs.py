"""A torch module to an ONNX file with its weights beside it: the same module gives the same bytes, on any machine."""

import logging
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import onnx_ir
import torch
from torch import Tensor, nn

from model.artifact import ArtifactError, describe_file

OPSET = 20


@dataclass(frozen=True)
class Signature:
    """What a graph takes and gives: an example of each input, the names of its free sizes by axis, and the outputs."""

    examples: dict[str, Tensor]
    free: dict[str, dict[int, str]]
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.examples)


def write_graph(module: nn.Module, path: Path, weights: str, signature: Signature) -> None:
    """Write `path`, and its weights to the file `weights` beside it, which graphs may share.

    Raises `ArtifactError` when that file is there and is not the same.
    """
    save_graph(_to_onnx(module, signature), path, weights)


def save_graph(model: onnx_ir.Model, path: Path, weights: str) -> None:
    """As `write_graph`, of a model that is ONNX already."""
    _forget_the_machine(model)
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as scratch:
        onnx_ir.save(model, Path(scratch) / path.name, external_data=weights, size_threshold_bytes=64)
        written, shared = Path(scratch) / weights, path.parent / weights
        if shared.exists() and describe_file(written) != describe_file(shared):
            raise ArtifactError(f"{path.name}: its weights differ from those of the graphs before it; this is a bug.")
        os.replace(written, shared)
        os.replace(Path(scratch) / path.name, path)


def _to_onnx(module: nn.Module, signature: Signature) -> onnx_ir.Model:
    sizes = {name: torch.export.Dim(name) for axes in signature.free.values() for name in axes.values()}
    shapes = tuple({axis: sizes[name] for axis, name in signature.free[key].items()} for key in signature.examples)
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                tuple(signature.examples.values()),
                input_names=signature.inputs,
                output_names=signature.outputs,
                dynamic_shapes=shapes,
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    finally:
        exporter_log.setLevel(level)
    assert program is not None
    return program.model


def _forget_the_machine(model: onnx_ir.Model) -> None:
    """The exporter notes source paths and stack traces on every node; the same model must give the same bytes."""
    model.metadata_props.clear()
    for graph in model.graphs():
        graph.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = None
