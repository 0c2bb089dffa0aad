"""DistilBERT (Sanh et al. 2019): BERT without token types."""

from model.encoder import EncoderConfig
from model.families.family import ConfigReader, Family
from model.heads import ClassifierLayout, HeadLayout, VocabularyLayout

NORM_EPS = 1e-12
"""Not a key of config.json."""
NAMES = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "blocks": "transformer.layer",
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feed_forward.inner": "ffn.lin1",
    "feed_forward.outer": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration. transformers ignores `is_decoder` here."""
    config.check_heads("dim", "n_heads")
    return EncoderConfig(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("dim"),
        num_hidden_layers=config.size("n_layers"),
        num_attention_heads=config.size("n_heads"),
        intermediate_size=config.size("hidden_dim"),
        max_position_embeddings=config.size("max_position_embeddings"),
        type_vocab_size=0,
        norm_eps=NORM_EPS,
        hidden_act=config.activation("activation"),
    )


CLASSIFIER = ClassifierLayout(HeadLayout("classifier", "pre_classifier", "relu"))


def read_masked_lm(config: ConfigReader) -> VocabularyLayout:
    """Return the masked-LM head."""
    layers = HeadLayout(None, "vocab_transform", config.activation("activation", "gelu"), "vocab_layer_norm", NORM_EPS)
    return VocabularyLayout(layers, "vocab_projector", config.flag("tie_word_embeddings", True))


FAMILIES = (
    Family(
        "distilbert", read_config, NAMES, ("", "distilbert."), layers_keys=("n_layers",), classifier=CLASSIFIER,
        masked_lm=read_masked_lm,
    ),
)  # fmt: skip
