"""The varlen graph for CUDA: B sequences packed into T tokens, in float16 where accuracy allows."""

import copy
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, compress, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from model.artifact.console import EX_SOFTWARE, ReportedError
from model.artifact.manifest import AccuracyRecord, CombinedPooling, Pooling
from model.artifact.names import CUDA, CUDA_SHORT, CUDA_SPARSE, PADDED_ROWS
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.checkpoint import Checkpoint
from model.encoder import (
    Block,
    DistanceEmbeddings,
    Encoder,
    EncoderConfig,
    LayerConfig,
    SelfAttention,
    attention_options,
    rotate,
)
from model.export.graphs import GraphSet, GraphSignature, write_graph
from model.export.parity import (
    Inputs,
    compare,
    compare_outputs,
    make_sequence,
    open_reference_session,
    pack_sequences,
    pack_varlen,
    pool,
    run_varlen_graph,
)
from model.heads.row_head import RowHead
from model.heads.vocabulary import Sparse

PACKED_ATTENTION = "com.microsoft::PackedMultiHeadAttention"
BLOCK_ATTENTION = "com.microsoft::MultiHeadAttention"
ROTARY = "com.microsoft::RotaryEmbedding"
BLOCK_TOKENS = 64
"""Number of queries per block in layers with windows."""
MAX_BLOCK_REACH = 512
"""Layers with longer windows use a bias over all pairs: the keys of a block would take more memory than the sequence.
"""
ALIGNED = 8
"""Heads are padded to a multiple of this size. For other sizes, ONNX Runtime offers only a kernel that writes all
scores.
"""
UNLIMITED = 2**30
LOWEST = torch.finfo(torch.float16).min
"""The bias of masked keys. Finite, because a row of -inf would become NaN."""
TOKEN_INPUTS = ("input_ids", "position_ids", "token_type_ids")
IN_GRAPH: tuple[Pooling, ...] = ("mean", "cls", "last")
LAST_HIDDEN_STATE, SENTENCE_EMBEDDING = "last_hidden_state", "sentence_embedding"


class SequenceBounds(NamedTuple):
    """Sequence boundaries. Only the shape (B, S) of `token_offset` is used."""

    token_offset: Tensor
    cu_seqlens: Tensor


@dataclass(frozen=True)
class Reach:
    """The maximum distance, in tokens, from a query to the keys before and after it. None sets no limit."""

    behind: int | None = None
    ahead: int | None = None

    @classmethod
    def of(cls, config: EncoderConfig, layer: LayerConfig, longest: int | None = None) -> "Reach":
        """Return the reach of a layer. If sequences have at most `longest` tokens, a window may cover all of them."""
        window = layer.window
        if window is not None and longest is not None and window >= longest - 1:
            window = None
        return cls(window, 0 if config.causal else window)

    @property
    def in_blocks(self) -> bool:
        """True if the exported graph computes the layer's attention in blocks of queries."""
        return self.behind is not None and self.behind <= MAX_BLOCK_REACH

    def covers(self, offsets: Tensor) -> Tensor:
        """Return, for each key-minus-query offset, whether the query attends to the key."""
        if self.behind is None:
            return offsets <= (UNLIMITED if self.ahead is None else self.ahead)
        covered = offsets >= -self.behind
        return covered if self.ahead is None else covered & (offsets <= self.ahead)


class DistanceIndices(NamedTuple):
    """The int32 indices that `DistanceTerms` uses to gather the scores of B sequences, padded to S tokens.

    Attributes:
        tokens: (B, S), the token at each position; past the end of a sequence, its last token.
        by_query: (H, B, S, S), the row of the distance embeddings for each query and key.
        by_key: The same, (H, S, B, S).
    """

    tokens: Tensor
    by_query: Tensor
    by_key: Tensor


class VarlenInputs(NamedTuple):
    """The inputs of a layer's attention other than hidden states. Layers with the same options share them.

    Attributes:
        bounds: The bounds of the sequences.
        indices: int32 (T,): 0, 1, ..., T-1.
        reach: The keys that a query attends to.
        rotation: Cosines and sines of each token's rotary position embedding, (T, d/2) each.
        bias: Added to the scores: (1 or B, 1 or H, S, S) for the positions of a sequence, or, in layers with blocks,
            (T/64, 1, 64, K) for the keys of each query block. Blocks occur only in exported graphs.
        unattended: bool (T,), True for tokens that no token attends to; None for a model without such tokens.
        distances: For disentangled attention; each layer computes a bias from them.
    """

    bounds: SequenceBounds
    indices: Tensor
    reach: Reach
    rotation: tuple[Tensor, Tensor] | None
    bias: Tensor | None
    unattended: Tensor | None = None
    distances: DistanceIndices | None = None


def packed_attention(parts: Sequence[Tensor], bias: Tensor | None, inputs: VarlenInputs, scale: float) -> Tensor:
    """Return the scaled dot-product attention (T, H d) of each sequence.

    Outputs past the last sequence are NaN: the CUDA kernel leaves them uninitialized, so nothing may depend on them.
    Sums are in float32 for any input dtype, as in the kernel.

    Args:
        parts: queries, keys and values, (T, H, d) each, or one tensor of them, (T, H, 3, d).
        bias: added to queries, keys and values, (3, H, d), if they are one tensor.
        inputs: the inputs of the layer.
        scale: the factor of the scores.
    """
    if torch.compiler.is_exporting():
        return _symbolic_attention(parts, bias, inputs, scale)
    dtype = parts[0].dtype
    if len(parts) == 1:
        joined = parts[0].float()
        if bias is not None:
            joined = (joined + bias.float().transpose(0, 1)).to(dtype).float()
        parts = [joined[:, :, number] for number in range(3)]
    query, key, value = (part.float().transpose(0, 1) for part in parts)  # (H, T, d)
    context = torch.full(parts[0].shape, torch.nan)
    for number, (start, end) in enumerate(pairwise(inputs.bounds.cu_seqlens.tolist())):
        scores = query[:, start:end] @ key[:, start:end].transpose(1, 2) * scale  # (H, S, S)
        if inputs.bias is not None:
            of_sequence = inputs.bias[number if len(inputs.bias) > 1 else 0]
            scores = scores + of_sequence[:, : end - start, : end - start].float()
        masked = ~inputs.reach.covers(inputs.indices[start:end] - inputs.indices[start:end, None])
        if inputs.unattended is not None:
            masked = masked | inputs.unattended[start:end]
        scores = scores.masked_fill(masked, LOWEST)
        context[start:end] = (scores.softmax(dim=-1) @ value[:, start:end]).transpose(0, 1)
    return context.flatten(1).to(dtype)


def _symbolic_attention(parts: Sequence[Tensor], bias: Tensor | None, inputs: VarlenInputs, scale: float) -> Tensor:
    heads, size = parts[0].shape[1], parts[0].shape[-1]
    if inputs.unattended is not None and not inputs.reach.in_blocks:
        parts = hide_keys(parts, inputs.unattended)
    padding = -parts[0].shape[-1] % ALIGNED
    width = parts[0].shape[-1] + padding
    if padding:
        parts = [F.pad(part, (0, padding)) for part in parts]
        bias = None if bias is None else F.pad(bias, (0, padding))
    attributes: dict[str, Any] = {"num_heads": heads, "scale": scale}
    if inputs.reach.in_blocks:
        query, key, value = (part.flatten(1) for part in parts)
        context = _attend_in_blocks(query, key, value, inputs, attributes)
    else:
        values = (*parts, None, None) if len(parts) == 1 else [part.flatten(1) for part in parts]
        operands = [*values, None if bias is None else bias.flatten(), *inputs.bounds]
        if inputs.bias is not None:
            operands.append(inputs.bias)
        context = torch.onnx.ops.symbolic(
            PACKED_ATTENTION, operands, attributes,
            dtype=parts[0].dtype, shape=(parts[0].shape[0], heads * width), version=1,
        )  # fmt: skip
    return context if width == size else context.view(-1, heads, width)[..., :size].flatten(1)


def hide_keys(parts: Sequence[Tensor], unattended: Tensor) -> list[Tensor]:
    """Add a channel to queries, keys and values, (T, H, d+1), that masks the `unattended` keys.

    The kernels do not support key masks. The added channel is 1 in all queries. In keys it is 0, or the lowest float16
    for unattended tokens, so that they get no weight.
    """
    query, key, value = parts
    last = torch.where(unattended, LOWEST, 0.0).to(key.dtype).view(-1, 1, 1)
    keys = torch.cat((key, key[..., :1] * 0 + last), dim=2)  # an Expand would need the shape on the CPU
    return [F.pad(query, (0, 1), value=1.0), keys, F.pad(value, (0, 1))]


def _attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, inputs: VarlenInputs, attributes: dict[str, Any]
) -> Tensor:
    assert inputs.bias is not None
    assert inputs.reach.behind is not None
    blocks = query.view(-1, BLOCK_TOKENS, query.shape[1])
    keys, values = (key_blocks(part, inputs.reach.behind, 0) for part in (key, value))
    context = torch.onnx.ops.symbolic(
        BLOCK_ATTENTION, (blocks, keys, values, None, None, inputs.bias), attributes,
        dtype=query.dtype, shape=blocks.shape, version=1,
    )  # fmt: skip
    return context.view(-1, query.shape[1])


def key_blocks(values: Tensor, reach: int, padding: float) -> Tensor:
    """Return the rows of `values` (T, D) that each block of 64 queries can attend to, (T/64, K, D).

    These are the rows of the block and of neighboring blocks within `reach` on both sides. Rows beyond the ends are
    filled with `padding`. T must be a multiple of 64, because a number computed from T would be on the CPU; see
    `token_indices`.
    """
    sides = -(-reach // BLOCK_TOKENS)
    blocks = values.view(-1, BLOCK_TOKENS, values.shape[1])
    edge = torch.full((sides, BLOCK_TOKENS, values.shape[1]), padding, dtype=values.dtype)
    padded = torch.cat((edge, blocks, edge))
    return torch.cat([padded[first : first - 2 * sides or None] for first in range(2 * sides + 1)], dim=1)


def window_bias(
    indices: Tensor, position_ids: Tensor, unattended: Tensor | None, reach: Reach, dtype: torch.dtype
) -> Tensor:
    """Return the bias of a layer in blocks; see `VarlenInputs`. Tokens of one sequence have the same start."""
    assert reach.behind is not None
    starts = (indices - position_ids).unsqueeze(1)  # (T, 1)
    keys = key_blocks(starts, reach.behind, -1).transpose(1, 2)  # (T/64, 1, K)
    same = starts.view(-1, BLOCK_TOKENS, 1) == keys
    if unattended is not None:
        flags = key_blocks(unattended.to(torch.int32).unsqueeze(1), reach.behind, 1).transpose(1, 2)
        same = same & (flags == 0)
    places = torch.arange(keys.shape[2]) - (keys.shape[2] - BLOCK_TOKENS) // 2
    allowed = same & reach.covers(places - torch.arange(BLOCK_TOKENS).unsqueeze(1))
    return _bias(allowed, dtype).unsqueeze(1)


def _bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(allowed, torch.zeros((), dtype=dtype), torch.full((), LOWEST, dtype=dtype))


def rotate_packed(x: Tensor, rotation: tuple[Tensor, Tensor], indices: Tensor) -> Tensor:
    """Rotate the pairs of channels of queries or keys (T, H, d)."""
    if torch.compiler.is_exporting():
        flat = x.flatten(1).unsqueeze(0)
        inputs = (flat, indices.long().unsqueeze(0), *rotation)
        rotated = torch.onnx.ops.symbolic(ROTARY, inputs, {}, dtype=x.dtype, shape=flat.shape, version=1)
        return rotated.view(-1, *x.shape[1:])
    return rotate(x.transpose(0, 1), *rotation).transpose(0, 1)


class DistanceTerms(nn.Module):
    """The scores added by disentangled attention, both terms scaled; see `SelfAttention.distance_scores`."""

    def __init__(self, attention: SelfAttention, distances: DistanceEmbeddings) -> None:
        super().__init__()
        with torch.no_grad():
            keys, queries = attention.project_distances(distances.embeddings())
            self.keys = None if keys is None else nn.Parameter(keys[0].transpose(1, 2) * attention.scale)  # (H, d, W)
            self.queries = None if queries is None else nn.Parameter(queries[0] * attention.scale)  # (H, W, d)

    def forward(self, query: Tensor, key: Tensor, indices: DistanceIndices) -> Tensor | None:
        """Return the sum of the terms, (B, H, S, S), for queries and keys (T, H, d); None if there are no terms."""
        terms = []
        if self.keys is not None:
            rows = _gather(query.transpose(0, 1) @ self.keys.to(query.dtype), indices.tokens, 1)  # (H, B, S, W)
            terms.append(_gather_elements(rows, indices.by_query, 3).transpose(0, 1))
        if self.queries is not None:
            rows = _gather(self.queries.to(key.dtype) @ key.permute(1, 2, 0), indices.tokens, 2)  # (H, W, B, S)
            terms.append(_gather_elements(rows, indices.by_key, 1).permute(2, 0, 1, 3))
        return sum(terms[1:], terms[0]) if terms else None


def distance_indices(distances: DistanceEmbeddings, heads: int, bounds: SequenceBounds) -> DistanceIndices:
    """Return the indices that all layers share."""
    places = token_indices(bounds.token_offset[0])  # (S,)
    starts, last = bounds.cu_seqlens[:-1], bounds.cu_seqlens[1:] - 1
    tokens = _at_least_0(torch.minimum(starts.unsqueeze(1) + places, last.unsqueeze(1)))
    first = distances.positions - 1
    farthest = torch.full((), first, dtype=torch.int32)  # padded rows can be longer than the model's maximum length
    offsets = _at_least_0(torch.minimum(places.unsqueeze(1) - places, farthest) + first)
    rows = _gather(distances.rows().int(), offsets, 0)
    # Sums instead of Expand operators, which would need the shape on the CPU.
    by_query = torch.zeros(heads, 1, 1, 1, dtype=torch.int32) + (tokens * 0).unsqueeze(2) + rows
    by_key = torch.zeros(heads, 1, 1, 1, dtype=torch.int32) + (tokens * 0).unsqueeze(0) + rows.unsqueeze(1)
    return DistanceIndices(tokens, by_query, by_key)


def _at_least_0(values: Tensor) -> Tensor:
    """Return max(value, 0) elementwise. The exporter would fuse a maximum into a `Clip` on the CPU."""
    return torch.where(values < 0, torch.zeros((), dtype=values.dtype), values)


def _gather(values: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Gather slices of `values` along an axis. The axes of `indices` replace that axis."""
    shape = (*values.shape[:axis], *indices.shape, *values.shape[axis + 1 :])
    if torch.compiler.is_exporting():
        gathered: Tensor = torch.onnx.ops.symbolic(
            "Gather", (values, indices), {"axis": axis}, dtype=values.dtype, shape=shape
        )
        return gathered
    return values.index_select(axis, indices.flatten()).view(shape)


def _gather_elements(values: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Compute torch's `gather` with int32 indices, which the exporter would otherwise convert to int64."""
    if torch.compiler.is_exporting():
        gathered: Tensor = torch.onnx.ops.symbolic(
            "GatherElements", (values, indices), {"axis": axis}, dtype=values.dtype, shape=indices.shape
        )
        return gathered
    return values.gather(axis, indices.long())


class PackedAttention(nn.Module):
    """`SelfAttention` with packed operators in `dtype`. Their fast kernels support only float16.

    If `joined`, a single product computes queries, keys and values, and the operator adds their biases. This requires
    that queries and keys do not change between projection and attention.
    """

    def __init__(
        self, attention: SelfAttention, dtype: torch.dtype, distances: DistanceEmbeddings | None = None, *, joined: bool
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.num_heads, self.head_size, self.scale = attention.num_heads, attention.head_size, attention.scale
        self.output = attention.output
        self.distance_terms = None if distances is None else DistanceTerms(attention, distances)
        parts = attention.query, *(_repeat_heads(part, attention) for part in (attention.key, attention.value))
        norms: tuple[nn.Module, ...] = (attention.query_norm, attention.key_norm, nn.Identity())
        projections: list[nn.Module] = [_join(parts, self.num_heads)] if joined else [*parts]
        if attention.joint_norm:  # before the heads are separated
            projections = [nn.Sequential(part, norm) for part, norm in zip(parts, norms, strict=True)]
            norms = tuple(nn.Identity() for _ in norms)
        self.projections, self.norms = nn.ModuleList(projections), nn.ModuleList(norms)
        biases: list[Tensor] = [part.bias for part in parts if joined and part.bias is not None]
        self.bias = nn.Parameter(torch.stack(biases).view(3, self.num_heads, -1)) if biases else None

    def forward(self, x: Tensor, inputs: VarlenInputs) -> Tensor:
        """Return the output (1, T, D)."""
        if len(self.projections) == 1:
            parts = [self.projections[0](x).view(-1, self.num_heads, 3, self.head_size).to(self.dtype)]
        else:
            heads = (projection(x).view(-1, self.num_heads, self.head_size) for projection in self.projections)
            parts = [norm(part).to(self.dtype) for norm, part in zip(self.norms, heads, strict=True)]
            if inputs.rotation is not None:
                parts[:2] = [rotate_packed(part, inputs.rotation, inputs.indices) for part in parts[:2]]
            if self.distance_terms is not None and inputs.distances is not None:
                terms = self.distance_terms(parts[0], parts[1], inputs.distances)
                both = [part for part in (inputs.bias, terms) if part is not None]
                inputs = inputs._replace(bias=sum(both[1:], both[0]) if both else None)
        bias = None if self.bias is None else self.bias.to(self.dtype)
        context = packed_attention(parts, bias, inputs, self.scale)
        output: Tensor = self.output(context.unsqueeze(0).to(x.dtype))
        return output


def _join(parts: Sequence[nn.Linear], heads: int) -> nn.Linear:
    """Return the linear map that computes queries, keys and values, interleaved per head, (H, 3, d)."""
    joined = nn.Linear(parts[0].in_features, 3 * parts[0].out_features, bias=False)
    with torch.no_grad():
        weights = torch.stack([part.weight.view(heads, -1, part.in_features) for part in parts], dim=1)
        joined.weight.copy_(weights.view(joined.weight.shape))
    return joined


def _repeat_heads(linear: nn.Linear, attention: SelfAttention) -> nn.Linear:
    """Return a linear map that computes the key or value of each group once per query head."""
    heads, groups = attention.num_heads, attention.num_key_value_heads
    if heads == groups:
        return linear
    repeated = nn.Linear(linear.in_features, linear.out_features * heads // groups, linear.bias is not None)
    with torch.no_grad():
        for source, target in ((linear.weight, repeated.weight), (linear.bias, repeated.bias)):
            if source is not None:
                rows = source.view(groups, -1, *source.shape[1:])
                target.copy_(rows.repeat_interleave(heads // groups, dim=0).flatten(0, 1))
    return repeated


class VarlenEncoder(nn.Module):
    """A copy of an encoder that takes varlen inputs, followed by pooling of each sequence.

    Parts compute in float16, except those in `float32_parts`; `part_names` lists all parts. Attention computes in
    `attention_dtype`: float32 is for tests. With a pooling that is not `IN_GRAPH`, the only output is the last hidden
    state. Set `has_unattended` for models with tokens that no token attends to.

    If `longest` is set, sequences have at most this many tokens, and windows that cover them are left out.
    """

    longest: int | None = None

    def __init__(
        self,
        encoder: Encoder,
        pooling: CombinedPooling,
        float32_parts: Collection[str] = (),
        attention_dtype: torch.dtype = torch.float16,
        *,
        has_unattended: bool = False,
    ) -> None:
        super().__init__()
        self.attention_dtype = attention_dtype
        self.has_unattended = has_unattended
        clone = copy.deepcopy(encoder)
        self.config = encoder.config
        self.pooling = pooling
        self.embeddings, self.positions, self.blocks, self.norm = (
            clone.embeddings, clone.positions, clone.blocks, clone.norm
        )  # fmt: skip
        for block, layer in zip(self.blocks, encoder.config.layers, strict=True):
            assert isinstance(block.attention, SelfAttention)
            distances = self.positions.distances
            has_norm = encoder.config.query_key_norm or encoder.config.joint_query_key_norm
            changed = layer.rotary is not None or has_norm or has_unattended
            joined = not (changed or distances is not None or Reach.of(encoder.config, layer).in_blocks)
            block.attention = PackedAttention(block.attention, attention_dtype, distances, joined=joined)
        parts = (self.embeddings, *self.blocks)
        for name, part in zip(part_names(encoder), parts, strict=True):
            part.to(torch.float32 if name in float32_parts else torch.float16)
        self.norm.to(_dtype(self.blocks[-1]))

    @property
    def outputs(self) -> tuple[str, ...]:
        return (LAST_HIDDEN_STATE, SENTENCE_EMBEDDING) if self.pooling in IN_GRAPH else (LAST_HIDDEN_STATE,)

    @property
    def multiple(self) -> int:
        """The number that T, the number of tokens, must be a multiple of."""
        return BLOCK_TOKENS if any(self._reach(layer).in_blocks for layer in self.config.layers) else 1

    def _reach(self, layer: LayerConfig) -> Reach:
        return Reach.of(self.config, layer, self.longest)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, cu_seqlens: Tensor, token_offset: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the last hidden state (T, D) and the float32 sentence embeddings (B, D).

        Args:
            input_ids: int32 (T,), as are `position_ids` and `token_type_ids`.
            position_ids: restart at 0 in each sequence.
            token_type_ids: segment numbers of pairs, or -1 minus that number for a token that no token attends to.
            cu_seqlens: int32 (B+1,), cumulative sequence lengths.
            token_offset: int32 (B, S), only its shape is used.
        """
        bounds, indices = SequenceBounds(token_offset, cu_seqlens), token_indices(input_ids)
        unattended = None
        if self.has_unattended:
            unattended = token_type_ids < 0
            token_type_ids = torch.where(unattended, -1 - token_type_ids, token_type_ids)
        inputs = {
            layer: self._attention_inputs(layer, bounds, indices, position_ids, unattended)
            for layer in dict.fromkeys(map(attention_options, self.config.layers))
        }
        x = self.embeddings(input_ids.unsqueeze(0), position_ids.unsqueeze(0), token_type_ids.unsqueeze(0))  # (1, T, D)
        for block, layer in zip(self.blocks, self.config.layers, strict=True):
            assert isinstance(block, Block)
            x = block(x.to(_dtype(block)), inputs[attention_options(layer)])
        hidden = self.norm(x).squeeze(0)
        if self.pooling not in IN_GRAPH:
            return (hidden,)
        return hidden, pool_varlen(hidden, indices, cu_seqlens, self.pooling)

    def _attention_inputs(
        self,
        layer: LayerConfig,
        bounds: SequenceBounds,
        indices: Tensor,
        position_ids: Tensor,
        unattended: Tensor | None,
    ) -> VarlenInputs:
        rotation = bias = None
        if (rotary := self.positions.find_rotary(layer)) is not None:
            is_dynamic = layer.rotary is not None and layer.rotary.dynamic is not None
            lengths = sequence_lengths(indices, bounds.cu_seqlens).unsqueeze(0) if is_dynamic else None
            cos, sin = rotary(position_ids.unsqueeze(0), lengths)
            rotation = cos.flatten(0, 2).to(self.attention_dtype), sin.flatten(0, 2).to(self.attention_dtype)
        reach = self._reach(layer)
        if reach.in_blocks and torch.compiler.is_exporting():
            assert self.positions.bias is None  # no architecture uses both
            assert self.positions.distances is None
            bias = window_bias(indices, position_ids, unattended, reach, self.attention_dtype)
        elif self.positions.bias is not None or torch.compiler.is_exporting():
            bias = self._bias(reach, bounds)
        distances = None
        if self.positions.distances is not None:
            distances = distance_indices(self.positions.distances, self.config.num_attention_heads, bounds)
        return VarlenInputs(bounds, indices, reach, rotation, bias, unattended, distances)

    def _bias(self, reach: Reach, bounds: SequenceBounds) -> Tensor | None:
        """Return the bias of a layer without blocks."""
        dtype = self.attention_dtype
        if self.positions.bias is None and reach == Reach():
            return None
        places = token_indices(bounds.token_offset[0])  # (S,)
        relative = None if self.positions.bias is None else self.positions.bias(places.unsqueeze(0)).to(dtype)
        if reach == Reach():
            return relative
        limited = _bias(reach.covers(places - places.unsqueeze(1)), dtype)[None, None]
        return limited if relative is None else relative + limited


def _dtype(block: nn.Module) -> torch.dtype:
    dtype: torch.dtype = block.feed_forward_norm.weight.dtype  # type: ignore[union-attr, assignment]
    return dtype


def token_indices(input_ids: Tensor) -> Tensor:
    """Return 0, 1, ..., T-1, (T,), as a cumulative sum of ones.

    A Range would need T as a scalar, which onnxruntime computes on the CPU, and work that synchronizes with the CPU
    cannot be captured in a CUDA graph.
    """
    return torch.cumsum(input_ids * 0 + 1, 0, dtype=torch.int32) - 1


def sequence_lengths(indices: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return the length of each token's sequence, int32 (T,)."""
    number = (cu_seqlens.unsqueeze(1) <= indices).sum(0)  # from 1: the first bound is 0
    ends = torch.cat((cu_seqlens, cu_seqlens[-1:]))
    return ends.index_select(0, number) - ends.index_select(0, number - 1)


def pool_varlen(hidden: Tensor, indices: Tensor, cu_seqlens: Tensor, pooling: CombinedPooling) -> Tensor:
    """Return the mean, first or last vector of each sequence, float32 (B, D); zeros for an empty sequence.

    `indices` is the result of `token_indices`. The mean is a single matrix product in the dtype of `hidden`. A float32
    factor then corrects the rounding error of the weights 1/length.
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


def short_length(config: EncoderConfig) -> int | None:
    """Return the length of the longest sequences that need no blocks, because all windows cover them.

    None if no layer has blocks, or if windows are shorter than `ALIGNED` tokens.
    """
    reaches = [Reach.of(config, layer) for layer in config.layers]
    windows = [reach.behind for reach in reaches if reach.in_blocks and reach.behind is not None]
    return (min(windows, default=-1) + 1) // ALIGNED * ALIGNED or None


def part_names(encoder: Encoder) -> tuple[str, ...]:
    """Return the names of the parts that can differ in precision: the embeddings, then each block."""
    return "embeddings", *(f"block {number}" for number in range(1, len(encoder.blocks) + 1))


def varlen_signature(module: VarlenEncoder) -> GraphSignature:
    """Return the signature for export, with dynamic T, B and S."""
    # Separate tensors: the exporter would merge inputs that share one tensor into a single input.
    examples = {name: torch.zeros(2 * BLOCK_TOKENS, dtype=torch.int32) for name in TOKEN_INPUTS}
    examples["cu_seqlens"] = torch.tensor([0, 5, 128, 128], dtype=torch.int32)
    examples["token_offset"] = torch.zeros(3, 123, dtype=torch.int32)
    dynamic_axes = {name: {0: "T"} for name in TOKEN_INPUTS}
    rows = PADDED_ROWS if module.config.disentangled is not None else "B"
    dynamic_axes |= {"cu_seqlens": {0: "bounds"}, "token_offset": {0: rows, 1: "S"}}
    return GraphSignature(examples, dynamic_axes, module.outputs, multiples={"T": module.multiple})


SEGMENT_TOKENS = 32
"""Number of tokens whose logits are reduced together: a power of two."""


class SparseLogits(nn.Module):
    """The largest logit of each vocabulary entry over the tokens of a segment, for sparse heads that pool by maximum.

    The layers before the projection compute in float32, the projection in float16. Instead of a reduction, which would
    need cuDNN, the maximum is taken of halves. The bias does not depend on the token, so it is added at the end.
    """

    def __init__(self, layers: RowHead | None, decoder: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.layers = nn.Identity() if layers is None else copy.deepcopy(layers).float()
        self.decoder = nn.Parameter(decoder.detach().half())
        self.bias = None if bias is None else nn.Parameter(bias.detach().float())

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Return the logits, float32 (N, V).

        Args:
            hidden: the hidden states of a batch, (T, D).
            positions: int32 (N, 32), the tokens of each segment. Segments with fewer tokens repeat one of them.
        """
        rows = _gather(hidden, positions.flatten(), 0).float()
        logits = F.linear(self.layers(rows).half(), self.decoder).view(-1, SEGMENT_TOKENS, len(self.decoder))
        while logits.shape[1] > 1:
            logits = torch.maximum(*logits.chunk(2, dim=1))
        largest = logits.squeeze(1).float()
        return largest if self.bias is None else largest + self.bias


MIN_COSINE = 0.9999
"""Required cosine similarity of every embedding with its float32 embedding."""
MAX_BATCH_TOKENS = 512
RANKING_BATCHES = 8
"""Number of batches used to rank the parts."""

CAST_OPERATORS = (torch.ops.aten.to, torch.ops.aten._to_copy)
Floats = NDArray[np.float64]


class AccuracyError(ReportedError):
    """Insufficient accuracy in float16, even with all supported parts in float32."""

    status = EX_SOFTWARE


class EmulatedFloat16(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that computes operations on float16 tensors in float32 and rounds their results.

    torch's CPU float16 kernels round the same way, but their matrix product is fifty times slower.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        arguments = (args, kwargs or {})
        tensors = [value for value in tree_leaves(arguments) if isinstance(value, torch.Tensor)]
        if func.overloadpacket in CAST_OPERATORS or all(tensor.dtype != torch.float16 for tensor in tensors):
            return func(*args, **kwargs or {})
        float32_args, float32_kwargs = tree_map_only(torch.Tensor, _to_float32, arguments)
        return tree_map_only(torch.Tensor, _to_float16, func(*float32_args, **float32_kwargs))


def _to_float32(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype == torch.float16 else value


def _to_float16(value: torch.Tensor) -> torch.Tensor:
    return value.half() if value.dtype == torch.float32 else value


@dataclass(frozen=True)
class AccuracyTest:
    """Batches of sequences and their float32 embeddings, `expected` (N, D). `has_unattended`: see `VarlenEncoder`."""

    encoder: Encoder
    pooling: CombinedPooling
    batches: list[list[Inputs]]
    expected: Floats
    has_unattended: bool = False

    @classmethod
    def from_sequences(cls, encoder: Encoder, pooling: CombinedPooling, sequences: Sequence[Inputs]) -> "AccuracyTest":
        batches = _make_batches(sequences)
        embeddings = []
        for batch in batches:
            with torch.inference_mode():
                inputs = {name: torch.from_numpy(values) for name, values in pack_sequences(batch).items()}
                hidden = encoder(**inputs)[0].numpy()
            embeddings.append(pool_sequences(hidden, batch, pooling))
        return cls(encoder, pooling, batches, np.concatenate(embeddings))

    @property
    def texts(self) -> int:
        return len(self.expected)

    def up_to(self, longest: int) -> "AccuracyTest":
        """Return the test over sequences of at most `longest` tokens."""
        fits = [[_length(sequence) <= longest for sequence in batch] for batch in self.batches]
        batches = [list(compress(batch, chosen)) for batch, chosen in zip(self.batches, fits, strict=True)]
        return replace(self, batches=[*filter(None, batches)], expected=self.expected[[*chain.from_iterable(fits)]])

    def min_cosine(self, embed: Callable[[list[Inputs]], NDArray[Any]]) -> float:
        """Return the smallest cosine similarity of `embed`'s results to `expected`; -1 if a value is not finite."""
        embeddings = np.concatenate([embed(batch) for batch in self.batches]).astype(np.float64)
        if not np.isfinite(embeddings).all():
            return -1.0
        norms = np.linalg.norm(embeddings, axis=1) * np.linalg.norm(self.expected, axis=1)
        return float(((embeddings * self.expected).sum(axis=1) / np.maximum(norms, 1e-300)).min())

    def min_cosine_float16(self, float32_parts: Sequence[str]) -> float:
        """Return the smallest cosine similarity of the varlen encoder in float16, except for `float32_parts`."""
        module = VarlenEncoder(self.encoder, self.pooling, float32_parts, has_unattended=self.has_unattended).eval()
        return self.min_cosine(lambda batch: run_varlen(module, batch))

    def head(self) -> "AccuracyTest":
        """Return a test limited to the first `RANKING_BATCHES` batches."""
        batches = self.batches[:RANKING_BATCHES]
        return replace(self, batches=batches, expected=self.expected[: sum(map(len, batches))])


def choose_float32_parts(test: AccuracyTest) -> AccuracyRecord:
    """Return the fewest float32 parts that keep every cosine similarity at or above `MIN_COSINE`.

    Parts are added in decreasing order of the error that each causes when only it is in float16.

    Raises:
        AccuracyError: The limit is missed even with all parts in float32.
    """
    names, head, ranked = part_names(test.encoder), test.head(), list[str]()

    @cache
    def cosine_of(count: int) -> float:
        return test.min_cosine_float16(ranked[:count])

    count = 0
    if cosine_of(0) < MIN_COSINE:
        ranked += sorted(names, key=lambda name: head.min_cosine_float16([other for other in names if other != name]))
        count = bisect_left(range(len(names)), True, lo=1, key=lambda count: cosine_of(count) >= MIN_COSINE)
    cosine, parts = cosine_of(count), tuple(sorted(ranked[:count], key=names.index))
    if cosine < MIN_COSINE:
        raise AccuracyError(
            f"Accuracy: smallest cosine {cosine:.6f} with all supported parts in float32, limit {MIN_COSINE}. "
            "Export without --variant cuda."
        )
    return AccuracyRecord(texts=test.texts, min_cosine=cosine, float32_parts=parts)


def tokenize_texts(
    texts: Sequence[str], tokenizer: Tokenizer, max_input_tokens: int, type_vocab_size: int
) -> list[Inputs]:
    """Return the sequences of texts, truncated on the right to `max_input_tokens`."""
    sequences = []
    for tokens in tokenizer.encode([TokenizerInput(text) for text in texts]):
        truncated = tokens.truncate(max_input_tokens, "right")
        type_ids = truncated.token_type_ids if type_vocab_size > 1 else [0] * len(truncated)
        sequences.append(make_sequence(truncated.input_ids, type_ids))
    return sequences


def run_varlen(module: VarlenEncoder, sequences: list[Inputs]) -> NDArray[Any]:
    """Return the embeddings (B, D) of one batch with float16 rounding as on a GPU."""
    inputs = {name: torch.from_numpy(values) for name, values in pack_varlen(sequences).items()}
    with torch.inference_mode(), EmulatedFloat16():  # type: ignore[no-untyped-call]
        hidden, *pooled = module(**inputs)
    return pooled[0].numpy() if pooled else pool_sequences(hidden.float().numpy(), sequences, module.pooling)


def pool_sequences(hidden: NDArray[Any], sequences: Sequence[Inputs], pooling: CombinedPooling) -> NDArray[Any]:
    """Return the pooled vector of each sequence, (B, D), from hidden states (T, D)."""
    lengths = [_length(sequence) for sequence in sequences]
    parts = torch.split(torch.from_numpy(hidden).double(), lengths)
    return torch.stack([pool(part, pooling) for part in parts]).numpy()


def _length(sequence: Inputs) -> int:
    return int(sequence["input_ids"].shape[1])


def _make_batches(sequences: Sequence[Inputs]) -> list[list[Inputs]]:
    """Split sequences in order into batches of at most `MAX_BATCH_TOKENS`. A longer sequence is a separate batch."""
    batches: list[list[Inputs]] = []
    remaining = 0
    for sequence in sequences:
        length = _length(sequence)
        if length > remaining:
            batches.append([])
            remaining = MAX_BATCH_TOKENS
        batches[-1].append(sequence)
        remaining -= length
    return batches


WEIGHTS = "cuda.bin"
TOLERANCE = 3e-2
"""Maximum relative difference of a token vector, as in parity.py. The limit on the cosine similarity is stricter.

Tiny models with random weights reach 0.025 (GTE) and 0.024 (Nomic BERT) from float16 rounding alone.
"""


def write_cuda(graphs: GraphSet, checkpoint: Checkpoint, eval_texts: Sequence[str]) -> None:
    """Write the graph and its weights; `eval_texts` determine which parts stay in float32. Raises AccuracyError."""
    encoder, pooling, progress = checkpoint.encoder, checkpoint.embedding_config.pooling, graphs.progress
    tokenizer = Tokenizer(checkpoint.tokenizer)
    sequences = tokenize_texts(eval_texts, tokenizer, checkpoint.max_input_tokens, encoder.config.type_vocab_size)
    progress(f"measuring float16 accuracy over {len(sequences)} texts")
    vectors = checkpoint.multi_vector
    expansion = None if vectors is None else vectors.record.expansion
    has_unattended = expansion is not None and not expansion.attended
    test = replace(AccuracyTest.from_sequences(encoder, pooling, sequences), has_unattended=has_unattended)
    accuracy = choose_float32_parts(test)
    progress(f"smallest cosine {accuracy.min_cosine:.6f}, in float32: {', '.join(accuracy.float32_parts) or 'none'}")
    module = VarlenEncoder(encoder, pooling, accuracy.float32_parts, has_unattended=has_unattended).eval()
    progress(f"exporting {graphs.path(CUDA).name}")
    write_graph(module, graphs.path(CUDA), WEIGHTS, varlen_signature(module))
    _measure_graph(graphs, CUDA, module, test, checkpoint.max_input_tokens, accuracy)
    module.longest = short_length(encoder.config)
    if module.longest is not None and module.longest < checkpoint.max_input_tokens:
        progress(f"exporting {graphs.path(CUDA_SHORT).name} for texts of up to {module.longest} tokens")
        write_graph(module, graphs.path(CUDA_SHORT), WEIGHTS, varlen_signature(module), graphs.path(CUDA))
        _measure_graph(graphs, CUDA_SHORT, module, test.up_to(module.longest), module.longest, accuracy)
    if (sparse := checkpoint.sparse) is not None and sparse.decoder is not None and sparse.pooling == "max":
        progress(f"exporting {graphs.path(CUDA_SPARSE).name}")
        _write_sparse(graphs, sparse, sparse.decoder, _dtype(module.blocks[-1]))


def _write_sparse(graphs: GraphSet, sparse: Sparse, decoder: Tensor, dtype: torch.dtype) -> None:
    """Write the graph of the projection. `dtype`: of the hidden states."""
    module = SparseLogits(sparse.head, decoder, sparse.bias).eval()
    size = decoder.shape[1] if sparse.head is None else sparse.head.in_features
    hidden = torch.randn(2 * SEGMENT_TOKENS, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    positions = torch.arange(3 * SEGMENT_TOKENS, dtype=torch.int32).view(3, -1) * 7 % len(hidden)
    path, axes = graphs.path(CUDA_SPARSE), {"hidden": {0: "T"}, "positions": {0: "N"}}
    signature = GraphSignature({"hidden": hidden, "positions": positions}, axes, ("logits",))
    write_graph(module, path, WEIGHTS, signature, graphs.path(CUDA))
    with torch.inference_mode():
        rows = hidden.float() if sparse.head is None else sparse.head(hidden.float())
        expected = (rows @ decoder.float().T)[positions.long()].amax(dim=1)
        expected = expected if sparse.bias is None else expected + sparse.bias
    session = open_reference_session(path, WEIGHTS)
    (computed,) = session.run(None, {"hidden": hidden.numpy(), "positions": positions.numpy()})
    graphs.add(CUDA_SPARSE, compare([(expected.numpy(), computed)], TOLERANCE), WEIGHTS, "float16")


def _measure_graph(
    graphs: GraphSet, name: str, module: VarlenEncoder, test: AccuracyTest, max_tokens: int, chosen: AccuracyRecord
) -> None:
    """Add a graph with its parity, and its smallest cosine if the test has texts. Raises AccuracyError."""
    path = graphs.path(name)
    graphs.progress(f"running {path.name} with reference attention")
    session = open_reference_session(path, WEIGHTS)

    def embed(batch: list[Inputs]) -> NDArray[Any]:
        hidden, *pooled = run_varlen_graph(session, batch, module.multiple)
        return pooled[0] if pooled else pool_sequences(hidden, batch, module.pooling)

    parity = compare_outputs(
        test.encoder,
        lambda batch: run_varlen_graph(session, batch, module.multiple)[0],
        max_tokens,
        TOLERANCE,
    )
    accuracy = None
    if test.batches:
        cosine = test.min_cosine(embed)
        graphs.progress(f"smallest cosine {cosine:.6f}")
        if cosine < MIN_COSINE:
            raise AccuracyError(f"{path.name}: smallest cosine {cosine:.6f}, limit {MIN_COSINE}. Report this as a bug.")
        least = min(cosine, chosen.min_cosine)
        accuracy = chosen.model_copy(update={"texts": test.texts, "min_cosine": least})
    graphs.add(name, parity, WEIGHTS, "float16", accuracy, longest=module.longest)
