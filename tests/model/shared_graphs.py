"""Exported graphs shared by all test runs of a checkout, because torch.onnx takes seconds for a tiny module."""

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import onnx
import onnx_ir
from filelock import FileLock
from torch import nn

from model.export import graphs as onnx_graph
from model.export.graphs import GraphSignature

MAX_PARAMETERS = 2**20
INTERNAL = vars(nn.Module())

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".pytest_cache" / "graphs"
EXPORTERS = ("torch", "onnx", "onnx-ir", "onnxscript")

export_anew = onnx_graph._to_onnx


def share_graphs() -> None:
    """Make every export of this process use the graphs of earlier ones."""
    onnx_graph._to_onnx = export_shared


def export_shared(module: nn.Module, signature: GraphSignature) -> onnx_ir.Model:
    """Return the graph of a module, exported only once for equal tiny modules with equal signatures and exporters."""
    if sum(tensor.numel() for tensor in module.parameters()) > MAX_PARAMETERS:
        return export_anew(module, signature)
    digest = hashlib.sha256(_exporter())
    for part in _content(module, signature):
        digest.update(part)
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{digest.hexdigest()}.onnx"
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            model = export_anew(module, signature)
            onnx_graph._strip_metadata(model)
            path.with_suffix(".new").write_bytes(onnx_ir.to_proto(model).SerializeToString())
            os.replace(path.with_suffix(".new"), path)
    return onnx_ir.from_proto(onnx.ModelProto.FromString(path.read_bytes()))


@cache
def _exporter() -> bytes:
    """Return everything besides the module that determines its graph: the code of `model/` and the exporters."""
    code = [path.read_bytes() for path in sorted((ROOT / "model").rglob("*.py"))]
    return b"\0".join([*code, *(version(name).encode() for name in EXPORTERS)])


def _stable(value: Any) -> Any:
    """Return a value whose `repr` is the same in every process: without addresses and without the order of a set."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, FunctionType):
        return value.__module__, value.__qualname__, value.__code__.co_firstlineno
    if isinstance(value, BuiltinFunctionType):
        return value.__module__, value.__qualname__
    return value


def _content(module: nn.Module, signature: GraphSignature) -> Iterator[bytes]:
    """Yield everything that determines the graph: classes, attributes, weights and the signature.

    Weights that are inputs of the module determine it only by their types and shapes, as other inputs do.
    """
    for name, part in module.named_modules():
        attributes = {key: _stable(value) for key, value in vars(part).items() if key not in INTERNAL}
        yield repr((name, type(part), part.training, attributes)).encode()
    weights = module.state_dict()
    for name, tensor in [*weights.items(), *signature.example_inputs.items()]:
        yield repr((name, tensor.dtype, tensor.shape)).encode()
        if name in weights and not signature.variadic:
            yield tensor.detach().numpy().tobytes()
    yield repr((signature.dynamic_axes, signature.outputs)).encode()
