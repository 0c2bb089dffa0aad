"""The transformer encoder of BERT and related model families.

Inputs are *packed*: a row holds several sequences end to end, and `sequence_ids` gives the sequence of each token.
Tokens attend only within their sequence, in causal models only to themselves and to earlier tokens.

Shapes: R rows, T tokens per row, D hidden size, H attention heads, L blocks, E embedding size.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class EncoderConfig:
    """The sizes and functions that differ between models, named as in Hugging Face's config.json.

    `max_position_embeddings` counts usable positions only: RoBERTa's table has more rows.
    `embedding_size` 0 means `hidden_size`. `causal`: tokens do not attend to later tokens.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    hidden_act: str = "gelu"
    embedding_size: int = 0
    causal: bool = False

    def __post_init__(self) -> None:
        if self.embedding_size == 0:
            object.__setattr__(self, "embedding_size", self.hidden_size)
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size: not a multiple of num_attention_heads ({self.hidden_size}, {self.num_attention_heads})"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(
                f"hidden_act: unsupported value {self.hidden_act!r}; supported: {', '.join(sorted(ACTIVATIONS))}"
            )


class Activation(Protocol):
    """An elementwise function."""

    def __call__(self, x: Tensor, /) -> Tensor: ...


def gelu_tanh(x: Tensor) -> Tensor:
    """Return the tanh approximation of GELU (Hendrycks & Gimpel 2016)."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}


class Embeddings(nn.Module):
    """The normalized sum of token, position and token type embeddings, projected to D if E is not D."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size = config.embedding_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.project = nn.Identity() if size == config.hidden_size else nn.Linear(size, config.hidden_size)

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return (R, T, D)."""
        summed = (
            self.word_embeddings(input_ids)
            + self.position_embeddings(position_ids)
            + self.token_type_embeddings(token_type_ids)
        )  # (R, T, E)
        projected: Tensor = self.project(self.norm(summed))  # (R, T, D)
        return projected


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_size = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output (R, T, D) and the attention probabilities (R, H, T, T)."""
        q = self._split(self.query(x))  # (R, H, T, D/H)
        k = self._split(self.key(x))
        v = self._split(self.value(x))
        scores = q @ k.transpose(-2, -1) * self.head_size**-0.5 + mask  # (R, H, T, T)
        probs = scores.softmax(dim=-1)
        context = (probs @ v).transpose(1, 2).flatten(2)  # (R, T, D)
        return self.output(context), probs

    def _split(self, x: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        return x.view(rows, tokens, self.num_heads, self.head_size).transpose(1, 2)  # (R, H, T, D/H)


class FeedForward(nn.Module):
    """The position-wise feed-forward network: two linear layers with an activation between them."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.hidden_size, config.intermediate_size)
        self.outer = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """Return (R, T, D)."""
        out: Tensor = self.outer(self.activation(self.inner(x)))
        return out


class Block(nn.Module):
    """A post-LN transformer block: attention and feed-forward, each with a residual and then a layer norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden state (R, T, D) and the attention probabilities (R, H, T, T)."""
        attended, probs = self.attention(x, mask)
        x = self.attention_norm(x + attended)
        x = self.feed_forward_norm(x + self.feed_forward(x))
        return x, probs


@dataclass(frozen=True)
class EncoderOutput:
    """`hidden_states`: L+1 tensors (R, T, D), embeddings first. `probs`: L tensors (R, H, T, T)."""

    hidden_states: list[Tensor]
    probs: list[Tensor]


class Encoder(nn.Module):
    """The encoder; its forward pass returns the last hidden state."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, sequence_ids: Tensor) -> Tensor:
        """Return the last hidden state (R, T, D) for four integer tensors (R, T).

        `position_ids` restart at 0 in each sequence and increase within it.
        """
        return self.encode(input_ids, position_ids, token_type_ids, sequence_ids).hidden_states[-1]

    def encode(
        self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, sequence_ids: Tensor
    ) -> EncoderOutput:
        """Return the hidden states and attention probabilities of all layers."""
        mask = causal_mask(sequence_ids, position_ids) if self.config.causal else block_diagonal_mask(sequence_ids)
        x = self.embeddings(input_ids, position_ids, token_type_ids)
        hidden_states, probs = [x], []
        for block in self.blocks:
            x, block_probs = block(x, mask)
            hidden_states.append(x)
            probs.append(block_probs)
        return EncoderOutput(hidden_states, probs)


class HiddenStatesEncoder(nn.Module):
    """The encoder with all hidden states as its output, (L+1, R, T, D), embeddings first."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, sequence_ids: Tensor) -> Tensor:
        """Return (L+1, R, T, D)."""
        return torch.stack(self.encoder.encode(input_ids, position_ids, token_type_ids, sequence_ids).hidden_states)


def block_diagonal_mask(sequence_ids: Tensor) -> Tensor:
    """Return the additive attention mask (R, 1, T, T): 0 within a sequence, the lowest float32 elsewhere.

    The lowest finite value instead of -inf: its exp is exactly 0, and a fully masked row does not become NaN.
    """
    return _additive_mask(sequence_ids.unsqueeze(-1) == sequence_ids.unsqueeze(-2))


def causal_mask(sequence_ids: Tensor, position_ids: Tensor) -> Tensor:
    """Return the mask of `block_diagonal_mask` with later tokens of the sequence masked too, (R, 1, T, T)."""
    same = sequence_ids.unsqueeze(-1) == sequence_ids.unsqueeze(-2)  # (R, T, T)
    return _additive_mask(same & (position_ids.unsqueeze(-1) >= position_ids.unsqueeze(-2)))


def _additive_mask(allowed: Tensor) -> Tensor:
    """Return (R, 1, T, T) for the pairs (R, T, T) of query and key that attend."""
    zero = torch.zeros((), dtype=torch.float32)
    masked = torch.full((), torch.finfo(torch.float32).min)
    return torch.where(allowed, zero, masked).unsqueeze(1)
