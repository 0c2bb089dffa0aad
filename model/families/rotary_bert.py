"""BERTs with rotary positions: Nomic BERT, GTE and jina-embeddings-v3."""

from typing import Any

from model.encoder import EncoderConfig, RotaryConfig
from model.families.family import (
    ROBERTA_CLASSIFIER,
    ConfigReader,
    Family,
    check_scaled_length,
    make_config,
    read_roberta_head,
    read_roberta_layers,
    read_rotary,
)
from model.heads.row_head import HeadLayout
from model.heads.vocabulary import VocabularyLayout
from model.source.published import CheckpointError

NAMES = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.token_type_embeddings": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "blocks": "layers",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.inner": "mlp.up_proj",
    "feed_forward.outer": "mlp.down_proj",
    "feed_forward_norm": "post_mlp_layernorm",
}
FUSED_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


# Nomic BERT (Nussbaum et al. 2024): gated feed-forward, and almost no biases.

NOMIC_RENAMES = (
    (r"^encoder\.layers\.", "layers."),
    (r"^emb_ln\.", "embeddings.LayerNorm."),
    (r"\.attn\.Wqkv\.", ".self_attn.Wqkv."),
    (r"\.attn\.out_proj\.", ".self_attn.o_proj."),
    (r"\.fc11\.", ".up_proj."),
    (r"\.fc12\.", ".gate_proj."),
    (r"\.fc2\.", ".down_proj."),
    (r"\.norm1\.", ".post_attention_layernorm."),
    (r"\.norm2\.", ".post_mlp_layernorm."),
)
"""Tensor names in the published checkpoints."""
NOMIC_PARTS: dict[str, Any] = {
    "attention_bias": False,
    "attention_output_bias": False,
    "gated": True,
    "feed_forward_bias": False,
    "feed_forward_output_bias": False,
}


def read_nomic(config: ConfigReader) -> EncoderConfig:
    """Return the configuration, from keys of transformers or of the published checkpoints."""
    return _read_published_nomic(config) if "n_embd" in config else _read_native_nomic(config)


def _read_native_nomic(config: ConfigReader) -> EncoderConfig:
    positions = config.size("max_position_embeddings", 2048)
    rotary = read_rotary(config, 1000.0, positions)
    hidden_size, heads = config.size("hidden_size", 768), config.size("num_attention_heads", 12)
    return make_config(
        config,
        rotary=rotary,
        vocab_size=config.size("vocab_size", 30_528),
        hidden_size=hidden_size,
        num_hidden_layers=config.size("num_hidden_layers", 12),
        num_attention_heads=heads,
        intermediate_size=config.size("intermediate_size", 3072),
        max_position_embeddings=positions if rotary.dynamic is None else int(positions * rotary.dynamic[0]),
        type_vocab_size=config.size("type_vocab_size", 2),
        hidden_act=config.activation("hidden_act", "silu"),
        head_size=config.size("head_dim", hidden_size // heads),
        **NOMIC_PARTS,
    )


def _read_published_nomic(config: ConfigReader) -> EncoderConfig:
    for key in (
        "prenorm", "parallel_block", "causal", "use_rms_norm", "rotary_emb_interleaved", "qkv_proj_bias",
        "mlp_fc1_bias", "mlp_fc2_bias",
    ):  # fmt: skip
        config.require(key, False)
    config.require("rotary_emb_fraction", 1.0)
    config.require("scale_attn_weights", True)
    config.require("activation_function", "swiglu")
    if "num_experts" in config and config.size("num_experts", least=0):
        raise CheckpointError("config.json: num_experts: expert layers are not supported. Use nomic-embed-text-v1.5.")
    config.check_heads("n_embd", "n_head")
    trained = config.size("max_trained_positions", 2048)
    factor = config.number("rotary_scaling_factor", 1.0)
    dynamic = None if factor == 1.0 else (factor, check_scaled_length(trained))
    return make_config(
        config,
        rotary=RotaryConfig(config.number("rotary_emb_base", 10_000.0), dynamic=dynamic),
        hidden_size=config.size("n_embd"),
        num_hidden_layers=config.size("n_layer"),
        num_attention_heads=config.size("n_head"),
        intermediate_size=config.size("n_inner"),
        max_position_embeddings=config.size("n_positions"),
        type_vocab_size=config.size("type_vocab_size", 2, least=0),
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        hidden_act="silu",
        **NOMIC_PARTS,
    )


def read_nomic_head(config: ConfigReader) -> VocabularyLayout:
    if "n_embd" in config:  # the published code uses SiLU beside "swiglu"
        activation, eps = "silu", config.number("layer_norm_epsilon", 1e-5)
    else:
        activation, eps = config.activation("hidden_act", "silu"), config.number("layer_norm_eps", 1e-12)
    transform = "cls.predictions.transform"
    layers = HeadLayout(None, f"{transform}.dense", activation, f"{transform}.layer_norm", eps)
    tied = config.flag("tie_word_embeddings", True)
    return VocabularyLayout(layers, "cls.predictions.decoder", tied, tied_bias="cls.predictions.bias")


NOMIC = Family(
    "nomic_bert",
    read_nomic,
    NAMES,
    ("", "nomic_bert.", "bert."),
    NOMIC_RENAMES,
    {"self_attn.Wqkv": FUSED_QKV},
    layers_keys=("num_hidden_layers", "n_layer"),
    masked_lm=read_nomic_head,
    code=("NomicBert",),
)


# GTE (Zhang et al. 2024): gated feed-forward. Published as model_type "new".

GTE_RENAMES = (
    (r"^encoder\.layer\.", "layers."),
    (r"^(layers\.\d+)\.attention\.", r"\1.self_attn."),
    (r"\.attn_ln\.", ".post_attention_layernorm."),
    (r"\.mlp_ln\.", ".post_mlp_layernorm."),
    (r"^lm_head\.norm\.", "lm_head.layer_norm."),
)
"""Tensor names in the published checkpoints, also written by transformers."""
GTE_FUSED = {"self_attn.qkv_proj": FUSED_QKV, "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj")}
GTE_DEFAULTS = {"gte": (160_000.0, 8192), "new": (10_000.0, 2048)}
"""The rotary base and the number of positions in transformers, and in the published code."""


def read_gte(config: ConfigReader) -> EncoderConfig:
    """Return the configuration, from keys of transformers or of the published checkpoints."""
    config.check_heads("hidden_size", "num_attention_heads")
    config.require("position_embedding_type", "rope")
    config.require("layer_norm_type", "layer_norm")
    for key in ("logn_attention_scale", "logn_attention_clip1"):
        config.require(key, False)
    base, positions = GTE_DEFAULTS[config.value("model_type", "gte")]
    positions = config.size("max_position_embeddings", positions)
    return make_config(
        config,
        rotary=_read_gte_rotary(config, base, positions),
        max_position_embeddings=positions,
        type_vocab_size=config.size("type_vocab_size", 1, least=0),
        gated=True,
        feed_forward_bias=False,
    )


def _read_gte_rotary(config: ConfigReader, base: float, positions: int) -> RotaryConfig:
    """Return the rotary position embeddings.

    In published files, `{"type": "ntk", "factor": s}` applies at every length: frequency k is `(s base) ** (-2k / d) *
    s ** (-2 / d)`.
    """
    scaling = config.value("rope_scaling", {})
    if scaling.get("type", scaling.get("rope_type")) != "ntk":
        return read_rotary(config, base, positions)
    if scaling.keys() - {"type", "rope_type", "factor", "mixed_b"} or scaling.get("mixed_b") is not None:
        raise CheckpointError(f"config.json: unsupported rope_scaling {scaling!r}. Supported: type and factor.")
    factor, base = float(scaling["factor"]), config.number("rope_theta", base)
    head_size = config.size("hidden_size") // config.size("num_attention_heads")
    return RotaryConfig(factor * base, divisor=factor ** (2 / head_size))


def read_gte_head(config: ConfigReader) -> VocabularyLayout:
    return VocabularyLayout(read_roberta_layers(config), "lm_head.decoder", config.flag("tie_word_embeddings", True))


GTES = tuple(
    Family(name, read_gte, NAMES, prefixes, GTE_RENAMES, GTE_FUSED, masked_lm=read_gte_head, code=("New", "Gte"))
    for name, prefixes in {"gte": ("", "gte.", "new."), "new": ("", "new.", "gte.")}.items()
)


# jina-embeddings-v3 (Sturua et al. 2024): XLM-RoBERTa with rotary positions.

JINA_NAMES = NAMES | {"feed_forward.inner": "mlp.fc1", "feed_forward.outer": "mlp.fc2"}
JINA_RENAMES = (
    (r"^encoder\.layers\.", "layers."),
    (r"^emb_ln\.", "embeddings.LayerNorm."),
    (r"\.mixer\.Wqkv\.", ".self_attn.Wqkv."),
    (r"\.mixer\.out_proj\.", ".self_attn.o_proj."),
    (r"\.norm1\.", ".post_attention_layernorm."),
    (r"\.norm2\.", ".post_mlp_layernorm."),
)
"""Tensor names in the published checkpoint."""


def read_jina(config: ConfigReader) -> EncoderConfig:
    """Return the configuration, from keys of transformers or of the published checkpoint."""
    config.check_heads("hidden_size", "num_attention_heads")
    config.require("position_embedding_type", "rotary")
    positions = config.size("max_position_embeddings", 8194)
    # Published checkpoints have the model_type of XLM-RoBERTa, and their code has a different default.
    default = 10_000.0 if config.value("model_type", "") == "xlm-roberta" else 20_000.0
    base = config.number("rotary_emb_base", default)
    return make_config(
        config,
        rotary=read_rotary(config, base, positions),
        max_position_embeddings=positions,
        type_vocab_size=config.size("type_vocab_size", 1),
        norm_eps=config.number("layer_norm_eps", 1e-5),
    )


JINA = Family(
    "jina_embeddings_v3",
    read_jina,
    JINA_NAMES,
    ("", "roberta."),
    JINA_RENAMES,
    {"self_attn.Wqkv": FUSED_QKV},
    classifier=ROBERTA_CLASSIFIER,
    masked_lm=read_roberta_head,
    code=("XLMRoberta",),
)

FAMILIES = (NOMIC, *GTES, JINA)
