"""Qwen3 (Yang et al. 2025), the base of Qwen3-Embedding: causal, with norms of queries and keys."""

from model.encoder import EncoderConfig, LayerConfig
from model.families.family import CAUSAL_CLASSIFIER, CAUSAL_TOKEN_CLASSIFIER, ConfigReader, Family
from model.families.modernbert import check_layer_types
from model.families.rotary import NAMES, read_rotary


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration. `is_causal` false makes attention bidirectional."""
    heads, layers = config.size("num_attention_heads"), config.size("num_hidden_layers")
    positions = config.size("max_position_embeddings", 32_768)
    rotary = read_rotary(config, 10_000.0, positions)
    windows, bias = config.flag("use_sliding_window"), config.flag("attention_bias")
    first = config.size("max_window_layers", 28, least=0)
    types = config.value(
        "layer_types",
        ["sliding_attention" if windows and index >= first else "full_attention" for index in range(layers)],
    )
    check_layer_types(types, layers)
    window = config.size("sliding_window", 4096) - 1  # the key distance is less than the size
    return EncoderConfig(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("hidden_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=config.size("intermediate_size"),
        max_position_embeddings=positions,
        type_vocab_size=0,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        hidden_act=config.activation("hidden_act", "silu"),
        causal=config.flag("is_causal", True),
        block="pre",
        norm="rms_norm",
        position_table=False,
        embedding_norm=False,
        num_key_value_heads=config.size("num_key_value_heads", heads),
        head_size=config.size("head_dim", 128),
        attention_bias=bias,
        query_key_norm=True,
        gated=True,
        feed_forward_bias=False,
        feed_forward_output_bias=False,
        layers=tuple(
            LayerConfig(window if windows and kind == "sliding_attention" else None, rotary) for kind in types
        ),
    )


FAMILIES = (
    Family(
        "qwen3", read_config, NAMES, ("", "model."), classifier=CAUSAL_CLASSIFIER,
        token_classifier=CAUSAL_TOKEN_CLASSIFIER,
    ),
)  # fmt: skip
