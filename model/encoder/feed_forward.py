"""The position-wise feed-forward network of a block."""

from torch import Tensor, nn

from model.encoder.activations import ACTIVATIONS
from model.encoder.config import EncoderConfig


class FeedForward(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.hidden_size, config.intermediate_size, config.feed_forward_bias)
        self.outer = nn.Linear(config.intermediate_size, config.hidden_size, config.feed_forward_output_bias)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """Return (R, T, D)."""
        out: Tensor = self.outer(self.activation(self.inner(x)))
        return out


class GatedFeedForward(nn.Module):
    """A gated linear unit and a linear layer (Shazeer 2020): `outer(activation(gate(x)) * inner(x))`."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.intermediate_size, config.feed_forward_bias)
        self.inner = nn.Linear(config.hidden_size, config.intermediate_size, config.feed_forward_bias)
        self.outer = nn.Linear(config.intermediate_size, config.hidden_size, config.feed_forward_output_bias)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """Return (R, T, D)."""
        out: Tensor = self.outer(self.activation(self.gate(x)) * self.inner(x))
        return out


def make_feed_forward(config: EncoderConfig) -> FeedForward | GatedFeedForward:
    """Return the feed-forward network of a block."""
    return GatedFeedForward(config) if config.gated else FeedForward(config)
