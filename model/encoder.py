"""The transformer encoder, written once: BERT and the families that share its block.

Read it top to bottom. Texts come *packed*: several of them lie end to end in one row, and `sequence_ids`
says which token belongs to which text, so that a token attends only within its own text.

Shapes: R rows, T tokens in a row, D width of the model, H heads, E width of the embedding table.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of an encoder. Nothing here selects an architecture; families differ only in these numbers."""

    vocab_size: int
    width: int
    layers: int
    heads: int
    feed_forward_width: int
    max_positions: int
    types: int
    layer_norm_eps: float
    activation: str = "gelu"
    embedding_width: int = 0

    def __post_init__(self) -> None:
        if self.embedding_width == 0:
            object.__setattr__(self, "embedding_width", self.width)
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"the width {self.width} is not a multiple of the number of heads {self.heads}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r} is not one of {', '.join(sorted(ACTIVATIONS))}")


class Activation(Protocol):
    def __call__(self, x: Tensor, /) -> Tensor: ...


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU (Hendrycks & Gimpel 2016)."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}


class Embeddings(nn.Module):
    """Token, learned position and type vectors, summed and normalised; projected where the table is narrower."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.tokens = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(config.max_positions, width)
        self.types = nn.Embedding(config.types, width)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.project = nn.Identity() if width == config.width else nn.Linear(width, config.width)

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        summed = self.tokens(input_ids) + self.positions(position_ids) + self.types(token_type_ids)  # (R, T, E)
        projected: Tensor = self.project(self.norm(summed))  # (R, T, D)
        return projected


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.head_width = config.width // config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The mixed vectors `(R, T, D)` and the maps that mixed them, `(R, H, T, T)`, rows summing to 1."""
        q = self._split(self.query(x))  # (R, H, T, D/H)
        k = self._split(self.key(x))
        v = self._split(self.value(x))
        scores = q @ k.transpose(-2, -1) * self.head_width**-0.5 + mask  # (R, H, T, T)
        probs = scores.softmax(dim=-1)
        mixed = (probs @ v).transpose(1, 2).flatten(2)  # (R, T, D)
        return self.output(mixed), probs

    def _split(self, x: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        return x.view(rows, tokens, self.heads, self.head_width).transpose(1, 2)  # (R, H, T, D/H)


class FeedForward(nn.Module):
    """Two linear maps with an activation between, applied to each token alone."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.feed_forward_width)
        self.outer = nn.Linear(config.feed_forward_width, config.width)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(self.activation(self.inner(x)))  # (R, T, D)
        return out


class Block(nn.Module):
    """Attention and feed-forward, each with its residual and a layer norm *after* it (post-LN)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.width, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.width, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        mixed, probs = self.attention(x, mask)
        x = self.attention_norm(x + mixed)
        x = self.feed_forward_norm(x + self.feed_forward(x))
        return x, probs


@dataclass(frozen=True)
class Encoded:
    """`hidden`: L+1 tensors `(R, T, D)`, the embeddings first; `probs`: L tensors `(R, H, T, T)`."""

    hidden: list[Tensor]
    probs: list[Tensor]


class Encoder(nn.Module):
    """Packed rows of tokens in, the vector of every token after the last block out."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, sequence_ids: Tensor) -> Tensor:
        """Four integer tensors `(R, T)` to `(R, T, D)`. `position_ids` restart at 0 in each segment."""
        return self.encode(input_ids, position_ids, token_type_ids, sequence_ids).hidden[-1]

    def encode(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, sequence_ids: Tensor) -> Encoded:
        """The same pass, keeping what every layer gave and the attention that gave it."""
        mask = block_diagonal_mask(sequence_ids)
        x = self.embeddings(input_ids, position_ids, token_type_ids)
        hidden, probs = [x], []
        for block in self.blocks:
            x, block_probs = block(x, mask)
            hidden.append(x)
            probs.append(block_probs)
        return Encoded(hidden, probs)


class EveryLayer(nn.Module):
    """The encoder, giving what every layer gave: `(L+1, R, T, D)`, the embeddings first."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, sequence_ids: Tensor) -> Tensor:
        return torch.stack(self.encoder.encode(input_ids, position_ids, token_type_ids, sequence_ids).hidden)


def block_diagonal_mask(sequence_ids: Tensor) -> Tensor:
    """`(R, T)` segment numbers to an additive mask `(R, 1, T, T)`: 0 within a segment, the lowest float elsewhere.

    The lowest finite float, not -inf: exp of it is exactly 0, and no row can become NaN.
    """
    same = sequence_ids.unsqueeze(-1) == sequence_ids.unsqueeze(-2)  # (R, T, T)
    allowed = torch.zeros((), dtype=torch.float32)
    refused = torch.full((), torch.finfo(torch.float32).min)
    return torch.where(same, allowed, refused).unsqueeze(1)
