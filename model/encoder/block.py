"""Transformer blocks: attention and feed-forward, each with a residual connection, around three orders of norms."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from model.encoder.attention import AttentionInputs, SelfAttention
from model.encoder.config import BlockKind, EncoderConfig, LayerConfig
from model.encoder.feed_forward import make_feed_forward
from model.encoder.norms import RMSNorm, make_norm


class Block(nn.Module, ABC):
    """The attention and the feed-forward network of one layer.

    `norm_before_attention`: attention reads the output of `attention_norm`. `mixed_norm`: the norm that reads the
    output of the attention, alone or as part of the residual stream.
    """

    attention: SelfAttention
    attention_norm: nn.Module
    norm_before_attention: bool

    @property
    @abstractmethod
    def mixed_norm(self) -> nn.LayerNorm | RMSNorm: ...

    @abstractmethod
    def forward(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        """Return the hidden state (R, T, D) and the attention probabilities, see `SelfAttention`."""


class PostNormBlock(Block):
    """A norm after each residual connection (Vaswani et al. 2017): `x = N(x + f(x))`."""

    norm_before_attention = False

    def __init__(self, config: EncoderConfig, layer: LayerConfig) -> None:
        del layer
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = make_norm(config, config.hidden_size)
        self.feed_forward = make_feed_forward(config)
        self.feed_forward_norm = make_norm(config, config.hidden_size)

    @property
    def mixed_norm(self) -> nn.LayerNorm | RMSNorm:
        assert isinstance(self.attention_norm, nn.LayerNorm | RMSNorm)
        return self.attention_norm

    def forward(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        attended, probs = self.attention(x, inputs)
        x = self.attention_norm(x + attended)
        x = self.feed_forward_norm(x + self.feed_forward(x))
        return x, probs


class PreNormBlock(Block):
    """A norm before attention and feed-forward (Xiong et al. 2020): `x = x + f(N(x))`."""

    norm_before_attention = True

    def __init__(self, config: EncoderConfig, layer: LayerConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = make_norm(config, config.hidden_size) if layer.attention_norm else nn.Identity()
        self.feed_forward = make_feed_forward(config)
        self.feed_forward_norm = make_norm(config, config.hidden_size)

    @property
    def mixed_norm(self) -> nn.LayerNorm | RMSNorm:
        return self.feed_forward_norm

    def forward(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        attended, probs = self.attention(self.attention_norm(x), inputs)
        x = x + attended
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return x, probs


class SandwichBlock(Block):
    """Norms before and after attention and feed-forward (Ding et al. 2021): `x = x + N2(f(N1(x)))`."""

    norm_before_attention = True

    def __init__(self, config: EncoderConfig, layer: LayerConfig) -> None:
        del layer
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = make_norm(config, config.hidden_size)
        self.attention_output_norm = make_norm(config, config.hidden_size)
        self.feed_forward = make_feed_forward(config)
        self.feed_forward_norm = make_norm(config, config.hidden_size)
        self.feed_forward_output_norm = make_norm(config, config.hidden_size)

    @property
    def mixed_norm(self) -> nn.LayerNorm | RMSNorm:
        return self.attention_output_norm

    def forward(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        attended, probs = self.attention(self.attention_norm(x), inputs)
        x = x + self.attention_output_norm(attended)
        x = x + self.feed_forward_output_norm(self.feed_forward(self.feed_forward_norm(x)))
        return x, probs


BLOCKS: dict[BlockKind, type[PostNormBlock | PreNormBlock | SandwichBlock]] = {
    "post": PostNormBlock,
    "pre": PreNormBlock,
    "sandwich": SandwichBlock,
}


def make_block(config: EncoderConfig, layer: LayerConfig) -> Block:
    """Return the block of a layer."""
    return BLOCKS[config.block](config, layer)
