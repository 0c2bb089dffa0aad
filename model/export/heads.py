"""Export of heads: their records and, except for the embedding head, a small graph over rows of hidden states."""

import json
from collections.abc import Iterator

import onnx_ir
import torch
from torch import Tensor, nn

from model.artifact.manifest import (
    DenseRecord,
    EmbeddingHead,
    Head,
    MaskedLMHead,
    SparseHead,
)
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.checkpoint import Checkpoint
from model.encoder import Encoder
from model.export.graphs import GraphSet, GraphSignature, WeightStore, open_session, write_graph
from model.export.imported import ImportedHead
from model.export.parity import TOLERANCE, compare
from model.heads.row_head import RowHead
from model.heads.vocabulary import MaskedLM
from model.source.sentence_transformers import EmbeddingConfig

OUTPUTS = {
    "classification": "logits",
    "token_classification": "logits",
    "masked_lm": "features",
    "masked_lm_layers": "features",
    "sparse": "features",
    "multi_vector": "vectors",
}
"""The output of each graph."""
TESTED_ROWS = (1, 2, 33)


class NormedHead(nn.Module):
    """An encoder's final norm followed by a head's layers, applied to hidden states of earlier layers."""

    def __init__(self, norm: nn.Module, head: RowHead | None, hidden_size: int) -> None:
        super().__init__()
        self.norm = norm
        self.head = nn.Identity() if head is None else head
        self.in_features = hidden_size

    def forward(self, rows: Tensor) -> Tensor:
        """Return (N, E) for rows (N, D)."""
        features: Tensor = self.head(self.norm(rows))
        return features


def write_embedding_head(embedding: EmbeddingConfig, hidden_size: int, store: WeightStore) -> EmbeddingHead:
    """Write the dense layers of the head, if it has any, and return its record."""
    dense = tuple(
        DenseRecord(weight=store.find(layer.weight), bias=store.find_optional(layer.bias), activation=layer.activation)
        for layer in embedding.dense
    )
    size = dense[-1].weight.shape[0] if dense else embedding.pooled_size(hidden_size)
    return EmbeddingHead(
        pooling=embedding.pooling,
        include_prompt=embedding.include_prompt,
        dense=dense,
        normalize=embedding.normalize,
        dimensions=embedding.truncate_dim or size,
        similarity=embedding.similarity,
        truncate_dim=embedding.truncate_dim,
    )


def write_heads(checkpoint: Checkpoint, store: WeightStore, graphs: GraphSet) -> Iterator[Head]:
    """Write the graphs of all heads except the embedding head; yield the heads' records."""
    if (classifier := checkpoint.classifier) is not None:
        write_row_graph(graphs, "classification", classifier.head)
        yield classifier.record
    if (tokens := checkpoint.token_classifier) is not None:
        write_row_graph(graphs, "token_classification", tokens.head)
        yield tokens.record
    if checkpoint.masked_lm is not None:
        yield _write_masked_lm(checkpoint.masked_lm, checkpoint.encoder, store, graphs)
    if (sparse := checkpoint.sparse) is not None:
        if sparse.head is not None:
            write_row_graph(graphs, "sparse", sparse.head)
        yield SparseHead(
            graph=None if sparse.head is None else "sparse",
            decoder=store.find_optional(sparse.decoder),
            bias=store.find_optional(sparse.bias),
            pooling=sparse.pooling,
            activation=sparse.activation,
            # A linear head weights only the tokens of the text; for a projection, sentence-transformers keeps all
            # entries.
            skipped_token_ids=special_ids(checkpoint.tokenizer) if sparse.decoder is None else (),
            query_weights=store.find_optional(without_frame(sparse.query_weights, checkpoint.tokenizer)),
            max_active=sparse.max_active,
            similarity=sparse.similarity,
        )
    if (vectors := checkpoint.multi_vector) is not None:
        write_row_graph(graphs, "multi_vector", vectors.head)
        yield vectors.record


def without_frame(weights: Tensor | None, tokenizer: bytes) -> Tensor | None:
    """Return weights (V) with 0 for the tokens around each text, which queries with a weight table do not contain."""
    if weights is None:
        return None
    changed = weights.clone()
    frame = Tokenizer(tokenizer).encode([TokenizerInput("")])[0].input_ids
    changed[[number for number in frame if number < len(weights)]] = 0
    return changed


def special_ids(tokenizer: bytes) -> tuple[int, ...]:
    """Return the ids of the special tokens in a tokenizer.json."""
    added = json.loads(tokenizer).get("added_tokens") or ()
    return tuple(sorted(token["id"] for token in added if token.get("special")))


def _write_masked_lm(masked: MaskedLM, encoder: Encoder, store: WeightStore, graphs: GraphSet) -> MaskedLMHead:
    layers, has_norm = masked.head.layers, not isinstance(encoder.norm, nn.Identity)
    if layers is not None:
        write_row_graph(graphs, "masked_lm", layers)
    if has_norm:
        write_row_graph(graphs, "masked_lm_layers", NormedHead(encoder.norm, layers, encoder.config.hidden_size))
    return MaskedLMHead(
        graph=None if layers is None else "masked_lm",
        layer_graph="masked_lm_layers" if has_norm else None,
        decoder=store.find(masked.head.decoder),
        bias=store.find_optional(masked.head.bias),
        mask_token_id=masked.mask_token_id,
    )


def write_row_graph(graphs: GraphSet, name: str, head: RowHead | NormedHead) -> None:
    """Write a graph from `rows` (N, D) to its output (N, K), with its weights, and compare it with torch."""
    path = graphs.path(name)
    rows = torch.randn(max(TESTED_ROWS), head.in_features, generator=torch.Generator().manual_seed(0))
    if isinstance(head, ImportedHead):
        onnx_ir.save(head.model, path)
    else:
        write_graph(head, path, None, GraphSignature({"rows": rows[:2]}, {"rows": {0: "N"}}, (OUTPUTS[name],)))
    session = open_session(path)
    with torch.inference_mode():
        expected = [head(rows[:count]).numpy() for count in TESTED_ROWS]
    computed = [session.run(None, {"rows": rows[:count].numpy()})[0] for count in TESTED_ROWS]
    graphs.add(name, compare(zip(expected, computed, strict=True), TOLERANCE))
