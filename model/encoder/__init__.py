"""The transformer encoder, composed of one part per module.

Inputs are *packed*: a row holds several sequences end to end, and `sequence_ids` gives the sequence of each token.
Tokens attend only within their sequence.

Shapes: R rows, T tokens per row, D hidden size, H attention heads, G key/value heads, d head size, L layers,
E embedding size.
"""

from model.encoder.activations import ACTIVATIONS
from model.encoder.attention import SelfAttention, attention_mask
from model.encoder.block import Block, PostNormBlock, PreNormBlock, SandwichBlock
from model.encoder.config import EncoderConfig, LayerConfig, RotaryConfig
from model.encoder.encoder import Encoder, EncoderOutput, HiddenStatesEncoder
from model.encoder.layer_attention import LayerAttention
from model.encoder.norms import RMSNorm
from model.encoder.positions import sinusoids

__all__ = [
    "ACTIVATIONS",
    "Block",
    "Encoder",
    "EncoderConfig",
    "EncoderOutput",
    "HiddenStatesEncoder",
    "LayerAttention",
    "LayerConfig",
    "PostNormBlock",
    "PreNormBlock",
    "RMSNorm",
    "RotaryConfig",
    "SandwichBlock",
    "SelfAttention",
    "attention_mask",
    "sinusoids",
]
