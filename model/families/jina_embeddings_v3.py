"""jina-embeddings-v3 (Sturua et al. 2024): XLM-RoBERTa with rotary positions."""

from model.encoder import EncoderConfig, LayerConfig
from model.families import nomic_bert
from model.families.family import ROBERTA_CLASSIFIER, ConfigReader, Family, read_roberta_head
from model.families.rotary import read_rotary

NAMES = {name: published for name, published in nomic_bert.NAMES.items() if name != "feed_forward.gate"} | {
    "feed_forward.inner": "mlp.fc1",
    "feed_forward.outer": "mlp.fc2",
}
RENAMES = (
    (r"^encoder\.layers\.", "layers."),
    (r"^emb_ln\.", "embeddings.LayerNorm."),
    (r"\.mixer\.Wqkv\.", ".self_attn.Wqkv."),
    (r"\.mixer\.out_proj\.", ".self_attn.o_proj."),
    (r"\.norm1\.", ".post_attention_layernorm."),
    (r"\.norm2\.", ".post_mlp_layernorm."),
)
"""Names of the published checkpoint."""


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration from the keys of transformers or of the published checkpoint."""
    config.check_heads("hidden_size", "num_attention_heads")
    config.require("position_embedding_type", "rotary")
    layers, positions = config.size("num_hidden_layers"), config.size("max_position_embeddings", 8194)
    base = config.number("rotary_emb_base", 20_000.0)
    return EncoderConfig(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("hidden_size"),
        num_hidden_layers=layers,
        num_attention_heads=config.size("num_attention_heads"),
        intermediate_size=config.size("intermediate_size"),
        max_position_embeddings=positions,
        type_vocab_size=config.size("type_vocab_size", 1),
        norm_eps=config.number("layer_norm_eps", 1e-5),
        hidden_act=config.activation("hidden_act", "gelu"),
        position_table=False,
        layers=(LayerConfig(rotary=read_rotary(config, base, positions)),) * layers,
    )


FAMILIES = (
    Family(
        "jina_embeddings_v3", read_config, NAMES, ("", "roberta."), RENAMES, nomic_bert.FUSED,
        classifier=ROBERTA_CLASSIFIER, masked_lm=read_roberta_head,
    ),
)  # fmt: skip
