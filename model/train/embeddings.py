"""Embeddings of the sequences of a packed batch in torch: pooling and dense layers, as the server computes them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from model.encoder import Encoder
from model.manifest import Pooling
from model.sentence_transformers_config import DenseLayer


class TextEncoder(nn.Module):
    """An encoder followed by pooling and dense layers."""

    def __init__(self, encoder: Encoder, pooling: Pooling, dense: Sequence[DenseLayer]) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.dense = nn.Sequential(*(module for layer in dense for module in _modules(layer)))

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the float32 embeddings (S, D) of the S sequences of a packed batch, in the order of their ids."""
        hidden = self.encoder(**inputs)
        embeddings: Tensor = self.dense(pool(hidden, inputs["sequence_ids"], inputs["position_ids"], self.pooling))
        return embeddings.float()

    def embed_spans(self, inputs: dict[str, Tensor], span_ids: Tensor) -> Tensor:
        """Return the means (S, hidden size) of the last hidden states of S spans, as the server's word vectors.

        `span_ids` (R, T) are 1 to S, and 0 outside of spans.
        """
        return pool(self.encoder(**inputs), span_ids, inputs["position_ids"], "mean")

    @property
    def dimensions(self) -> int:
        """The size D of an embedding."""
        sizes = [module.out_features for module in self.dense if isinstance(module, nn.Linear)]
        return sizes[-1] if sizes else self.encoder.config.hidden_size

    def dense_layers(self) -> tuple[DenseLayer, ...]:
        """Return the dense layers with their present weights."""
        modules = list(self.dense)
        return tuple(
            DenseLayer(
                module.weight.detach().cpu(), None if module.bias is None else module.bias.detach().cpu(),
                "tanh" if index + 1 < len(modules) and isinstance(modules[index + 1], nn.Tanh) else "identity",
            )
            for index, module in enumerate(modules)
            if isinstance(module, nn.Linear)
        )  # fmt: skip


def pool(hidden: Tensor, sequence_ids: Tensor, position_ids: Tensor, pooling: Pooling) -> Tensor:
    """Return the pooled vectors (S, D) in float32 of hidden states (R, T, D).

    `sequence_ids` (R, T) are 1 to S, and 0 for padding; `position_ids` (R, T) are 0 at the first token of a sequence.
    """
    owners, vectors = sequence_ids.flatten(), hidden.flatten(0, 1).float()
    count = int(owners.max())
    if pooling in ("cls", "last"):
        positions = position_ids.flatten()
        lengths = torch.bincount(owners, minlength=count + 1)
        chosen = (positions == (0 if pooling == "cls" else lengths[owners] - 1)) & (owners > 0)
        pooled = vectors.new_zeros(count + 1, vectors.shape[1]).index_copy(0, owners[chosen], vectors[chosen])
    elif pooling == "mean":
        sums = vectors.new_zeros(count + 1, vectors.shape[1]).index_add(0, owners, vectors)
        pooled = sums / torch.bincount(owners, minlength=count + 1).clamp(min=1).unsqueeze(1)
    else:
        lowest = vectors.new_full((count + 1, vectors.shape[1]), -torch.inf)
        pooled = lowest.scatter_reduce(0, owners.unsqueeze(1).expand_as(vectors), vectors, "amax")
    return pooled[1:]


def _modules(layer: DenseLayer) -> list[nn.Module]:
    outputs, inputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, bias=layer.bias is not None)
    with torch.no_grad():
        linear.weight.copy_(layer.weight)
        if layer.bias is not None:
            linear.bias.copy_(layer.bias)
    return [linear, nn.Tanh()] if layer.activation == "tanh" else [linear]
