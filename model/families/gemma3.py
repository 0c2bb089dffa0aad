"""Gemma 3 (Gemma Team 2025). EmbeddingGemma is a bidirectional version of it."""

from model.encoder import EncoderConfig, LayerConfig
from model.families import rotary as llama_names
from model.families.family import CAUSAL_CLASSIFIER, CAUSAL_TOKEN_CLASSIFIER, ConfigReader, Family
from model.families.modernbert import check_layer_types
from model.families.rotary import rotary_from

NAMES = llama_names.NAMES | {
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
BASES = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
"""Per type of layer, the key of the rotary base in files without `rope_parameters`, and the default of transformers."""


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration. `sliding_window` is a full width if attention is bidirectional."""
    hidden_size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    layers, positions = config.size("num_hidden_layers"), config.size("max_position_embeddings", 131_072)
    bidirectional = config.flag("use_bidirectional_attention")
    sliding = config.size("sliding_window", 4096)
    window = sliding // 2 if bidirectional else sliding - 1
    every = config.size("_sliding_window_pattern", config.size("sliding_window_pattern", 6))
    types = config.value(
        "layer_types", ["sliding_attention" if (index + 1) % every else "full_attention" for index in range(layers)]
    )
    check_layer_types(types, layers)
    parameters, scaling = config.value("rope_parameters", {}), config.value("rope_scaling", {})
    rotary = {}
    for kind, (key, base) in BASES.items():
        # As in transformers, `rope_scaling` overrides `rope_parameters` of the global layers.
        override = scaling if kind == "full_attention" else {}
        values = {"rope_theta": config.number(key, base), **(parameters.get(kind) or {}), **override}
        rotary[kind] = rotary_from(values, positions, "rope_scaling" if override else f"rope_parameters.{kind}")
    return EncoderConfig(
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=config.size("intermediate_size"),
        max_position_embeddings=positions,
        type_vocab_size=0,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        hidden_act=config.activation("hidden_activation", "gelu_pytorch_tanh"),
        causal=not bidirectional,
        block="sandwich",
        norm="rms_norm",
        position_table=False,
        embedding_norm=False,
        embedding_scale=hidden_size**0.5,
        num_key_value_heads=config.size("num_key_value_heads", 4),
        head_size=config.size("head_dim", 256),
        attention_scale=config.number("query_pre_attn_scalar", 256) ** -0.5,
        attention_bias=config.flag("attention_bias"),
        query_key_norm=True,
        gated=True,
        feed_forward_bias=False,
        feed_forward_output_bias=False,
        layers=tuple(LayerConfig(window if kind == "sliding_attention" else None, rotary[kind]) for kind in types),
    )


FAMILIES = (
    Family(
        "gemma3_text", read_config, NAMES, ("", "model."), norm_offset=1.0, classifier=CAUSAL_CLASSIFIER,
        token_classifier=CAUSAL_TOKEN_CLASSIFIER,
    ),
)  # fmt: skip
