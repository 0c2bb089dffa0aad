"""Nomic BERT (Nussbaum et al. 2024): BERT with rotary positions and gated feed-forward, almost without biases."""

from model.encoder import EncoderConfig, LayerConfig, RotaryConfig
from model.families.family import ConfigReader, Family
from model.families.rotary import check_scaled_length, read_rotary
from model.heads import HeadLayout, VocabularyLayout
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
RENAMES = (
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
"""Names of the published checkpoints."""
FUSED = {"self_attn.Wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")}


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration from the keys of transformers or of the published checkpoints."""
    return _read_published(config) if "n_embd" in config else _read_native(config)


def _read_native(config: ConfigReader) -> EncoderConfig:
    positions = config.size("max_position_embeddings", 2048)
    rotary = read_rotary(config, 1000.0, positions)
    hidden_size, heads = config.size("hidden_size", 768), config.size("num_attention_heads", 12)
    return EncoderConfig(
        vocab_size=config.size("vocab_size", 30_528),
        hidden_size=hidden_size,
        num_hidden_layers=config.size("num_hidden_layers", 12),
        num_attention_heads=heads,
        intermediate_size=config.size("intermediate_size", 3072),
        max_position_embeddings=positions if rotary.dynamic is None else int(positions * rotary.dynamic[0]),
        type_vocab_size=config.size("type_vocab_size", 2),
        norm_eps=config.number("layer_norm_eps", 1e-12),
        hidden_act=config.activation("hidden_act", "silu"),
        head_size=config.size("head_dim", hidden_size // heads),
        position_table=False,
        attention_bias=False,
        gated=True,
        feed_forward_bias=False,
        feed_forward_output_bias=False,
        layers=(LayerConfig(rotary=rotary),) * config.size("num_hidden_layers", 12),
    )


def _read_published(config: ConfigReader) -> EncoderConfig:
    for key in ("prenorm", "parallel_block", "causal", "use_rms_norm", "rotary_emb_interleaved", "qkv_proj_bias"):
        config.require(key, False)
    for key in ("mlp_fc1_bias", "mlp_fc2_bias"):
        config.require(key, False)
    config.require("rotary_emb_fraction", 1.0)
    config.require("scale_attn_weights", True)
    config.require("activation_function", "swiglu")
    if "num_experts" in config and config.size("num_experts", least=0):
        raise CheckpointError("config.json: num_experts: expert layers are not supported. Use nomic-embed-text-v1.5.")
    config.check_heads("n_embd", "n_head")
    layers, trained = config.size("n_layer"), config.size("max_trained_positions", 2048)
    factor = config.number("rotary_scaling_factor", 1.0)
    rotary = RotaryConfig(
        config.number("rotary_emb_base", 10_000.0),
        dynamic=None if factor == 1.0 else (factor, check_scaled_length(trained)),
    )
    return EncoderConfig(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("n_embd"),
        num_hidden_layers=layers,
        num_attention_heads=config.size("n_head"),
        intermediate_size=config.size("n_inner"),
        max_position_embeddings=config.size("n_positions"),
        type_vocab_size=config.size("type_vocab_size", 2, least=0),
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        hidden_act="silu",
        position_table=False,
        attention_bias=False,
        gated=True,
        feed_forward_bias=False,
        feed_forward_output_bias=False,
        layers=(LayerConfig(rotary=rotary),) * layers,
    )


def read_masked_lm(config: ConfigReader) -> VocabularyLayout:
    """Return the masked-LM head."""
    key = "layer_norm_epsilon" if "n_embd" in config else "layer_norm_eps"
    activation = "gelu" if "n_embd" in config else config.activation("hidden_act", "silu")
    transform = "cls.predictions.transform"
    layers = HeadLayout(None, f"{transform}.dense", activation, f"{transform}.layer_norm", config.number(key, 1e-12))
    tied = config.flag("tie_word_embeddings", True)
    return VocabularyLayout(layers, "cls.predictions.decoder", tied, tied_bias="cls.predictions.bias")


FAMILIES = (
    Family(
        "nomic_bert", read_config, NAMES, ("", "nomic_bert.", "bert."), RENAMES, FUSED,
        layers_keys=("num_hidden_layers", "n_layer"), masked_lm=read_masked_lm,
    ),
)  # fmt: skip
