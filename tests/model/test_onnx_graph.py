"""ONNX graph export: external weights, shared weights, and no metadata."""

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from model.artifact.files import ArtifactError
from model.export.graphs import GraphSignature, write_graph


class Scaled(nn.Module):
    """A module with one weight."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((37,), factor, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


SIGNATURE = GraphSignature({"x": torch.zeros(5, 37)}, {"x": {0: "N"}}, ("y",))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory with a writable parent, as in an export."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_graph_has_external_weights_and_dynamic_axes(root: Path) -> None:
    write_graph(Scaled(3), root / "a.onnx", "a.bin", SIGNATURE)
    assert sorted(path.name for path in root.iterdir()) == ["a.bin", "a.onnx"]
    graph = onnx.load(root / "a.onnx").graph
    assert [(entry.name, entry.type.tensor_type.shape.dim[0].dim_param) for entry in graph.input] == [("x", "N")]
    assert [entry.name for entry in graph.output] == ["y"]


def test_graphs_share_equal_weights_and_reject_different_weights(root: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        write_graph(Scaled(3), root / name, "shared.bin", SIGNATURE)
    before = (root / "shared.bin").read_bytes()
    with pytest.raises(ArtifactError, match=r"c\.onnx: weights differ"):
        write_graph(Scaled(4), root / "c.onnx", "shared.bin", SIGNATURE)
    assert sorted(path.name for path in root.iterdir()) == ["a.onnx", "b.onnx", "shared.bin"]
    assert (root / "shared.bin").read_bytes() == before


def test_graph_contains_no_metadata(root: Path) -> None:
    write_graph(Scaled(3), root / "a.onnx", "a.bin", SIGNATURE)
    graph = onnx.load(root / "a.onnx")
    assert not graph.metadata_props
    assert all(not node.metadata_props and not node.doc_string for node in graph.graph.node)
    assert b"test_onnx_graph" not in (root / "a.onnx").read_bytes()
