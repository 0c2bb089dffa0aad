"""Position information: sinusoids, rotary position embeddings, and relative position biases.

Learned and sinusoidal embeddings are a table that embeddings.py adds to the token embeddings.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.encoder.config import RotaryConfig

BUCKETS = 32
EXACT_BUCKETS = BUCKETS // 4
"""The number of distances per direction that have a separate bucket."""
MAX_DISTANCE = 128


def sinusoids(positions: int, size: int) -> Tensor:
    """Return sinusoidal position embeddings, (positions, size), with values from -1 to 1.

    Vaswani et al. 2017, section 3.5.
    """
    rates = torch.exp(torch.arange(0, size, 2) * (-math.log(10_000) / size))
    angles = torch.arange(positions)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class RotaryEmbedding(nn.Module):
    """Rotations of pairs of channels by angles proportional to the position (Su et al. 2021, section 3.2).

    Channel k of a head is paired with channel k + d/2. Cosines and sines come from a table: at position 8,191, an
    angle in bfloat16 would be meaningless. With dynamic scaling, angles depend on the length of the sequence, and are
    computed.
    """

    cos: Tensor
    sin: Tensor
    exponents: Tensor

    def __init__(self, config: RotaryConfig, head_size: int, positions: int) -> None:
        super().__init__()
        self.config = config
        self.head_size = head_size
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
        if config.dynamic is None:
            frequencies = 1.0 / config.base**exponents / config.divisor
            angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
            self.register_buffer("cos", angles.cos(), persistent=False)  # (positions, d/2)
            self.register_buffer("sin", angles.sin(), persistent=False)
        else:
            self.register_buffer("exponents", exponents, persistent=False)

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each (R, 1, T, d/2), for positions (R, T)."""
        if self.config.dynamic is None:
            return F.embedding(position_ids, self.cos).unsqueeze(1), F.embedding(position_ids, self.sin).unsqueeze(1)
        angles = (position_ids.unsqueeze(-1) * self._frequencies(position_ids, *self.config.dynamic)).unsqueeze(1)
        return angles.cos(), angles.sin()

    def _frequencies(self, position_ids: Tensor, factor: float, length: int) -> Tensor:
        """Return the frequencies (R, 1, d/2) of rows that hold one sequence, or sequences up to `length`."""
        tokens = (position_ids.amax(dim=1, keepdim=True) + 1).clamp(min=length).to(self.exponents.dtype)  # (R, 1)
        growth = (factor * tokens / length - (factor - 1)) ** (self.head_size / (self.head_size - 2))
        base = (self.config.base * growth).unsqueeze(-1)
        return 1.0 / base**self.exponents / self.config.divisor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs of channels of queries or keys (R, H, T, d)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RelativeBias(nn.Module):
    """A learned bias of the scores for each head and bucket of distances, as in T5 (Raffel et al. 2020, section 2.1).

    MPNet has 32 buckets: per direction, 8 for distances below 8, and 8 with logarithmic bounds up to 128.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(BUCKETS, heads))

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return the biases (R, H, T, T) for positions (R, T)."""
        offsets = position_ids.unsqueeze(1) - position_ids.unsqueeze(2)  # (R, T query, T key): key minus query
        return F.embedding(bucket(offsets), self.weight).permute(0, 3, 1, 2)


def bucket(offsets: Tensor) -> Tensor:
    """Return the bucket of each offset of a key from a query; later keys have the upper half of the buckets."""
    half = BUCKETS // 2
    distances = offsets.abs()
    octaves = torch.log(distances.clamp(min=1).float() / EXACT_BUCKETS) / math.log(MAX_DISTANCE / EXACT_BUCKETS)
    large = (EXACT_BUCKETS + (octaves * (half - EXACT_BUCKETS)).to(offsets.dtype)).clamp(max=half - 1)
    return torch.where(offsets > 0, half, 0) + torch.where(distances < EXACT_BUCKETS, distances, large)
