"""Masked-LM heads that several architectures share. SPLADE models have one."""

from model.families.config_reader import ConfigReader
from model.heads import HeadLayout, VocabularyLayout


def read_bert_head(config: ConfigReader) -> VocabularyLayout:
    """Return the head of BERT."""
    transform = "cls.predictions.transform"
    layers = HeadLayout(
        None, f"{transform}.dense", config.activation("hidden_act", "gelu"), f"{transform}.LayerNorm",
        config.number("layer_norm_eps", 1e-12),
    )  # fmt: skip
    tied = config.flag("tie_word_embeddings", True)
    return VocabularyLayout(layers, "cls.predictions.decoder", tied, tied_bias="cls.predictions.bias")


def read_roberta_head(config: ConfigReader) -> VocabularyLayout:
    """Return the head of RoBERTa, which MPNet and Jina share."""
    tied = config.flag("tie_word_embeddings", True)
    return VocabularyLayout(read_roberta_layers(config), "lm_head.decoder", tied, tied_bias="lm_head.bias")


def read_roberta_layers(config: ConfigReader) -> HeadLayout:
    """Return the layers of RoBERTa's head before the projection, which GTE shares."""
    return HeadLayout(None, "lm_head.dense", "gelu", "lm_head.layer_norm", config.number("layer_norm_eps", 1e-12))
