"""Normalization of hidden states."""

import torch
from torch import Tensor, nn

from model.encoder.config import EncoderConfig


class RMSNorm(nn.Module):
    """Division by the root mean square, then a factor per channel (Zhang and Sennrich 2019).

    Checkpoints of Gemma store the factor minus 1; families/gemma3.py adds 1.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x / rms(x) * weight` over the last dimension, with the shape of `x`."""
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.eps) * self.weight


def make_norm(config: EncoderConfig, size: int) -> nn.LayerNorm | RMSNorm:
    """Return a norm of the encoder over `size` channels."""
    if config.norm == "rms_norm":
        return RMSNorm(size, config.norm_eps)
    return nn.LayerNorm(size, eps=config.norm_eps, bias=config.norm == "layer_norm")
