"""Self-attention within the sequences of a row."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.encoder.config import EncoderConfig
from model.encoder.norms import RMSNorm
from model.encoder.positions import rotate
from model.long_attention import AttentionMask, attend


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of attention besides hidden states. All layers with the same options share them.

    `mask`: additive, (R, 1 or H, T, T), with the relative position bias if there is one, or for encoders of long rows
    an `AttentionMask`. `rotation`: the cosines and sines of rotary position embeddings, (R, 1, T, d/2) each.
    """

    mask: Tensor | AttentionMask
    rotation: tuple[Tensor, Tensor] | None = None


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, section 3.2).

    With G < H key/value heads, groups of H/G query heads share one (Ainslie et al. 2023). Queries and keys may be
    normalized per head (Henry et al. 2020) and rotated.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.head_size = config.head_size
        self.scale = config.attention_scale
        size, bias = config.hidden_size, config.attention_bias
        self.query = nn.Linear(size, config.head_size * self.num_heads, bias)
        self.key = nn.Linear(size, config.head_size * self.num_key_value_heads, bias)
        self.value = nn.Linear(size, config.head_size * self.num_key_value_heads, bias)
        self.output = nn.Linear(config.head_size * self.num_heads, size, bias)
        normed = config.query_key_norm
        self.query_norm = RMSNorm(config.head_size, config.norm_eps) if normed else nn.Identity()
        self.key_norm = RMSNorm(config.head_size, config.norm_eps) if normed else nn.Identity()

    def forward(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        """Return the output (R, T, D) and the attention probabilities (R, H, T, T), None for encoders of long rows."""
        q, k, v = self.project(x, inputs.rotation)
        probs = None
        if isinstance(inputs.mask, AttentionMask):
            context = attend(q, k, v, inputs.mask, self.scale)  # (R, H, T, d)
        else:
            probs = self.scores(q, k, inputs.mask).softmax(dim=-1)
            context = probs @ v
        return self.output(context.transpose(1, 2).flatten(2)), probs

    def scores(self, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        """Return the masked scores (R, H, T, T), whose softmax the probabilities are."""
        return q @ k.transpose(-2, -1) * self.scale + mask

    def project(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of all heads, (R, H, T, d) each."""
        q = self.query_norm(self._split(self.query(x), self.num_heads))  # (R, H, T, d)
        k = self.key_norm(self._split(self.key(x), self.num_key_value_heads))  # (R, G, T, d)
        v = self._split(self.value(x), self.num_key_value_heads)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        return q, self._repeat(k), self._repeat(v)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        rows, tokens, _ = x.shape
        return x.view(rows, tokens, heads, self.head_size).transpose(1, 2)  # (R, heads, T, d)

    def _repeat(self, x: Tensor) -> Tensor:
        """Repeat the keys or values of each group for its query heads."""
        if self.num_heads == self.num_key_value_heads:
            return x
        return x.repeat_interleave(self.num_heads // self.num_key_value_heads, dim=1)


def attention_mask(
    sequence_ids: Tensor, position_ids: Tensor, *, causal: bool = False, window: int | None = None
) -> Tensor:
    """Return the additive attention mask (R, 1, T, T): 0 where tokens attend, the lowest float32 elsewhere.

    A token of a negative sequence id belongs to the sequence of the positive one, but no token attends to it.

    Tokens attend within their sequence, at most `window` positions away, and not to later ones if `causal`. The lowest
    finite value instead of -inf: its exp is exactly 0, and a fully masked row does not become NaN.
    """
    allowed = sequence_ids.abs().unsqueeze(-1) == sequence_ids.unsqueeze(-2)  # (R, T, T)
    if causal:
        allowed = allowed & (position_ids.unsqueeze(-1) >= position_ids.unsqueeze(-2))
    if window is not None:
        allowed = allowed & ((position_ids.unsqueeze(-1) - position_ids.unsqueeze(-2)).abs() <= window)
    zero = torch.zeros((), dtype=torch.float32)
    masked = torch.full((), torch.finfo(torch.float32).min)
    return torch.where(allowed, zero, masked).unsqueeze(1)
