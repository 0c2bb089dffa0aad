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
    return VocabularyLayout(layers, "cls.predictions.decoder", ("cls.predictions.bias", "cls.predictions.decoder.bias"))


def read_roberta_head(config: ConfigReader) -> VocabularyLayout:
    """Return the head of RoBERTa, which MPNet, GTE and Jina share."""
    layers = HeadLayout(None, "lm_head.dense", "gelu", "lm_head.layer_norm", config.number("layer_norm_eps", 1e-12))
    return VocabularyLayout(layers, "lm_head.decoder", ("lm_head.bias", "lm_head.decoder.bias"))
