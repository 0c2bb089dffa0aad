"""Attention maps against interventions on the encoder: zeroed values."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.encoder import SelfAttention
from tests.random_encoders import (
    capture_outputs,
    replace_outputs,
)
from tests.service.engine.explain.map_cases import ALL_HEADS, EACH_PART, TOKENS, layers_of_random_encoder

# A change in a vector inherits the whole vector's rounding error. Even maps avoid changes that small.
EVEN_SCALE = 0.15
INTERVENTION_PRECISIONS = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)], ids=["float32", "float64"]
)


def zero_value(token: int, heads: Sequence[int], width: int) -> Any:
    """Return a hook that zeroes one token's value vectors in some heads; values: (1, T, D)."""

    def change(values: Tensor) -> Tensor:
        values = values.clone()
        for head in heads:
            values[0, token, head * width : (head + 1) * width] = 0
        return values

    return change


def whole_groups(attention: SelfAttention, heads: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the key/value heads of query heads, and all query heads that share them."""
    size = attention.num_heads // attention.num_key_value_heads
    groups = list(dict.fromkeys(head // size for head in heads))
    return groups, [group * size + member for group in groups for member in range(size)]


@EACH_PART
@INTERVENTION_PRECISIONS
@pytest.mark.parametrize("heads", [None, (2,), (3, 0)], ids=["all heads", "one head", "two heads"])
def test_norm_is_the_change_of_the_output_without_the_value(
    dtype: torch.dtype, tolerance: float, heads: tuple[int, ...] | None, parts: str
) -> None:
    """Zeroes a token's value vector in the heads, and runs the attention again."""
    for _, layer, hidden, _ in layers_of_random_encoder(dtype, EVEN_SCALE, parts=parts):
        attention = layer.block.attention
        groups, chosen = whole_groups(attention, heads or ALL_HEADS)
        block, norm = layer.block, layer.maps(hidden, chosen).norm
        with capture_outputs(block.attention.output) as before:
            layer.run(hidden)
        change = np.empty_like(norm)
        for token in range(TOKENS):
            hook = zero_value(token, groups, attention.head_size)
            with replace_outputs(block.attention.value, hook), capture_outputs(block.attention.output) as after:
                layer.run(hidden)
            change[:, token] = np.linalg.norm(before[0] - after[0], axis=-1)
        np.testing.assert_allclose(norm, change, rtol=tolerance)
