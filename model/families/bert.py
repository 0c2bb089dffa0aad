"""BERT (Devlin et al. 2019). MiniLM, BGE, E5, GTE and LaBSE have this architecture."""

from model.encoder import EncoderConfig
from model.families.family import ConfigReader, Family, read_bert_head
from model.source.published import CheckpointError

NAMES = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.token_type_embeddings": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "blocks": "encoder.layer",
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
RENAMES = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
"""Names of layer norms in early checkpoints."""


def read_config(config: ConfigReader, first_position: int = 0, embedding_size: int = 0) -> EncoderConfig:
    """Return the configuration; the position table starts with `first_position` unused rows.

    `embedding_size` 0 means the hidden size: only ELECTRA has a projection of embeddings.
    """
    config.require("position_embedding_type", "absolute")
    if config.flag("add_cross_attention"):
        raise CheckpointError(
            "config.json: add_cross_attention is true, but cross-attention is not supported. "
            "Use a model without an encoder-decoder architecture."
        )
    config.check_heads("hidden_size", "num_attention_heads")
    hidden_size = config.size("hidden_size")
    return EncoderConfig(
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        num_hidden_layers=config.size("num_hidden_layers"),
        num_attention_heads=config.size("num_attention_heads"),
        intermediate_size=config.size("intermediate_size"),
        max_position_embeddings=config.size("max_position_embeddings") - first_position,
        type_vocab_size=config.size("type_vocab_size", 2),
        norm_eps=config.number("layer_norm_eps", 1e-12),
        hidden_act=config.activation("hidden_act"),
        embedding_size=embedding_size or hidden_size,
        causal=config.flag("is_decoder"),
    )


FAMILIES = (Family("bert", read_config, NAMES, ("", "bert."), RENAMES, masked_lm=read_bert_head),)
