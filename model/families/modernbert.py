"""ModernBERT (Warner et al. 2024): pre-norm, rotary, with sliding windows in most layers and gated feed-forward."""

from model.artifact.manifest import ClassifierPooling
from model.encoder import EncoderConfig, LayerConfig
from model.families.family import ConfigReader, Family, make_config, read_layer_types, rotary_from
from model.heads.classifiers import ClassifierLayout
from model.heads.row_head import HeadLayout
from model.heads.vocabulary import VocabularyLayout

NAMES = {
    "embeddings.word_embeddings": "embeddings.tok_embeddings",
    "embeddings.norm": "embeddings.norm",
    "blocks": "layers",
    "attention_norm": "attn_norm",
    "attention.query": "attn.query",
    "attention.key": "attn.key",
    "attention.value": "attn.value",
    "attention.output": "attn.Wo",
    "feed_forward_norm": "mlp_norm",
    "feed_forward.gate": "mlp.gate",
    "feed_forward.inner": "mlp.inner",
    "feed_forward.outer": "mlp.Wo",
    "norm": "final_norm",
}
FUSED = {"attn.Wqkv": ("attn.query", "attn.key", "attn.value"), "mlp.Wi": ("mlp.gate", "mlp.inner")}
"""The first half of `Wi` passes through the activation."""
BASES = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}
"""Per layer type, the key of the rotary base in files without `rope_parameters`, and transformers' default."""


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration. `local_attention` is the full width of the window."""
    config.check_heads("hidden_size", "num_attention_heads")
    config.require("position_embedding_type", "absolute")  # as published, although positions are rotary
    layers = config.size("num_hidden_layers", 22)
    positions = config.size("max_position_embeddings", 8192)
    every = config.size("global_attn_every_n_layers", 3)
    types = read_layer_types(config, layers, lambda index: index % every > 0)
    window = config.size("local_attention", 128) // 2
    parameters = ConfigReader(config.mapping("rope_parameters"), "rope_parameters")
    rotary = {
        kind: rotary_from(
            {"rope_theta": config.number(key, base), **parameters.mapping(kind)},
            positions,
            f"rope_parameters.{kind}",
        )
        for kind, (key, base) in BASES.items()
    }
    return make_config(
        config,
        vocab_size=config.size("vocab_size", 50_368),
        num_hidden_layers=layers,
        intermediate_size=config.size("intermediate_size", 1152),
        max_position_embeddings=positions,
        type_vocab_size=0,
        norm_eps=config.number("norm_eps", 1e-5),
        hidden_act=config.activation("hidden_activation", "gelu"),
        block="pre",
        norm="layer_norm" if config.flag("norm_bias") else "layer_norm_without_bias",
        position_table=False,
        attention_bias=config.flag("attention_bias"),
        attention_output_bias=config.flag("attention_bias"),
        gated=True,
        feed_forward_bias=config.flag("mlp_bias"),
        feed_forward_output_bias=config.flag("mlp_bias"),
        layers=tuple(
            LayerConfig(window if kind == "sliding_attention" else None, rotary[kind], attention_norm=index > 0)
            for index, kind in enumerate(types)
        ),
    )


POOLINGS: dict[str, ClassifierPooling] = {"cls": "cls", "mean": "mean"}


def read_prediction_head(config: ConfigReader, output: str | None) -> HeadLayout:
    """Return the layers shared by the classifier and the masked-LM head, and an output layer."""
    activation, eps = config.activation("classifier_activation", "gelu"), config.number("norm_eps", 1e-5)
    flags = {"head.dense": config.flag("classifier_bias"), "head.norm": config.flag("norm_bias")}
    unbiased = tuple(name for name, has_bias in flags.items() if not has_bias)
    return HeadLayout(output, "head.dense", activation, "head.norm", eps, unbiased)


def read_classifier(config: ConfigReader) -> ClassifierLayout:
    pooling = config.choice("classifier_pooling", POOLINGS, "cls")
    return ClassifierLayout(read_prediction_head(config, "classifier"), pooling)


def read_masked_lm(config: ConfigReader) -> VocabularyLayout:
    return VocabularyLayout(
        read_prediction_head(config, None),
        "decoder",
        config.flag("tie_word_embeddings", True),
        has_bias=config.flag("decoder_bias", True),
    )


FAMILIES = (
    Family(
        "modernbert",
        read_config,
        NAMES,
        ("", "model."),
        fused=FUSED,
        classifier=read_classifier,
        token_classifier=lambda config: read_prediction_head(config, "classifier"),
        masked_lm=read_masked_lm,
    ),
)
