"""EuroBERT (Boizard et al. 2025): a bidirectional Llama: pre-norm, rotary, grouped queries, gated feed-forward."""

from model.artifact.manifest import ClassifierPooling
from model.encoder import EncoderConfig, LayerConfig
from model.families.family import ConfigReader, Family
from model.families.rotary import NAMES, read_rotary
from model.heads import ClassifierLayout, HeadLayout, VocabularyLayout


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration."""
    hidden_size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    config.check_heads("hidden_size", "num_attention_heads")
    layers, positions = config.size("num_hidden_layers"), config.size("max_position_embeddings", 8192)
    config.require("is_causal", False)
    config.value("clf_pooling", "late")
    bias = config.flag("mlp_bias")
    return EncoderConfig(
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=config.size("intermediate_size"),
        max_position_embeddings=positions,
        type_vocab_size=0,
        norm_eps=config.number("rms_norm_eps", 1e-5),
        hidden_act=config.activation("hidden_act", "silu"),
        block="pre",
        norm="rms_norm",
        position_table=False,
        embedding_norm=False,
        num_key_value_heads=config.size("num_key_value_heads", heads),
        head_size=config.size("head_dim", hidden_size // heads),
        attention_bias=config.flag("attention_bias"),
        gated=True,
        feed_forward_bias=bias,
        feed_forward_output_bias=bias,
        layers=(LayerConfig(rotary=read_rotary(config, 10_000.0, positions)),) * layers,
    )


POOLINGS: dict[str, ClassifierPooling] = {"bos": "cls", "mean": "mean", "late": "mean_logits"}


def read_classifier(config: ConfigReader) -> ClassifierLayout:
    """Return the classifier of a configuration. Earlier releases call the key `clf_pooling`."""
    key = "classifier_pooling" if "classifier_pooling" in config else "clf_pooling"
    return ClassifierLayout(HeadLayout("classifier", "dense", "gelu"), config.choice(key, POOLINGS, "late"))


def read_masked_lm(config: ConfigReader) -> VocabularyLayout:
    """Return the masked-LM head, which is the projection alone."""
    tied = config.flag("tie_word_embeddings")
    return VocabularyLayout(HeadLayout(), "lm_head", tied, has_bias=config.flag("mlp_bias"))


FAMILIES = (
    Family("eurobert", read_config, NAMES, ("", "model."), classifier=read_classifier, masked_lm=read_masked_lm),
)
