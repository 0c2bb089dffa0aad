"""Rotary position embeddings in config.json, as transformers names them, and tensor names derived from Llama."""

from collections.abc import Mapping
from typing import Any

from model.encoder import RotaryConfig
from model.families.family import ConfigReader
from model.source.published import CheckpointError

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
    # transformers replaces all of `rope_parameters` with `rope_scaling`, including the base.
    path = "rope_scaling" if scaling else "rope_parameters"
    return rotary_from({"rope_theta": base} | (scaling or parameters), positions, path)


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


def rotary_from(parameters: Mapping[str, Any], positions: int, path: str) -> RotaryConfig:
    """Return rotary position embeddings of the types "default", "linear" and "dynamic".

    Args:
        parameters: The values of `path`, with the base as `rope_theta`.
        positions: The length beyond which dynamic scaling applies.
        path: The key of config.json that errors name.

    Raises:
        CheckpointError: unsupported type or key.
    """
    type_key = "type" if "type" in parameters and "rope_type" not in parameters else "rope_type"
    kind = parameters.get(type_key, "default")
    if kind not in ("default", "linear", "dynamic"):
        raise CheckpointError(
            f"config.json: {path}.{type_key}: unsupported ({kind!r}). "
            'Use a model with "default", "linear" or "dynamic".'
        )
    if unknown := sorted(parameters.keys() - KEYS):
        value = parameters[unknown[0]]
        raise CheckpointError(f"config.json: {path}.{unknown[0]}: unsupported ({value!r}). Use a model without it.")
    partial = parameters.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise CheckpointError(
            f"config.json: {path}.partial_rotary_factor: unsupported ({partial!r}). Use a model with 1.0."
        )
    base, factor = float(parameters["rope_theta"]), float(parameters.get("factor", 1.0))
    if kind == "dynamic":
        length = int(parameters.get("original_max_position_embeddings", positions))
        return RotaryConfig(base, dynamic=(factor, check_scaled_length(length)))
    return RotaryConfig(base, divisor=factor if kind == "linear" else 1.0)


NAMES = {
    "embeddings.word_embeddings": "embed_tokens",
    "blocks": "layers",
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.inner": "mlp.up_proj",
    "feed_forward.outer": "mlp.down_proj",
    "norm": "norm",
}
