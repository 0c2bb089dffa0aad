"""The encoder over a flat row: T tokens of several texts end to end, with the bounds of the texts in place of a mask.

It is the same encoder, its own modules, with two differences: attention is the packed operator of onnxruntime's CUDA
provider, and parts may compute in float16. The operator's mathematics stands here in torch, so that all of it can be
run, and measured, where there is no GPU.

Shapes: T tokens, B segments (`cu_seqlens` has B+1 bounds, the first 0; a segment may be empty), D width.
"""

import copy
from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.artifact import Pooling
from model.encoder import Block, Encoder, SelfAttention
from model.graphs import Signature

PACKED_ATTENTION = "com.microsoft::PackedMultiHeadAttention"
TOKEN_INPUTS = ("input_ids", "position_ids", "token_type_ids")
HIDDEN, POOLED = "last_hidden_state", "sentence_embedding"


class Packing(NamedTuple):
    """Where texts lie in the row; `token_offset` `(B, S)` says by its shape how many and how long at most."""

    token_offset: Tensor
    cu_seqlens: Tensor


def packed_attention(query: Tensor, key: Tensor, value: Tensor, packing: Packing, heads: int) -> Tensor:
    """Scaled dot-product attention of each segment within itself: three `(T, D)` to `(T, D)`.

    Tokens that no segment covers are left unwritten by the GPU's kernel; here they are NaN, so that none may rely on
    them. Sums are float32 whatever the type of what comes in, as in the kernel.
    """
    if torch.compiler.is_exporting():
        inputs = (query, key, value, None, packing.token_offset, packing.cu_seqlens)
        return torch.onnx.ops.symbolic(
            PACKED_ATTENTION, inputs, {"num_heads": heads}, dtype=query.dtype, shape=query.shape, version=1
        )
    tokens, width = query.shape
    mixed = torch.full((tokens, width), torch.nan)
    q, k, v = (part.float().view(tokens, heads, -1).transpose(0, 1) for part in (query, key, value))  # (H, T, D/H)
    for start, end in pairwise(packing.cu_seqlens.tolist()):
        scores = q[:, start:end] @ k[:, start:end].transpose(1, 2) * (width // heads) ** -0.5  # (H, S, S)
        mixed[start:end] = (scores.softmax(dim=-1) @ v[:, start:end]).transpose(0, 1).flatten(1)
    return mixed.to(query.dtype)


class PackedAttention(nn.Module):
    """The linear maps of `SelfAttention` round the packed operator, which has a fast kernel in float16 only."""

    def __init__(self, attention: SelfAttention) -> None:
        super().__init__()
        self.heads = attention.heads
        self.query, self.key, self.value = attention.query, attention.key, attention.value
        self.output = attention.output

    def forward(self, x: Tensor, packing: Packing) -> tuple[Tensor, None]:
        """`(1, T, D)` to `(1, T, D)`; the maps never exist."""
        query, key, value = (part(x).squeeze(0).half() for part in (self.query, self.key, self.value))
        mixed = packed_attention(query, key, value, packing, self.heads)
        return self.output(mixed.unsqueeze(0).to(x.dtype)), None


class FlatEncoder(nn.Module):
    """An encoder's own blocks over a flat row, and the model's pooling of each segment.

    Every part computes in float16 but those named in `kept`; `part_names` lists them all. Max pooling is not in the
    graph: then the only output is `hidden`.
    """

    def __init__(self, encoder: Encoder, pooling: Pooling, kept: Collection[str] = ()) -> None:
        super().__init__()
        own = copy.deepcopy(encoder)
        self.pooling = pooling
        self.embeddings, self.blocks = own.embeddings, own.blocks
        for block in self.blocks:
            assert isinstance(block.attention, SelfAttention)
            block.attention = PackedAttention(block.attention)
        for name, part in zip(part_names(encoder), (self.embeddings, *self.blocks), strict=True):
            part.to(torch.float32 if name in kept else torch.float16)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (HIDDEN,) if self.pooling == "max" else (HIDDEN, POOLED)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, cu_seqlens: Tensor, token_offset: Tensor
    ) -> tuple[Tensor, ...]:
        """Three int32 `(T,)`, int32 `(B+1,)` and `(B, S)` to hidden `(T, D)` and float32 pooled `(B, D)`."""
        packing = Packing(token_offset, cu_seqlens)
        x = self.embeddings(input_ids.unsqueeze(0), position_ids.unsqueeze(0), token_type_ids.unsqueeze(0))  # (1, T, D)
        for block in self.blocks:
            assert isinstance(block, Block)
            x, _ = block(x.to(block.attention_norm.weight.dtype), packing)
        hidden = x.squeeze(0)
        if self.pooling == "max":
            return (hidden,)
        return hidden, pool(hidden, count(input_ids), cu_seqlens, self.pooling)


def count(ids: Tensor) -> Tensor:
    """0, 1, 2, ... for each of `(T,)`.

    By summing ones: a range would need the size of the row as a number, which onnxruntime reckons on the CPU, and a
    graph that waits for the CPU cannot be recorded.
    """
    return torch.cumsum(ids * 0 + 1, 0, dtype=torch.int32) - 1


def pool(hidden: Tensor, places: Tensor, cu_seqlens: Tensor, pooling: Pooling) -> Tensor:
    """The mean or first vector of each segment, `(B, D)` float32; zeros for an empty one. `places` counts the tokens.

    The mean is one matrix product. Each token's share is rounded with the rest, and a factor gives back what that took.
    """
    starts, ends = cu_seqlens[:-1], cu_seqlens[1:]
    lengths = ends - starts
    if pooling == "cls":
        first = hidden.index_select(0, torch.minimum(starts, ends[-1:] - 1)).float()
        return torch.where(lengths.unsqueeze(1) > 0, first, torch.zeros(()))
    inside = (places >= starts.unsqueeze(1)) & (places < ends.unsqueeze(1))  # (B, T)
    counts = lengths.clamp(min=1).float()
    share = (1 / counts).to(hidden.dtype)
    mean = (inside.to(hidden.dtype) * share.unsqueeze(1)) @ hidden
    return mean.float() * (1 / (share.float() * counts)).unsqueeze(1)


def part_names(encoder: Encoder) -> tuple[str, ...]:
    """The parts whose precision may differ: what gives layer 0, then what gives each layer above it."""
    return "embeddings", *(f"block {number}" for number in range(1, len(encoder.blocks) + 1))


def flat_signature(module: FlatEncoder) -> Signature:
    """For export; T, B and S are free."""
    examples = {
        name: torch.zeros(16, dtype=torch.int32) for name in TOKEN_INPUTS
    }  # each its own: the exporter would take one for all three
    examples["cu_seqlens"] = torch.tensor([0, 5, 16, 16], dtype=torch.int32)
    examples["token_offset"] = torch.zeros(3, 11, dtype=torch.int32)
    free = {name: {0: "T"} for name in TOKEN_INPUTS}
    free |= {"cu_seqlens": {0: "bounds"}, "token_offset": {0: "B", 1: "S"}}
    return Signature(examples, free, module.outputs)
