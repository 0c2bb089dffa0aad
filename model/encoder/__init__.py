"""The transformer encoder, composed of one part per module.

Inputs are *packed*: a row holds several sequences end to end, and `sequence_ids` gives the sequence of each token.
Tokens attend only within their sequence.

Shapes: R rows, T tokens per row, D hidden size, H attention heads, G key/value heads, d head size, L layers,
E embedding size.
"""

from model.encoder.attention import attention_mask
from model.encoder.config import (
    ACTIVATIONS,
    DisentangledConfig,
    EncoderConfig,
    LayerConfig,
    RelativeConfig,
    RotaryConfig,
)
from model.encoder.encoder import Encoder, HiddenStatesEncoder, attention_options
from model.encoder.layers import Block, DistanceEmbeddings, RMSNorm, SelfAttention, rotate, sinusoids

__all__ = [
    "ACTIVATIONS",
    "Block",
    "DisentangledConfig",
    "DistanceEmbeddings",
    "Encoder",
    "EncoderConfig",
    "HiddenStatesEncoder",
    "LayerConfig",
    "RMSNorm",
    "RelativeConfig",
    "RotaryConfig",
    "SelfAttention",
    "attention_mask",
    "attention_options",
    "rotate",
    "sinusoids",
]
