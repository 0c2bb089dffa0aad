"""The parts of a manifest that describe weights: heads, the embedding table and the layers."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.artifact.manifest import (
    KINDS,
    Architecture,
    DenseRecord,
    EmbeddingHead,
    Kind,
    LayerRecord,
    LayersRecord,
    TensorRecord,
    TensorType,
)
from model.encoder import Block, Encoder, EncoderConfig
from model.export.layers import LayerAttention
from model.source.sentence_transformers import EmbeddingConfig

DENSE_WEIGHTS = "dense.bin"
OTHER_WEIGHTS = "other.bin"
TYPES: dict[TensorType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def describe_architecture(family: str, config: EncoderConfig) -> Architecture:
    """Return the family and the sizes of an encoder."""
    return Architecture(
        family=family,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        type_vocab_size=config.type_vocab_size,
        attention="causal" if config.causal else "bidirectional",
    )


def attention_kinds(config: EncoderConfig) -> tuple[Kind, ...]:
    """Return the kinds of map that a model has.

    Scores of tokens that do not attend to each other, because of causality or windows, are the lowest float32, which
    says nothing.
    """
    masked = config.causal or any(layer.window is not None for layer in config.layers)
    return tuple(kind for kind in KINDS if not (masked and kind == "scores"))


def describe_layers(encoder: Encoder, graphs: Sequence[str], store: "WeightStore") -> LayersRecord:
    """Return the records of what attention maps need; `graphs` has the name of the graph of each layer."""
    config = encoder.config
    layers = []
    for index, (graph, block) in enumerate(zip(graphs, encoder.blocks, strict=True)):
        assert isinstance(block, Block)
        output, norm = block.attention.output, block.mixed_norm
        layers.append(
            LayerRecord(
                graph=graph,
                weights={name: store.find(tensor) for name, tensor in LayerAttention(encoder, index).weights().items()},
                output=store.find(output.weight.T),
                output_bias=store.find_optional(output.bias),
                norm=store.find(norm.weight),
                norm_bias=store.find_optional(getattr(norm, "bias", None)),
            )
        )
    return LayersRecord(
        norm="rms_norm" if config.norm == "rms_norm" else "layer_norm",
        norm_eps=config.norm_eps,
        residual_in_norm=config.block != "sandwich",
        layers=tuple(layers),
    )


class WeightStore:
    """The tensors in the weights of a graph, found by their digests, and a file for others, such as tiny ones.

    Tensor names cannot be used: the exporter renames linear weights and merges equal tensors.
    """

    def __init__(self, graph: Path) -> None:
        self._other = graph.parent / OTHER_WEIGHTS
        self._locations: dict[bytes, tuple[str, int]] = {}
        for value in onnx_ir.load(graph).graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, onnx_ir.ExternalTensor):
                self._locations[_digest(tensor.numpy())] = str(tensor.location), tensor.offset or 0

    def find(self, tensor: Tensor) -> TensorRecord:
        """Return the record of a tensor, after writing it if it is not yet stored."""
        for name, dtype in TYPES.items():
            stored = tensor.detach().to(dtype).contiguous()
            digest = _digest(stored.view(torch.int16 if dtype.itemsize == 2 else torch.int32).numpy())
            if digest in self._locations:
                file, offset = self._locations[digest]
                return TensorRecord(file=file, offset=offset, shape=tuple(tensor.shape), dtype=name)
        values = tensor.detach().contiguous().numpy().astype("<f4")
        with self._other.open("ab") as other:
            self._locations[_digest(values)] = self._other.name, other.tell()
            other.write(values.tobytes())
        return self.find(tensor)

    def find_optional(self, tensor: Tensor | None) -> TensorRecord | None:
        """Return the record of a tensor, or None for None."""
        return None if tensor is None else self.find(tensor)


def _digest(values: NDArray[Any]) -> bytes:
    return hashlib.sha256(values.tobytes()).digest()


def write_embedding_head(root: Path, embedding: EmbeddingConfig, hidden_size: int) -> EmbeddingHead:
    """Write the dense layers of the head, if it has any, and return its record."""
    dense = _write_dense(root, embedding) if embedding.dense else ()
    return EmbeddingHead(
        pooling=embedding.pooling,
        include_prompt=embedding.include_prompt,
        dense=dense,
        normalize=embedding.normalize,
        dimensions=embedding.truncate_dim or (dense[-1].weight.shape[0] if dense else hidden_size),
        similarity=embedding.similarity,
        truncate_dim=embedding.truncate_dim,
    )


def _write_dense(root: Path, embedding: EmbeddingConfig) -> tuple[DenseRecord, ...]:
    body = bytearray()

    def put(tensor: Tensor) -> TensorRecord:
        record = TensorRecord(file=DENSE_WEIGHTS, offset=len(body), shape=tuple(tensor.shape), dtype="float32")
        body.extend(np.ascontiguousarray(tensor.numpy(), dtype="<f4").tobytes())
        return record

    records = tuple(
        DenseRecord(
            weight=put(dense.weight),
            bias=None if dense.bias is None else put(dense.bias),
            activation=dense.activation,
        )
        for dense in embedding.dense
    )
    (root / DENSE_WEIGHTS).write_bytes(body)
    return records
