"""Heads over the vocabulary: masked language models and the sparse vectors built on them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from model.artifact.manifest import Similarity, SparseActivation, SparsePooling
from model.heads.row_head import HeadLayout, RowHead, read_linear_head
from model.source.published import (
    REDOWNLOAD,
    CheckpointError,
    ConfigFile,
    read_tensors,
    require_finite,
    require_shape,
    token_content,
    unsupported,
)


@dataclass(frozen=True)
class VocabularyLayout:
    """A masked-LM head: the projection onto the vocabulary and the layers before it.

    Attributes:
        layers: The layers before the projection.
        decoder: The projection. A stored weight and bias take precedence over tied ones.
        tied: Whether a checkpoint without `decoder`'s weight uses the embedding table. If not tied, a missing weight is
            an error.
        tied_bias: The tensor that replaces a missing bias of `decoder`; None for no replacement.
        has_bias: `decoder` has a bias.
    """

    layers: HeadLayout
    decoder: str
    tied: bool
    tied_bias: str | None = None
    has_bias: bool = True

    def is_in(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether a checkpoint contains the head. config.json may name a head that was not saved."""
        first = self.layers.dense or self.layers.norm
        if first is None:
            return self.tied or f"{self.decoder}.weight" in tensors
        return f"{first}.weight" in tensors


@dataclass(frozen=True)
class VocabularyHead:
    """A checkpoint's masked-LM head: logits (N, V) = `layers(rows)` @ `decoder.T` + `bias` for rows (N, D).

    If `layers` is None, the projection reads the hidden states. `decoder` is (V, E), `bias` (V).
    """

    layers: RowHead | None
    decoder: Tensor
    bias: Tensor | None


def read_vocabulary_head(
    layout: VocabularyLayout, tensors: Mapping[str, Tensor], embeddings: Tensor, hidden_size: int
) -> VocabularyHead:
    """Return the masked-LM head of a checkpoint.

    `tensors` have the architecture's names; `embeddings` is the embedding table, (V, E).

    Raises:
        CheckpointError: a tensor is missing or of the wrong shape.
    """
    has_layers = layout.layers.dense is not None or layout.layers.norm is not None
    layers = RowHead(layout.layers, tensors, hidden_size) if has_layers else None
    decoder = find_decoder(f"{layout.decoder}.weight", tensors, embeddings, tied=layout.tied)
    width = hidden_size if layers is None else layers.out_features
    require_shape(decoder, f"{layout.decoder}.weight", (len(decoder), width))
    bias = _read_bias(layout, tensors)
    if bias is not None:
        require_shape(bias, f"{layout.decoder}.bias", (len(decoder),))
    require_finite(decoder, f"{layout.decoder}.weight")
    return VocabularyHead(layers, decoder.float(), None if bias is None else bias.float())


def find_decoder(name: str, tensors: Mapping[str, Tensor], shared: Tensor, *, tied: bool) -> Tensor:
    """Return a tensor of the projection; if it is missing and `tied`, the tensor it is tied to.

    Raises:
        CheckpointError: the tensor is missing and not tied.
    """
    if name not in tensors and not tied:
        raise CheckpointError(f"Weights: tensor {name} is missing, and tie_word_embeddings is false. {REDOWNLOAD}")
    return tensors.get(name, shared)


def _read_bias(layout: VocabularyLayout, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Return the bias of the projection; None if the checkpoint has none. Raises CheckpointError."""
    if not layout.has_bias:
        return None
    # transformers 4 ties the bias even if the projection is not tied, and then stores only `tied_bias`.
    name = next((name for name in (f"{layout.decoder}.bias", layout.tied_bias) if name in tensors), None)
    if name is None:
        return None
    require_finite(tensors[name], name)
    return tensors[name]


MASK_TOKENS = ("[MASK]", "<mask>")
"""Mask tokens to try if the tokenizer's configuration does not name one."""


@dataclass(frozen=True)
class MaskedLM:
    """A checkpoint's masked-LM head, and the mask token's id; None if the tokenizer has no mask token."""

    head: VocabularyHead
    mask_token_id: int | None


def find_mask_token(tokenizer: bytes, options: Mapping[str, Any]) -> int | None:
    """Return the mask token's id in a tokenizer.json; `options` are the values of tokenizer_config.json."""
    content = token_content(options.get("mask_token"))
    names = MASK_TOKENS if content is None else (content,)
    added = json.loads(tokenizer).get("added_tokens") or ()
    return next((token["id"] for token in added if token["content"] in names), None)


LINEAR = "sparse_linear.pt"
"""File with BGE-M3's linear layer, which maps a token vector to the token's weight."""


@dataclass(frozen=True)
class Sparse:
    """A checkpoint's sparse head; see `SparseHead`.

    If `head` is None, the projection reads the hidden states. `decoder` (V, E) is None for a linear head.
    `query_weights` (V) is None unless query weights come from a table instead of inference.
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
    """Return BGE-M3's sparse head; None if absent. Raises CheckpointError."""
    head = read_linear_head(directory / LINEAR, hidden_size)
    if head is None:
        return None
    if head.out_features != 1:
        raise CheckpointError(f"{directory / LINEAR}: {head.out_features} outputs, expected 1. {REDOWNLOAD}")
    return Sparse(head, None, None, "max", "relu")


def read_query_weights(module: Path, size: int) -> Tensor:
    """Return the weights (V) of the module SparseStaticEmbedding. Raises CheckpointError."""
    tensors = read_tensors(module)
    weights = tensors.get("weight")
    file = f"{module.name}/model.safetensors"
    if weights is None or weights.shape != (size,):
        raise CheckpointError(f"{file}: expected a tensor weight of {size} values. {REDOWNLOAD}")
    require_finite(weights, "weight", file)
    return weights.float()


def read_splade(options: ConfigFile, head: VocabularyHead, query_weights: Tensor | None = None) -> Sparse:
    """Return the sparse head of a SPLADE model; `options` configure the module SpladePooling.

    Raises:
        CheckpointError: a value of config.json is invalid.
    """
    reduce, activation = options.get("pooling_strategy", "max"), options.get("activation_function", "relu")
    activations: dict[str, SparseActivation] = {"relu": "log1p_relu", "log1p_relu": "log1p_log1p_relu"}
    if reduce not in ("max", "sum") or activation not in [*activations]:
        raise unsupported(f"{options.name}: pooling", f"{reduce}, {activation}", ("max", "sum", *activations))
    return Sparse(head.layers, head.decoder, head.bias, reduce, activations[str(activation)], query_weights)
