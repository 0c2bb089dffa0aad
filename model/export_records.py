"""The parts of a manifest that describe weights: heads, the embedding table and the blocks."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.encoder import Block, Encoder, EncoderConfig
from model.manifest import (
    KINDS,
    Architecture,
    BlockRecord,
    BlocksRecord,
    DenseRecord,
    EmbeddingHead,
    Kind,
    TensorRecord,
    TensorType,
)
from model.sentence_transformers_config import EmbeddingConfig

DENSE_WEIGHTS = "dense.bin"
TYPES: dict[TensorType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

FindTensor = Callable[[Tensor], TensorRecord]


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
    """Return the kinds of map whose formulas apply: all families of checkpoint.py have the post-LN blocks they assume.

    Scores of a causal model are -inf for later tokens, which maps cannot contain.
    """
    return tuple(kind for kind in KINDS if not (config.causal and kind == "scores"))


def describe_blocks(encoder: Encoder, find: FindTensor) -> BlocksRecord:
    """Return the records of the block weights that attention maps need."""
    blocks = tuple(_describe_block(block, find) for block in encoder.blocks)
    return BlocksRecord(layer_norm_eps=encoder.config.layer_norm_eps, weights=blocks)


def _describe_block(block: nn.Module, find: FindTensor) -> BlockRecord:
    assert isinstance(block, Block)
    attention = block.attention
    linear = {"query": attention.query, "key": attention.key, "value": attention.value, "output": attention.output}
    return BlockRecord(
        **{name: find(part.weight.T) for name, part in linear.items()},
        **{f"{name}_bias": find(part.bias) for name, part in linear.items()},
        norm=find(block.attention_norm.weight),
        norm_bias=find(block.attention_norm.bias),
    )


def tensor_finder(graph: Path) -> FindTensor:
    """Return a function that finds a tensor in the weights of a graph by its digest.

    Tensor names cannot be used: the exporter renames linear weights and merges equal tensors.
    """
    locations: dict[bytes, tuple[str, int]] = {}
    for value in onnx_ir.load(graph).graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, onnx_ir.ExternalTensor):
            locations[_digest(tensor.numpy())] = str(tensor.location), tensor.offset or 0

    def find(tensor: Tensor) -> TensorRecord:
        for name, dtype in TYPES.items():
            stored = tensor.detach().to(dtype).contiguous()
            digest = _digest(stored.view(torch.int16 if dtype.itemsize == 2 else torch.int32).numpy())
            if digest in locations:
                file, offset = locations[digest]
                return TensorRecord(file=file, offset=offset, shape=tuple(tensor.shape), dtype=name)
        raise KeyError("tensor not found in the weights of the graph")

    return find


def _digest(values: NDArray[Any]) -> bytes:
    return hashlib.sha256(values.tobytes()).digest()


def write_head(root: Path, embedding: EmbeddingConfig, hidden_size: int) -> EmbeddingHead:
    """Write the dense layers of the head, if it has any, and return its record."""
    dense = _write_dense(root, embedding) if embedding.dense else ()
    return EmbeddingHead(
        pooling=embedding.pooling,
        include_prompt=embedding.include_prompt,
        dense=dense,
        normalize=embedding.normalize,
        dimensions=dense[-1].weight.shape[0] if dense else hidden_size,
        similarity=embedding.similarity,
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
