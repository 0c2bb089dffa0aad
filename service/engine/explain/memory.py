"""The memory of explaining one input, estimated before inference."""

import math

from model.artifact.manifest import Architecture

FLOAT_BYTES = 4
MAP_TENSORS = 3
"""Tensors of size (H, T, T) that exist at once while the maps of one layer are computed."""


def explain_bytes(architecture: Architecture, tokens: int, *, maps: bool) -> int:
    """Return the bytes of the intermediate results for an input of T tokens.

    These are the hidden states, float32 (L+1, T, D), and with `maps` the intermediate results of one layer.
    """
    linear, square = _coefficients(architecture, maps=maps)
    return tokens * (linear + square * tokens)


def max_explained_tokens(architecture: Architecture, limit: int, *, maps: bool) -> int:
    """Return the number of tokens of the longest input whose intermediate results fit in `limit` bytes."""
    linear, square = _coefficients(architecture, maps=maps)
    if not square:
        return limit // linear
    return (math.isqrt(linear * linear + 4 * square * limit) - linear) // (2 * square)


def _coefficients(architecture: Architecture, *, maps: bool) -> tuple[int, int]:
    """Return the bytes per token and per pair of tokens."""
    hidden_states = (architecture.num_hidden_layers + 1) * architecture.hidden_size
    map_values = MAP_TENSORS * architecture.num_attention_heads if maps else 0
    return FLOAT_BYTES * hidden_states, FLOAT_BYTES * map_values
