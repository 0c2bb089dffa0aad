"""Models published only as an ONNX graph, exported from transformers."""

import inspect
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.model.family_cases import load_oracle

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class NamedInputs(nn.Module):
    """A model of transformers that takes named inputs in order and returns only one output."""

    def __init__(self, model: nn.Module, names: Sequence[str], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *values: Tensor) -> Tensor:
        result: Tensor = self.model(**dict(zip(self.names, values, strict=True)))[self.output]
        return result


def publish_graph(
    source: Path,
    directory: Path,
    *,
    inputs: Sequence[str] = INPUTS,
    model: Any = None,
    folder: str = "onnx",
    output: str = "last_hidden_state",
    dynamo: bool = True,
) -> Path:
    """Copy a published model, with an ONNX graph instead of the weights; return the graph.

    Without `dynamo`, the earlier exporter of torch writes it, as in most repositories.
    """
    model = model or load_oracle(source)
    names = [name for name in inputs if name in inspect.signature(model.forward).parameters]
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns("oracle"))
    (directory / "model.safetensors").unlink()
    (directory / folder).mkdir(exist_ok=True)
    graph = directory / folder / "model.onnx"
    ids = torch.full((2, 16), 7)
    values = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
        "position_ids": torch.arange(16).expand(2, 16),
    }
    sizes = {0: "batch", 1: "sequence"}
    axes: dict[str, Any] = {"dynamic_axes": dict.fromkeys(names, sizes)}
    if dynamo:
        axes = {"dynamic_shapes": (tuple({key: torch.export.Dim(size) for key, size in sizes.items()} for _ in names),)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            NamedInputs(model, names, output).eval(),
            tuple(values[name] for name in names),
            str(graph),
            input_names=names,
            output_names=[output],
            dynamo=dynamo,
            **axes,
            verbose=False,
        )
    return graph
