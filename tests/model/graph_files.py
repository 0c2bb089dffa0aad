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


class HiddenStates(nn.Module):
    """A model of transformers that takes named inputs in order and returns only its last hidden states."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> Tensor:
        hidden: Tensor = self.model(**dict(zip(self.names, values, strict=True))).last_hidden_state
        return hidden


def publish_graph(
    source: Path, directory: Path, *, inputs: Sequence[str] = INPUTS, model: Any = None, folder: str = "onnx"
) -> Path:
    """Copy a published model, with an ONNX graph instead of the weights of its encoder; return the graph."""
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
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            HiddenStates(model, names),
            tuple(values[name] for name in names),
            str(graph),
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_shapes=(tuple(axes for _ in names),),
            dynamo=True,
            verbose=False,
        )
    return graph
