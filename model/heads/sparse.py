"""Sparse vectors over the vocabulary: SPLADE (Formal et al. 2021), and BGE-M3's lexical weights (Chen et al. 2024)."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from model.checkpoint_files import CheckpointError, read_pickled, read_tensors, require_finite
from model.config_files import ConfigFile
from model.head_records import Similarity, SparseActivation, SparsePooling
from model.heads.row_head import HeadLayout, RowHead
from model.heads.vocabulary import VocabularyHead

LINEAR = "sparse_linear.pt"
"""The linear layer of BGE-M3, from a token vector to the weight of the token."""
LINEAR_LAYOUT = HeadLayout("linear")


@dataclass(frozen=True)
class Sparse:
    """A sparse head from a checkpoint; see `SparseHead`.

    `head` None means that the projection reads the hidden states. `decoder` (V, E) is None for a linear head, and
    `query_weights` (V) unless queries have weights without inference.
    """

    head: RowHead | None
    decoder: Tensor | None
    bias: Tensor | None
    pooling: SparsePooling
    activation: SparseActivation
    query_weights: Tensor | None = None
    max_active: int | None = None
    similarity: Similarity = "dot"


def read_linear_sparse(directory: Path, hidden_size: int) -> Sparse | None:
    """Return BGE-M3's sparse head; None if the directory has none. Raises CheckpointError."""
    path = directory / LINEAR
    if not path.is_file():
        return None
    tensors = read_pickled(path)
    for name, tensor in tensors.items():
        require_finite(tensor, name, path.name)
    head = RowHead(LINEAR_LAYOUT, {f"linear.{name}": tensor for name, tensor in tensors.items()}, hidden_size)
    if head.out_features != 1:
        raise CheckpointError(f"{path}: has {head.out_features} outputs, expected 1. Download the model again.")
    return Sparse(head, None, None, "max", "relu")


def read_query_weights(module: Path, size: int) -> Tensor:
    """Return the weights (V) of the module SparseStaticEmbedding. Raises CheckpointError."""
    tensors = read_tensors(module)
    weights = tensors.get("weight")
    file = f"{module.name}/model.safetensors"
    if weights is None or weights.shape != (size,):
        raise CheckpointError(f"{file}: expected a tensor weight of {size} values. Download the model again.")
    require_finite(weights, "weight", file)
    return weights.float()


def read_splade(options: ConfigFile, head: VocabularyHead, query_weights: Tensor | None = None) -> Sparse:
    """Return the sparse head of a SPLADE model; `options` configure the module SpladePooling.

    Raises:
        CheckpointError: a value of config.json is invalid.
    """
    reduce, activation = options.get("pooling_strategy", "max"), options.get("activation_function", "relu")
    activations: dict[str, SparseActivation] = {"relu": "log1p_relu", "log1p_relu": "log1p_log1p_relu"}
    if reduce not in ("max", "sum") or activation not in activations:
        raise CheckpointError(
            f"{options.name}: unsupported pooling ({reduce}, {activation}). "
            f"Supported: max or sum, and {' or '.join(activations)}."
        )
    return Sparse(head.layers, head.decoder, head.bias, reduce, activations[activation], query_weights)
