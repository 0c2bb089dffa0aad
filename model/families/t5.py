"""The encoders of T5 (Raffel et al. 2020) and mT5 (Xue et al. 2021), the base of sentence-t5, gtr and Instructor.

Pre-norm blocks without biases. A learned relative score bias is the only positional information.
"""

from model.encoder import EncoderConfig
from model.families.family import ConfigReader, Family, make_config, read_relative
from model.heads.classifiers import ClassifierLayout
from model.source.published import CheckpointError

NAMES = {
    "embeddings.word_embeddings": "shared",
    "positions.bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "blocks": "encoder.block",
    "attention_norm": "layer.0.layer_norm",
    "attention.query": "layer.0.SelfAttention.q",
    "attention.key": "layer.0.SelfAttention.k",
    "attention.value": "layer.0.SelfAttention.v",
    "attention.output": "layer.0.SelfAttention.o",
    "feed_forward_norm": "layer.1.layer_norm",
    "feed_forward.gate": "layer.1.DenseReluDense.wi_0",
    "feed_forward.inner": "layer.1.DenseReluDense.wi_1",
    "feed_forward.outer": "layer.1.DenseReluDense.wo",
    "norm": "encoder.final_layer_norm",
}
RENAMES = ((r"^encoder\.embed_tokens\.", "shared."), (r"\.DenseReluDense\.wi\.", ".DenseReluDense.wi_1."))
"""An alternative name of the embeddings, which files may also contain, and the name of a layer without a gate."""


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration. `n_positions` is the training length; the bias itself sets no limit.

    As in transformers, `is_gated_act` and `dense_act_fn` take precedence over `feed_forward_proj`.
    """
    config.require("is_decoder", False)
    kind = str(config.value("feed_forward_proj", "relu"))
    key, name = "feed_forward_proj", "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    if "dense_act_fn" in config:
        key, name = "dense_act_fn", config.value("dense_act_fn")
    return make_config(
        config,
        hidden_size=config.size("d_model"),
        num_hidden_layers=config.size("num_layers"),
        num_attention_heads=config.size("num_heads"),
        intermediate_size=config.size("d_ff"),
        max_position_embeddings=config.size("n_positions", 512),
        type_vocab_size=0,
        norm_eps=config.number("layer_norm_epsilon", 1e-6),
        hidden_act=config.check_activation(key, name),
        block="pre",
        norm="rms_norm",
        position_table=False,
        embedding_norm=False,
        head_size=config.size("d_kv", 64),
        attention_scale=1.0,
        attention_bias=False,
        attention_output_bias=False,
        relative_bias=read_relative(config, "relative_attention_num_buckets", "relative_attention_max_distance"),
        gated=config.flag("is_gated_act", kind.startswith("gated-")),
        feed_forward_bias=False,
        feed_forward_output_bias=False,
    )


def _reject_classifier(config: ConfigReader) -> ClassifierLayout:
    raise CheckpointError("config.json: architectures: the classifier of T5 reads its decoder. Use the encoder alone.")


FAMILIES = tuple(
    Family(
        name,
        read_config,
        NAMES,
        ("", "transformer."),
        RENAMES,
        layers_keys=("num_layers",),
        classifier=_reject_classifier,
    )
    for name in ("t5", "mt5")
)
