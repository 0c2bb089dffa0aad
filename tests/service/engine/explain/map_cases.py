"""Layers of a random encoder for the attention map tests."""

from typing import Any

import pytest
import torch
from numpy.typing import NDArray

from model.encoder import Block
from service.engine.explain.maps import BlockAttention, BlockWeights
from tests.random_encoders import (
    block_weights,
    iter_blocks,
    random_encoder,
    random_ids,
    run,
)

Floats = NDArray[Any]
Layer = tuple[BlockAttention, Block, Floats, BlockWeights, Floats]
TOKENS, HEADS, LAYERS = 19, 4, 3
ALL_HEADS = tuple(range(HEADS))
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["float32", "float64"]
)


ATTENTION = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def layers_of_random_encoder(dtype: torch.dtype, scale: float = 0.3, *, causal: bool = False) -> list[Layer]:
    """Return per layer: the attention, the PyTorch block, its input, its weights, and PyTorch's attention maps."""
    encoder = random_encoder(dtype, scale=scale, causal=causal)
    outputs = run(encoder, random_ids(TOKENS))
    return [
        (BlockAttention(hidden, weights), block, hidden, weights, probs)
        for hidden, weights, block, probs in zip(
            outputs.hidden_states[:-1], block_weights(encoder), iter_blocks(encoder), outputs.probs, strict=True
        )
    ]
