"""GTE (Zhang et al. 2024): BERT with rotary positions and gated feed-forward. Published as model_type "new"."""

from model.encoder import EncoderConfig, LayerConfig, RotaryConfig
from model.families import nomic_bert
from model.families.family import ConfigReader, Family, read_roberta_layers
from model.families.rotary import read_rotary
from model.heads import VocabularyLayout
from model.source.published import CheckpointError

RENAMES = (
    (r"^encoder\.layer\.", "layers."),
    (r"^(layers\.\d+)\.attention\.", r"\1.self_attn."),
    (r"\.attn_ln\.", ".post_attention_layernorm."),
    (r"\.mlp_ln\.", ".post_mlp_layernorm."),
    (r"^lm_head\.norm\.", "lm_head.layer_norm."),
)
"""Names of the published checkpoints, which transformers saves too."""
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj"),
}
DEFAULT_BASE = 160_000.0


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration from the keys of transformers or of the published checkpoints."""
    config.check_heads("hidden_size", "num_attention_heads")
    config.require("position_embedding_type", "rope")
    config.require("layer_norm_type", "layer_norm")
    for key in ("logn_attention_scale", "logn_attention_clip1"):
        config.require(key, False)
    layers, positions = config.size("num_hidden_layers"), config.size("max_position_embeddings", 8192)
    rotary = _read_rotary(config, positions)
    return EncoderConfig(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("hidden_size"),
        num_hidden_layers=layers,
        num_attention_heads=config.size("num_attention_heads"),
        intermediate_size=config.size("intermediate_size"),
        max_position_embeddings=positions,
        type_vocab_size=config.size("type_vocab_size", 1, least=0),
        norm_eps=config.number("layer_norm_eps", 1e-12),
        hidden_act=config.activation("hidden_act", "gelu"),
        position_table=False,
        gated=True,
        feed_forward_bias=False,
        layers=(LayerConfig(rotary=rotary),) * layers,
    )


def _read_rotary(config: ConfigReader, positions: int) -> RotaryConfig:
    """Return the rotary position embeddings.

    Published files scale with `{"type": "ntk", "factor": s}` at every length: frequency k is
    `(s base) ** (-2k / d) * s ** (-2 / d)`.
    """
    scaling = config.value("rope_scaling", {})
    if scaling.get("type", scaling.get("rope_type")) != "ntk":
        return read_rotary(config, DEFAULT_BASE, positions)
    if scaling.keys() - {"type", "rope_type", "factor", "mixed_b"} or scaling.get("mixed_b") is not None:
        raise CheckpointError(f"config.json: unsupported rope_scaling {scaling!r}. Supported: type and factor.")
    factor, base = float(scaling["factor"]), config.number("rope_theta", DEFAULT_BASE)
    head_size = config.size("hidden_size") // config.size("num_attention_heads")
    return RotaryConfig(factor * base, divisor=factor ** (2 / head_size))


def read_masked_lm(config: ConfigReader) -> VocabularyLayout:
    """Return the masked-LM head."""
    return VocabularyLayout(read_roberta_layers(config), "lm_head.decoder", config.flag("tie_word_embeddings", True))


FAMILIES = tuple(
    Family(name, read_config, nomic_bert.NAMES, prefixes, RENAMES, FUSED, masked_lm=read_masked_lm)
    for name, prefixes in {"gte": ("", "gte.", "new."), "new": ("", "new.", "gte.")}.items()
)
