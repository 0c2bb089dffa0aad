"""Writing a graph: the weights beside it, shared or refused, and nothing of the machine in it."""

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from model.artifact import ArtifactError
from model.graphs import Signature, write_graph


class Scaled(nn.Module):
    """Something with weights."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((37,), factor, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


SIGNATURE = Signature({"x": torch.zeros(5, 37)}, {"x": {0: "N"}}, ("y",))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory whose parent may be written too, as in an export."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_weights_lie_beside_the_graph(root: Path) -> None:
    """By the name that was given; sizes that were called free are."""
    write_graph(Scaled(3), root / "a.onnx", "a.bin", SIGNATURE)
    assert sorted(path.name for path in root.iterdir()) == ["a.bin", "a.onnx"]
    graph = onnx.load(root / "a.onnx").graph
    assert [(entry.name, entry.type.tensor_type.shape.dim[0].dim_param) for entry in graph.input] == [("x", "N")]
    assert [entry.name for entry in graph.output] == ["y"]


def test_graphs_share_weights_that_are_the_same(root: Path) -> None:
    """The second finds them there; others are refused, and the file stays."""
    for name in ("a.onnx", "b.onnx"):
        write_graph(Scaled(3), root / name, "shared.bin", SIGNATURE)
    before = (root / "shared.bin").read_bytes()
    with pytest.raises(ArtifactError, match=r"c\.onnx: its weights differ"):
        write_graph(Scaled(4), root / "c.onnx", "shared.bin", SIGNATURE)
    assert sorted(path.name for path in root.iterdir()) == ["a.onnx", "b.onnx", "shared.bin"]
    assert (root / "shared.bin").read_bytes() == before


def test_no_node_remembers_where_it_was_made(root: Path) -> None:
    """Nor does the file name a path."""
    write_graph(Scaled(3), root / "a.onnx", "a.bin", SIGNATURE)
    graph = onnx.load(root / "a.onnx")
    assert not graph.metadata_props
    assert all(not node.metadata_props and not node.doc_string for node in graph.graph.node)
    assert b"test_graphs" not in (root / "a.onnx").read_bytes()
