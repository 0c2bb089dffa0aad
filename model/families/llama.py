"""Llama (Touvron et al. 2023) and its derivatives: Mistral, Qwen2, Qwen3, Gemma 3 and EuroBERT.

Their blocks use RMSNorm, rotary positions, grouped queries and gated feed-forward networks.
"""

from typing import Any

from model.artifact.manifest import ClassifierPooling
from model.encoder import EncoderConfig, LayerConfig
from model.families.family import (
    CAUSAL_CLASSIFIER,
    ConfigReader,
    Family,
    make_config,
    read_layer_types,
    read_rotary,
    rotary_from,
)
from model.heads.classifiers import ClassifierLayout
from model.heads.row_head import HeadLayout
from model.heads.vocabulary import VocabularyLayout

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
PARTS: dict[str, Any] = {
    "type_vocab_size": 0,
    "block": "pre",
    "norm": "rms_norm",
    "position_table": False,
    "embedding_norm": False,
    "gated": True,
    "feed_forward_bias": False,
    "feed_forward_output_bias": False,
}


def _make_config(
    config: ConfigReader, *, norm_eps: float, head_size: int, key_value_heads: int | None = None, **parts: Any
) -> EncoderConfig:
    """Return an `EncoderConfig` from `PARTS`, the keys shared by the families, and `parts`."""
    key_value_heads = key_value_heads or config.size("num_attention_heads")
    shared = {
        "norm_eps": config.number("rms_norm_eps", norm_eps),
        "num_key_value_heads": config.size("num_key_value_heads", key_value_heads),
        "head_size": config.size("head_dim", head_size),
    }
    if "attention_bias" not in parts:
        shared["attention_bias"] = shared["attention_output_bias"] = config.flag("attention_bias")
    return make_config(config, **PARTS | shared | parts)


def _read_qwen(config: ConfigReader, **parts: Any) -> EncoderConfig:
    """Return the configuration of Qwen2 or Qwen3, whose last layers may use windows."""
    positions, causal = config.size("max_position_embeddings", 32_768), config.flag("is_causal", True)
    rotary, window = read_rotary(config, 10_000.0, positions), _read_window(config, causal=causal)
    windows, first = config.flag("use_sliding_window"), config.size("max_window_layers", 28, least=0)
    types = read_layer_types(config, config.size("num_hidden_layers"), lambda index: windows and index >= first)
    return _make_config(
        config,
        norm_eps=1e-6,
        max_position_embeddings=positions,
        hidden_act=config.activation("hidden_act", "silu"),
        causal=causal,
        layers=tuple(
            LayerConfig(window if windows and kind == "sliding_attention" else None, rotary) for kind in types
        ),
        **parts,
    )


def _read_window(config: ConfigReader, *, causal: bool) -> int:
    """Return the maximum distance of a key: less than the window size in a causal model, else the window size."""
    return config.size("sliding_window", 4096) - (1 if causal else 0)


# EuroBERT (Boizard et al. 2025): bidirectional.

EUROBERT_POOLINGS: dict[str, ClassifierPooling] = {"bos": "cls", "mean": "mean", "late": "mean_logits"}


def read_eurobert(config: ConfigReader) -> EncoderConfig:
    config.check_heads("hidden_size", "num_attention_heads")
    config.require("is_causal", False)
    config.value("clf_pooling", "late")
    return _read_llama(config, positions=8192, norm_eps=1e-5, causal=False)


def _read_llama(config: ConfigReader, *, positions: int, norm_eps: float, causal: bool) -> EncoderConfig:
    """Return the configuration of Llama or EuroBERT; `positions` and `norm_eps` are defaults."""
    positions, bias = config.size("max_position_embeddings", positions), config.flag("mlp_bias")
    return _make_config(
        config,
        rotary=read_rotary(config, 10_000.0, positions),
        norm_eps=norm_eps,
        head_size=_split_heads(config),
        max_position_embeddings=positions,
        hidden_act=config.activation("hidden_act", "silu"),
        feed_forward_bias=bias,
        feed_forward_output_bias=bias,
        causal=causal,
    )


def _split_heads(config: ConfigReader) -> int:
    """Return the head size for files without `head_dim`."""
    return config.size("hidden_size") // config.size("num_attention_heads")


def read_eurobert_classifier(config: ConfigReader) -> ClassifierLayout:
    """Return the classifier. Earlier releases call the key `clf_pooling`."""
    key = "classifier_pooling" if "classifier_pooling" in config else "clf_pooling"
    return ClassifierLayout(HeadLayout("classifier", "dense", "gelu"), config.choice(key, EUROBERT_POOLINGS, "late"))


def read_eurobert_head(config: ConfigReader) -> VocabularyLayout:
    """Return the masked-LM head, which consists only of the projection."""
    tied = config.flag("tie_word_embeddings")
    return VocabularyLayout(HeadLayout(), "lm_head", tied, has_bias=config.flag("mlp_bias"))


EUROBERT = Family(
    "eurobert",
    read_eurobert,
    NAMES,
    ("", "model."),
    classifier=read_eurobert_classifier,
    masked_lm=read_eurobert_head,
    code=("EuroBert",),
)


# Llama: if `is_causal` is false, attention is bidirectional, here and in the families below.


def read_llama(config: ConfigReader) -> EncoderConfig:
    config.check_heads("hidden_size", "num_attention_heads")
    return _read_llama(config, positions=2048, norm_eps=1e-6, causal=config.flag("is_causal", True))


def read_token_classifier(config: ConfigReader) -> HeadLayout:
    return HeadLayout("score", unbiased=() if config.flag("token_classification_bias", True) else ("score",))


CAUSAL_HEADS: dict[str, Any] = {"classifier": CAUSAL_CLASSIFIER, "token_classifier": read_token_classifier}
LLAMA = Family("llama", read_llama, NAMES, ("", "model."), **CAUSAL_HEADS)


# Mistral (Jiang et al. 2023), the base of e5-mistral: windows in all layers, or in none if `sliding_window` is null.
# With `layer_types`, transformers reads the file as Ministral, whose layers may differ.


def read_mistral(config: ConfigReader) -> EncoderConfig:
    positions, causal = config.size("max_position_embeddings", 131_072), config.flag("is_causal", True)
    window = None if config.is_null("sliding_window") else _read_window(config, causal=causal)
    rotary = read_rotary(config, 10_000.0, positions)
    types = read_layer_types(config, config.size("num_hidden_layers"), lambda index: window is not None)
    return _make_config(
        config,
        norm_eps=1e-6,
        head_size=_split_heads(config),
        key_value_heads=None if config.is_null("num_key_value_heads") else 8,
        max_position_embeddings=positions,
        hidden_act=config.activation("hidden_act", "silu"),
        causal=causal,
        attention_bias=False,
        attention_output_bias=False,
        layers=tuple(LayerConfig(window if kind == "sliding_attention" else None, rotary) for kind in types),
    )


MISTRAL = Family("mistral", read_mistral, NAMES, ("", "model."), **CAUSAL_HEADS)


# Qwen2 (Yang et al. 2024), the base of gte-Qwen2: biases for queries, keys and values.


def read_qwen2(config: ConfigReader) -> EncoderConfig:
    return _read_qwen(
        config,
        head_size=_split_heads(config),
        key_value_heads=None if config.is_null("num_key_value_heads") else 32,
        attention_bias=True,
        attention_output_bias=False,
    )


# gte-Qwen2's custom code is bidirectional by default.
QWEN2 = Family("qwen2", read_qwen2, NAMES, ("", "model."), code=("Qwen2",), code_keys=("is_causal",), **CAUSAL_HEADS)


# Qwen3 (Yang et al. 2025), the base of Qwen3-Embedding: causal, with query and key norms.


def read_qwen3(config: ConfigReader) -> EncoderConfig:
    return _read_qwen(config, head_size=128, query_key_norm=True)


QWEN3 = Family("qwen3", read_qwen3, NAMES, ("", "model."), **CAUSAL_HEADS)


# Gemma 3 (Gemma Team 2025): norms before and after each part, and sliding windows in most layers. EmbeddingGemma is a
# bidirectional version.

GEMMA3_NAMES = NAMES | {
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
GEMMA3_BASES = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
"""Per layer type, the key of the rotary base in files without `rope_parameters`, and transformers' default."""


def read_gemma3(config: ConfigReader) -> EncoderConfig:
    """Return the configuration. In bidirectional models, `sliding_window` is the full window width."""
    hidden_size, layers = config.size("hidden_size"), config.size("num_hidden_layers")
    positions = config.size("max_position_embeddings", 131_072)
    bidirectional, sliding = config.flag("use_bidirectional_attention"), config.size("sliding_window", 4096)
    window = sliding // 2 if bidirectional else sliding - 1
    every = config.size("sliding_window_pattern", 6)
    types = read_layer_types(config, layers, lambda index: (index + 1) % every > 0)
    config.require_causal()
    parameters = ConfigReader(config.mapping("rope_parameters"), "rope_parameters")
    scaling = config.mapping("rope_scaling")
    rotary = {}
    for kind, (key, base) in GEMMA3_BASES.items():
        # As in transformers, `rope_scaling` overrides `rope_parameters` of the global layers.
        override = scaling if kind == "full_attention" else {}
        values = {"rope_theta": config.number(key, base), **parameters.mapping(kind), **override}
        rotary[kind] = rotary_from(values, positions, "rope_scaling" if override else f"rope_parameters.{kind}")
    return _make_config(
        config,
        norm_eps=1e-6,
        head_size=256,
        key_value_heads=4,
        max_position_embeddings=positions,
        hidden_act=config.activation("hidden_activation", "gelu_pytorch_tanh"),
        causal=not bidirectional,
        block="sandwich",
        embedding_scale=hidden_size**0.5,
        attention_scale=config.number("query_pre_attn_scalar", 256) ** -0.5,
        query_key_norm=True,
        layers=tuple(LayerConfig(window if kind == "sliding_attention" else None, rotary[kind]) for kind in types),
    )


GEMMA3 = Family(
    "gemma3_text",
    read_gemma3,
    GEMMA3_NAMES,
    ("", "model."),
    norm_offset=1.0,
    **CAUSAL_HEADS,
)

FAMILIES = (EUROBERT, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3)
