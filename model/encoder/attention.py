"""Scaled dot-product attention over packed rows, with masks, and without T x T tensors in long rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

DOMAIN = "attendant"
"""The domain of operators that `model.export.graphs` replaces with standard ones."""
MAX_DENSE_TOKENS = 1024
"""Rows up to this length use masks of size T x T."""
BLOCK_TOKENS = 128
LOWEST = torch.finfo(torch.float32).min
"""Finite, unlike -inf: its exp is exactly 0, and a fully masked row does not become NaN."""


@dataclass(frozen=True)
class AttentionMask:
    """The query-key pairs that attend, for all layers of one kind.

    Attributes:
        sequence_ids: int64 (R, T), 0 for padding; negative for tokens of a sequence that no token attends to.
        radius: Tokens attend to tokens at most this far away. None: no limit.
        causal: Tokens do not attend to later tokens.
        additive: float32 (R, 1, T, T): 0 for pairs that attend, else `LOWEST`. None for rows over `MAX_DENSE_TOKENS`.
            Exported graphs use other shapes; see `model.export.graphs`.
        keys: int64, the key indices of all query blocks. Only in an exported graph, if there is a radius.
        slopes: float32 (H, 1, 1): a head's slope times the distance is subtracted from its scores. `additive` already
            includes this term.
    """

    sequence_ids: Tensor
    radius: int | None
    causal: bool
    additive: Tensor | None
    keys: Tensor | None = None
    slopes: Tensor | None = None


def attention_mask(
    sequence_ids: Tensor, position_ids: Tensor, *, causal: bool = False, window: int | None = None
) -> Tensor:
    """Return the additive attention mask (R, 1, T, T) of short rows: 0 where tokens attend, else `LOWEST`.

    Tokens attend within their sequence, at most `window` positions away, and not to later tokens if `causal`. A token
    with a negative sequence id belongs to the sequence with the positive id, but no token attends to it.
    """
    allowed = sequence_ids.abs().unsqueeze(-1) == sequence_ids.unsqueeze(-2)  # (R, T, T)
    if causal:
        allowed = allowed & (position_ids.unsqueeze(-1) >= position_ids.unsqueeze(-2))
    if window is not None:
        allowed = allowed & ((position_ids.unsqueeze(-1) - position_ids.unsqueeze(-2)).abs() <= window)
    return _additive(allowed)


def build_mask(
    position_ids: Tensor,
    sequence_ids: Tensor,
    radius: int | None = None,
    *,
    causal: bool = False,
    slopes: Tensor | None = None,
) -> AttentionMask:
    """Build the mask for one kind of layer. `position_ids` and `sequence_ids` are int64 (R, T).

    Positions restart at 0 in each sequence and increase by 1. `slopes` cannot be combined with a radius or causal
    attention.
    """
    assert slopes is None or (radius is None and not causal)
    if torch.compiler.is_exporting():
        return _symbolic_mask(position_ids, sequence_ids, radius, causal, slopes)
    if sequence_ids.shape[1] > MAX_DENSE_TOKENS:
        return AttentionMask(sequence_ids, radius, causal, None, slopes=slopes)
    additive = attention_mask(sequence_ids, position_ids, causal=causal, window=radius)
    if slopes is not None:
        additive = additive + alibi(position_ids, position_ids, slopes)
    return AttentionMask(sequence_ids, radius, causal, additive, slopes=slopes)


def alibi(query_positions: Tensor, key_positions: Tensor, slopes: Tensor) -> Tensor:
    """Return the bias for distances, (R, H, Q, K), for positions (R, Q) and (R, K), and slopes (H, 1, 1)."""
    distances = (query_positions.unsqueeze(-1) - key_positions.unsqueeze(-2)).abs()  # (R, Q, K)
    return -slopes * distances.to(slopes.dtype).unsqueeze(1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, scale: float) -> Tensor:
    """Return softmax(scale q k^T + mask) v, (R, H, T, d). `q`, `k` and `v` are float32 (R, H, T, d)."""
    if torch.compiler.is_exporting():
        return _symbolic_attend(q, k, v, mask, scale)
    if mask.additive is not None:
        return attend_dense(q, k, v, mask.additive, scale)
    tokens, outputs = q.shape[2], []
    index = torch.arange(tokens)
    reach = tokens if mask.radius is None else mask.radius
    for start in range(0, tokens, BLOCK_TOKENS):
        queries = slice(start, start + BLOCK_TOKENS)
        keys = slice(max(0, start - reach), queries.stop + (0 if mask.causal else reach))
        allowed = mask.sequence_ids[:, None, keys] == mask.sequence_ids[:, None, :1]  # token 0 is never padding
        distance = index[queries, None] - index[None, keys]
        if mask.radius is not None:
            allowed = allowed & (distance.abs() <= mask.radius)
        if mask.causal:
            allowed = allowed & (distance >= 0)
        additive = _additive(allowed)
        if mask.slopes is not None:
            additive = additive + alibi(index[None, queries], index[None, keys], mask.slopes)
        outputs.append(attend_dense(q[:, :, queries], k[:, :, keys], v[:, :, keys], additive, scale))
    return torch.cat(outputs, dim=2)


def attend_dense(q: Tensor, k: Tensor, v: Tensor, additive: Tensor, scale: float) -> Tensor:
    """Compute attention of all queries to all keys; `additive` broadcasts to (R, H, queries, keys)."""
    return (q @ k.transpose(-2, -1) * scale + additive).softmax(dim=-1) @ v


def _additive(allowed: Tensor) -> Tensor:
    """Return 0 for allowed pairs, else `LOWEST`, with an added head axis."""
    return torch.where(allowed, torch.zeros(()), torch.full((), LOWEST)).unsqueeze(1)


def _symbolic_mask(
    position_ids: Tensor, sequence_ids: Tensor, radius: int | None, causal: bool, slopes: Tensor | None
) -> AttentionMask:
    rows, tokens = sequence_ids.shape
    inputs, shape = (position_ids, sequence_ids), (rows, 1, tokens, tokens)
    if slopes is not None:
        additive = torch.onnx.ops.symbolic(
            f"{DOMAIN}::AlibiMask",
            (*inputs, slopes),
            dtype=torch.float32,
            shape=(rows, len(slopes), tokens, tokens),
            version=1,
        )
        return AttentionMask(sequence_ids, radius, causal, additive, slopes=slopes)
    if radius is None:
        name = f"{DOMAIN}::CausalMask" if causal else f"{DOMAIN}::FullMask"
        additive = torch.onnx.ops.symbolic(name, inputs, dtype=torch.float32, shape=shape, version=1)
        return AttentionMask(sequence_ids, radius, causal, additive)
    additive, keys = torch.onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::WindowMask",
        inputs,
        {"behind": radius, "ahead": 0 if causal else radius},
        dtypes=(torch.float32, torch.int64),
        shapes=(shape, (tokens,)),
        version=1,
    )
    return AttentionMask(sequence_ids, radius, causal, additive, keys)


def _symbolic_attend(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, scale: float) -> Tensor:
    name = "CausalAttend" if mask.causal else "FullAttend"
    if mask.radius is not None:
        name = "WindowAttend"
    elif mask.slopes is not None:
        name = "AlibiAttend"
    inputs = [part for part in (q, k, v, mask.additive, mask.keys, mask.slopes) if part is not None]
    output: Tensor = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{name}", inputs, {"scale": scale}, dtype=q.dtype, shape=q.shape, version=1
    )
    return output
