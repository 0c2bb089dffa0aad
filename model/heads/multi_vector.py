"""One vector per token, for late interaction (Khattab and Zaharia 2020): ColBERT and the head of BGE-M3."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import Tensor

from model.checkpoint_files import read_pickled, require_finite
from model.head_records import ExpansionRecord, SideRecord
from model.heads.row_head import HeadLayout, RowHead

LINEAR = "colbert_linear.pt"
LAYOUT = HeadLayout("linear")


@dataclass(frozen=True)
class MultiVector:
    """A multi-vector head from a checkpoint; see `MultiVectorHead`."""

    head: RowHead
    skips_first: bool
    query: SideRecord = field(default_factory=SideRecord)
    document: SideRecord = field(default_factory=SideRecord)
    expansion: ExpansionRecord | None = None
    skipped_token_ids: tuple[int, ...] = ()
    score: Literal["mean", "sum"] = "mean"


def read_multi_vector(directory: Path, hidden_size: int) -> MultiVector | None:
    """Return BGE-M3's multi-vector head, which skips [CLS]; None if the directory has none. Raises CheckpointError."""
    path = directory / LINEAR
    if not path.is_file():
        return None
    tensors = read_pickled(path)
    for name, tensor in tensors.items():
        require_finite(tensor, name, path.name)
    return MultiVector(token_projection(tensors, hidden_size), skips_first=True)


def token_projection(tensors: dict[str, Tensor], hidden_size: int) -> RowHead:
    """Return the layer from a token vector to its vector for late interaction: `weight` and, in some models, `bias`."""
    return RowHead(LAYOUT, {f"linear.{name}": tensor for name, tensor in tensors.items()}, hidden_size)
