"""Keys of rotary position embeddings in config.json, as transformers names them."""

from collections.abc import Mapping
from typing import Any

from model.checkpoint_files import CheckpointError
from model.encoder import RotaryConfig
from model.families.config_reader import ConfigReader

SHARED_ROW_TOKENS = 512
"""Rows of more tokens hold one sequence."""
KEYS = {"rope_type", "type", "rope_theta", "factor", "partial_rotary_factor", "original_max_position_embeddings"}


def read_rotary(config: ConfigReader, default_base: float, positions: int) -> RotaryConfig:
    """Return the rotary position embeddings of a model with one kind of layer.

    Args:
        config: config.json, with `rope_parameters`, or `rope_theta` and `rope_scaling` of older files.
        default_base: The base that transformers applies to this family.
        positions: The length beyond which dynamic scaling applies.
    """
    base = config.number("rope_theta", default_base)
    scaling, parameters = config.value("rope_scaling", {}), config.value("rope_parameters", {})
    return rotary_from({"rope_theta": base, **scaling, **parameters}, positions)


def check_scaled_length(length: int) -> int:
    """Return the length beyond which dynamic scaling applies. Raises CheckpointError if shorter sequences share rows.

    The scaling depends on the length of a sequence, but the encoder only knows the length of a row.
    """
    if length < SHARED_ROW_TOKENS:
        raise CheckpointError(
            f"config.json: dynamic scaling applies from {length} tokens on (minimum {SHARED_ROW_TOKENS}). "
            "The model is not supported."
        )
    return length


def rotary_from(parameters: Mapping[str, Any], positions: int) -> RotaryConfig:
    """Return rotary position embeddings of the types "default", "linear" and "dynamic". Raises CheckpointError."""
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    unknown = sorted(parameters.keys() - KEYS)
    if kind not in ("default", "linear", "dynamic") or unknown or parameters.get("partial_rotary_factor", 1.0) != 1.0:
        found = f"rope_type {kind!r}" + (f" with {unknown[0]}" if unknown else "")
        raise CheckpointError(f'config.json: unsupported {found}. Supported: "default", "linear" and "dynamic".')
    base, factor = float(parameters["rope_theta"]), float(parameters.get("factor", 1.0))
    if kind == "dynamic":
        length = int(parameters.get("original_max_position_embeddings", positions))
        return RotaryConfig(base, dynamic=(factor, check_scaled_length(length)))
    return RotaryConfig(base, divisor=factor if kind == "linear" else 1.0)
