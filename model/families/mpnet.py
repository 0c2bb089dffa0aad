"""MPNet (Song et al. 2020): BERT without token types, with a relative position bias shared by all layers."""

from model.encoder import EncoderConfig
from model.families.family import ROBERTA_CLASSIFIER, ConfigReader, Family, read_roberta_head

NAMES = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "positions.bias": "encoder.relative_attention_bias",
    "blocks": "encoder.layer",
    "attention.query": "attention.attn.q",
    "attention.key": "attention.attn.k",
    "attention.value": "attention.attn.v",
    "attention.output": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
FIRST_POSITION = 2
"""The first token has row 2 of the position table, whatever the padding id."""


def first_position(config: ConfigReader) -> int:
    """Return the number of unused rows at the start of the position table."""
    del config
    return FIRST_POSITION


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration."""
    config.check_heads("hidden_size", "num_attention_heads")
    config.require("relative_attention_num_buckets", 32)
    return EncoderConfig(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("hidden_size"),
        num_hidden_layers=config.size("num_hidden_layers"),
        num_attention_heads=config.size("num_attention_heads"),
        intermediate_size=config.size("intermediate_size"),
        max_position_embeddings=config.size("max_position_embeddings") - FIRST_POSITION,
        type_vocab_size=0,
        norm_eps=config.number("layer_norm_eps", 1e-12),
        hidden_act=config.activation("hidden_act", "gelu"),
        relative_bias=True,
    )


FAMILIES = (
    Family(
        "mpnet", read_config, NAMES, ("", "mpnet."), first_position=first_position, classifier=ROBERTA_CLASSIFIER,
        masked_lm=read_roberta_head,
    ),
)  # fmt: skip
