"""One vector per token, for late interaction (Khattab and Zaharia 2020): the ColBERT head of BGE-M3."""

from dataclasses import dataclass
from pathlib import Path

from model.checkpoint_files import read_pickled
from model.heads.row_head import HeadLayout, RowHead

LINEAR = "colbert_linear.pt"
LAYOUT = HeadLayout("linear")


@dataclass(frozen=True)
class MultiVector:
    """A multi-vector head from a checkpoint; see `MultiVectorHead`."""

    head: RowHead
    skips_first: bool


def read_multi_vector(directory: Path, hidden_size: int) -> MultiVector | None:
    """Return BGE-M3's multi-vector head, which skips [CLS]; None if the directory has none. Raises CheckpointError."""
    path = directory / LINEAR
    if not path.is_file():
        return None
    tensors = {f"linear.{name}": tensor for name, tensor in read_pickled(path).items()}
    return MultiVector(RowHead(LAYOUT, tensors, hidden_size), skips_first=True)
