"""Layers of random encoders for the attention map tests."""

from typing import Any

import pytest
import torch
from numpy.typing import NDArray

from service.operations.maps import LayerMaps
from tests.random_encoders import PARTS, TorchLayer, random_encoder, random_ids, run, torch_layers

Floats = NDArray[Any]
Case = tuple[LayerMaps, TorchLayer, Floats, Floats]
TOKENS, HEADS, LAYERS = 19, 4, 3
ALL_HEADS = tuple(range(HEADS))
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["float32", "float64"]
)
EACH_PART = pytest.mark.parametrize("parts", PARTS)


def layers_of_random_encoder(dtype: torch.dtype, scale: float = 0.3, *, parts: str = "bert") -> list[Case]:
    """Return per layer: its maps, the layer, its input, and PyTorch's attention probabilities in the encoder."""
    encoder = random_encoder(dtype, scale=scale, parts=parts)
    outputs = run(encoder, random_ids(TOKENS))
    return [
        (layer.maps(hidden), layer, hidden, probs)
        for hidden, layer, probs in zip(outputs.hidden_states[:-1], torch_layers(encoder), outputs.probs, strict=True)
    ]
