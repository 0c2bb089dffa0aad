"""Layers common to heads of all architectures, read from a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from model.encoder.config import ACTIVATIONS
from model.source.published import CheckpointError, find_tensor, read_pickled, require_finite, require_shape

HEAD_ACTIVATIONS = ACTIVATIONS | {"tanh": torch.tanh}


@dataclass(frozen=True)
class HeadLayout:
    """The checkpoint names of a head's modules: `output(norm(activation(dense(x))))`.

    None means no module. Without `dense`, there is no activation. Modules in `unbiased` have no bias, even if the
    checkpoint contains one.
    """

    output: str | None = None
    dense: str | None = None
    activation: str = "tanh"
    norm: str | None = None
    norm_eps: float = 1e-5
    unbiased: tuple[str, ...] = ()


class RowHead(nn.Module):
    """A dense layer with activation, a LayerNorm and a linear layer, applied per row: (N, D) to (N, K)."""

    def __init__(self, layout: HeadLayout, tensors: Mapping[str, Tensor], hidden_size: int) -> None:
        """Read the weights of the modules in `layout`. Raises CheckpointError."""
        super().__init__()
        ignored = {f"{name}.bias" for name in layout.unbiased}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in ignored}
        self.dense: nn.Module = nn.Identity()
        self.norm: nn.Module = nn.Identity()
        self.in_features = size = hidden_size
        if layout.dense is not None:
            self.dense = _read_linear(layout.dense, tensors, size)
            size = self.dense.weight.shape[0]
        self.activation = HEAD_ACTIVATIONS[layout.activation] if layout.dense is not None else nn.Identity()
        if layout.norm is not None:
            self.norm = _read_norm(layout.norm, tensors, size, layout.norm_eps)
        self.output: nn.Module = nn.Identity()
        if layout.output is not None:
            self.output = _read_linear(layout.output, tensors, size)
            size = self.output.weight.shape[0]
        self.out_features = size
        self.eval()

    def forward(self, rows: Tensor) -> Tensor:
        """Return (N, K) for rows (N, D)."""
        output: Tensor = self.output(self.norm(self.activation(self.dense(rows))))
        return output


RecordT = TypeVar("RecordT")


@dataclass(frozen=True)
class RecordedHead(Generic[RecordT]):
    """A checkpoint's head, and its record in the manifest."""

    head: RowHead
    record: RecordT


def empty_head(layout: HeadLayout, hidden_size: int, out_features: int) -> RowHead:
    """Return a head to train: zero linear layers, and a LayerNorm with unit weight."""
    tensors: dict[str, Tensor] = {}
    for name, rows in ((layout.dense, hidden_size), (layout.output, out_features)):
        if name is not None:
            tensors |= {f"{name}.weight": torch.zeros(rows, hidden_size), f"{name}.bias": torch.zeros(rows)}
    if layout.norm is not None:
        tensors |= {f"{layout.norm}.weight": torch.ones(hidden_size), f"{layout.norm}.bias": torch.zeros(hidden_size)}
    for name in layout.unbiased:
        del tensors[f"{name}.bias"]
    return RowHead(layout, tensors, hidden_size)


def linear_head(tensors: Mapping[str, Tensor], hidden_size: int) -> RowHead:
    """Return a linear layer as a head: `weight` and, in some models, `bias`."""
    return RowHead(HeadLayout("linear"), {f"linear.{name}": tensor for name, tensor in tensors.items()}, hidden_size)


def read_linear_head(path: Path, hidden_size: int) -> RowHead | None:
    """Return the linear layer in one of BGE-M3's files; None if the file is missing. Raises CheckpointError."""
    if not path.is_file():
        return None
    tensors = read_pickled(path)
    for name, tensor in tensors.items():
        require_finite(tensor, name, path.name)
    return linear_head(tensors, hidden_size)


def has_architecture(config: Mapping[str, Any], *suffixes: str) -> bool:
    """Return whether an architecture in config.json ends with one of the suffixes, such as "ForMaskedLM"."""
    architectures = config.get("architectures")
    return isinstance(architectures, list) and any(str(name).endswith(suffixes) for name in architectures)


def read_labels(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the label names; if config.json contains none, transformers' default names.

    Raises CheckpointError if `label2id`, which transformers reads for zero-shot classification, contradicts them.
    """
    names = config.get("id2label")
    if not names:
        return tuple(f"LABEL_{index}" for index in range(count))
    if not isinstance(names, dict) or sorted(map(str, names)) != sorted(map(str, range(count))):
        raise CheckpointError(f"config.json: id2label does not name the {count} labels of the weights. Correct it.")
    labels = tuple(str(names.get(str(index), names.get(index))) for index in range(count))
    numbers = config.get("label2id")
    for label, number in numbers.items() if isinstance(numbers, dict) else ():
        if labels.count(label) == 1 and str(labels.index(label)) != str(number):
            raise CheckpointError(f"config.json: id2label and label2id disagree on the label {label!r}. Correct one.")
    return labels


def _read_linear(name: str, tensors: Mapping[str, Tensor], in_features: int) -> nn.Linear:
    weight, bias = find_tensor(tensors, f"{name}.weight"), tensors.get(f"{name}.bias")
    _check(f"{name}.weight", weight, len(weight), in_features)
    linear = nn.Linear(in_features, len(weight), bias=bias is not None)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            _check(f"{name}.bias", bias, len(weight))
            linear.bias.copy_(bias)
    return linear


def _read_norm(name: str, tensors: Mapping[str, Tensor], size: int, eps: float) -> nn.LayerNorm:
    bias = tensors.get(f"{name}.bias")
    norm = nn.LayerNorm(size, eps, bias=bias is not None)
    with torch.no_grad():
        for leaf, parameter in norm.named_parameters():
            tensor = find_tensor(tensors, f"{name}.{leaf}")
            _check(f"{name}.{leaf}", tensor, size)
            parameter.copy_(tensor)
    return norm


def _check(name: str, tensor: Tensor, *shape: int) -> None:
    require_shape(tensor, name, shape)
    require_finite(tensor, name)
