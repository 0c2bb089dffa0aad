"""The variable-length (varlen) encoder for CUDA: T tokens of B sequences end to end, without padding or a mask.

It reuses the modules of `Encoder` with two differences: attention is the PackedMultiHeadAttention operator of
onnxruntime's CUDA execution provider, and parts may compute in float16. A torch implementation of the operator allows
running and measuring the encoder without a GPU.

Shapes: T tokens, B sequences (`cu_seqlens` has B+1 elements, the first 0; a sequence may be empty), S the longest
sequence, D hidden size, H attention heads.
"""

import copy
from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.encoder import Block, Encoder, EncoderConfig, SelfAttention
from model.manifest import Pooling
from model.onnx_graph import GraphSignature

PACKED_ATTENTION = "com.microsoft::PackedMultiHeadAttention"
TOKEN_INPUTS = ("input_ids", "position_ids", "token_type_ids")
LAST_HIDDEN_STATE, SENTENCE_EMBEDDING = "last_hidden_state", "sentence_embedding"


class SequenceBounds(NamedTuple):
    """The bounds of the sequences. The operator reads only the shape (B, S) of `token_offset`."""

    token_offset: Tensor
    cu_seqlens: Tensor


def packed_attention(query: Tensor, key: Tensor, value: Tensor, bounds: SequenceBounds, num_heads: int) -> Tensor:
    """Return the scaled dot-product attention (T, D) of each sequence; inputs are (T, D).

    Outputs of tokens past the last sequence are NaN: the CUDA kernel leaves them uninitialized, so nothing may depend
    on them. Sums are float32 for any input dtype, as in the kernel.
    """
    if torch.compiler.is_exporting():
        inputs = (query, key, value, None, bounds.token_offset, bounds.cu_seqlens)
        return torch.onnx.ops.symbolic(
            PACKED_ATTENTION, inputs, {"num_heads": num_heads}, dtype=query.dtype, shape=query.shape, version=1
        )
    tokens, hidden_size = query.shape
    context = torch.full((tokens, hidden_size), torch.nan)
    q, k, v = (part.float().view(tokens, num_heads, -1).transpose(0, 1) for part in (query, key, value))  # (H, T, D/H)
    for start, end in pairwise(bounds.cu_seqlens.tolist()):
        scores = q[:, start:end] @ k[:, start:end].transpose(1, 2) * (hidden_size // num_heads) ** -0.5  # (H, S, S)
        context[start:end] = (scores.softmax(dim=-1) @ v[:, start:end]).transpose(0, 1).flatten(1)
    return context.to(query.dtype)


def unsupported_part(config: EncoderConfig) -> str | None:
    """Return the first part of an encoder that the varlen encoder lacks; None if it has all.

    The operator has no causal mode and no windows. Rotary positions would fit in front of it, but have not been run on
    a GPU.
    """
    unsupported = {
        "causal attention": config.causal,
        "rotary positions": any(layer.rotary is not None for layer in config.layers),
        "windows": any(layer.window is not None for layer in config.layers),
        "relative position biases": config.relative_bias,
        "pre-norm blocks": config.block != "post",
        "grouped queries": config.num_key_value_heads != config.num_attention_heads,
        "norms of queries and keys": config.query_key_norm,
    }
    return next((part for part, present in unsupported.items() if present), None)


class PackedAttention(nn.Module):
    """`SelfAttention` with the packed operator, whose fast kernel supports float16 only."""

    def __init__(self, attention: SelfAttention) -> None:
        super().__init__()
        self.num_heads = attention.num_heads
        self.query, self.key, self.value = attention.query, attention.key, attention.value
        self.output = attention.output

    def forward(self, x: Tensor, bounds: SequenceBounds) -> tuple[Tensor, None]:
        """Return the output (1, T, D); the operator does not expose attention probabilities."""
        query, key, value = (part(x).squeeze(0).half() for part in (self.query, self.key, self.value))
        context = packed_attention(query, key, value, bounds, self.num_heads)
        return self.output(context.unsqueeze(0).to(x.dtype)), None


class VarlenEncoder(nn.Module):
    """A copy of an encoder that takes varlen inputs, followed by pooling of each sequence.

    Parts compute in float16, except those in `float32_parts`; `part_names` lists all parts. Max pooling is not part of
    the graph, whose only output is then the last hidden state. Raises ValueError for an encoder with other parts than
    BERT's, see `unsupported_part`.
    """

    def __init__(self, encoder: Encoder, pooling: Pooling, float32_parts: Collection[str] = ()) -> None:
        super().__init__()
        if part := unsupported_part(encoder.config):
            raise ValueError(f"encoder: {part} is not supported")
        clone = copy.deepcopy(encoder)
        self.pooling = pooling
        self.embeddings, self.blocks = clone.embeddings, clone.blocks
        for block in self.blocks:
            assert isinstance(block.attention, SelfAttention)
            block.attention = PackedAttention(block.attention)
        for name, part in zip(part_names(encoder), (self.embeddings, *self.blocks), strict=True):
            part.to(torch.float32 if name in float32_parts else torch.float16)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return (LAST_HIDDEN_STATE,) if self.pooling == "max" else (LAST_HIDDEN_STATE, SENTENCE_EMBEDDING)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, cu_seqlens: Tensor, token_offset: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the last hidden state (T, D) and the float32 sentence embeddings (B, D).

        Args:
            input_ids: int32 (T,), as are `position_ids` and `token_type_ids`.
            position_ids: restart at 0 in each sequence.
            token_type_ids: segment numbers of pairs.
            cu_seqlens: int32 (B+1,), cumulative sequence lengths.
            token_offset: int32 (B, S), only its shape is used.
        """
        bounds = SequenceBounds(token_offset, cu_seqlens)
        x = self.embeddings(input_ids.unsqueeze(0), position_ids.unsqueeze(0), token_type_ids.unsqueeze(0))  # (1, T, D)
        for block in self.blocks:
            assert isinstance(block, Block)
            x, _ = block(x.to(block.attention_norm.weight.dtype), bounds)
        hidden = x.squeeze(0)
        if self.pooling == "max":
            return (hidden,)
        return hidden, pool(hidden, token_indices(input_ids), cu_seqlens, self.pooling)


def token_indices(input_ids: Tensor) -> Tensor:
    """Return 0, 1, ..., T-1, (T,), as a cumulative sum of ones.

    A range would need T as a number, which onnxruntime computes on the CPU, and a graph that synchronizes with the CPU
    cannot be captured as a CUDA graph.
    """
    return torch.cumsum(input_ids * 0 + 1, 0, dtype=torch.int32) - 1


def pool(hidden: Tensor, indices: Tensor, cu_seqlens: Tensor, pooling: Pooling) -> Tensor:
    """Return the mean, first or last vector of each sequence, float32 (B, D); zeros for an empty sequence.

    `indices` is the result of `token_indices`. The mean is one matrix product in the dtype of `hidden`. A factor in
    float32 then corrects the rounding error of the weights 1/length.
    """
    starts, ends = cu_seqlens[:-1], cu_seqlens[1:]
    lengths = ends - starts
    if pooling in ("cls", "last"):
        index = torch.minimum(starts, ends[-1:] - 1) if pooling == "cls" else (ends - 1).clamp(min=0)
        return torch.where(lengths.unsqueeze(1) > 0, hidden.index_select(0, index).float(), torch.zeros(()))
    inside = (indices >= starts.unsqueeze(1)) & (indices < ends.unsqueeze(1))  # (B, T)
    counts = lengths.clamp(min=1).float()
    weight = (1 / counts).to(hidden.dtype)
    mean = (inside.to(hidden.dtype) * weight.unsqueeze(1)) @ hidden
    return mean.float() * (1 / (weight.float() * counts)).unsqueeze(1)


def part_names(encoder: Encoder) -> tuple[str, ...]:
    """Return the names of the parts that can differ in precision: the embeddings, then each block."""
    return "embeddings", *(f"block {number}" for number in range(1, len(encoder.blocks) + 1))


def varlen_signature(module: VarlenEncoder) -> GraphSignature:
    """Return the signature for export, with dynamic T, B and S."""
    # Separate tensors: the exporter would merge inputs that share one tensor into a single input.
    examples = {name: torch.zeros(16, dtype=torch.int32) for name in TOKEN_INPUTS}
    examples["cu_seqlens"] = torch.tensor([0, 5, 16, 16], dtype=torch.int32)
    examples["token_offset"] = torch.zeros(3, 11, dtype=torch.int32)
    dynamic_axes = {name: {0: "T"} for name in TOKEN_INPUTS}
    dynamic_axes |= {"cu_seqlens": {0: "bounds"}, "token_offset": {0: "B", 1: "S"}}
    return GraphSignature(examples, dynamic_axes, module.outputs)
