"""BERT (Devlin et al. 2019) and related post-norm encoders with position tables.

MiniLM, BGE, E5, LaBSE and early GTE models are BERTs.
"""

from typing import Any

from model.encoder import EncoderConfig, RelativeConfig
from model.families.family import (
    ROBERTA_CLASSIFIER,
    ConfigReader,
    Family,
    make_config,
    read_bert_head,
    read_roberta_head,
)
from model.heads.classifiers import ClassifierLayout
from model.heads.row_head import HeadLayout
from model.heads.vocabulary import VocabularyLayout
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
"""Layer norm names in early checkpoints."""


def read_config(
    config: ConfigReader, first_position: int = 0, embedding_size: int = 0, tasks: int = 0
) -> EncoderConfig:
    """Return the configuration; the position table starts with `first_position` unused rows.

    `embedding_size` 0 means the hidden size: only ELECTRA projects embeddings. Only ERNIE uses `tasks`.
    """
    config.require("position_embedding_type", "absolute")
    if config.flag("add_cross_attention"):
        raise CheckpointError("config.json: add_cross_attention is not supported. Use an encoder.")
    config.check_heads("hidden_size", "num_attention_heads")
    is_decoder = config.flag("is_decoder")
    if is_decoder:
        config.require_causal()
    return make_config(
        config,
        max_position_embeddings=config.size("max_position_embeddings") - first_position,
        type_vocab_size=config.size("type_vocab_size", 2),
        hidden_act=config.activation("hidden_act"),
        embedding_size=embedding_size,
        task_type_vocab_size=tasks,
        causal=is_decoder,
    )


# ERNIE (Sun et al. 2020): task embeddings; inference uses the first.


def read_ernie(config: ConfigReader) -> EncoderConfig:
    tasks = config.size("task_type_vocab_size", 3) if config.flag("use_task_id") else 0
    return read_config(config, tasks=tasks)


ERNIE = Family(
    "ernie",
    read_ernie,
    NAMES | {"embeddings.task_type_embeddings": "embeddings.task_type_embeddings"},
    ("", "ernie."),
    RENAMES,
    masked_lm=read_bert_head,
)

BERT = Family("bert", read_config, NAMES, ("", "bert."), RENAMES, masked_lm=read_bert_head)


# DistilBERT (Sanh et al. 2019): no token types, and different names of keys and tensors.

DISTILBERT_NORM_EPS = 1e-12  # not in config.json
DISTILBERT_NAMES = NAMES | {
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


def read_distilbert(config: ConfigReader) -> EncoderConfig:
    """Return the configuration. transformers ignores `is_decoder` here."""
    config.check_heads("dim", "n_heads")
    return make_config(
        config,
        hidden_size=config.size("dim"),
        num_hidden_layers=config.size("n_layers"),
        num_attention_heads=config.size("n_heads"),
        intermediate_size=config.size("hidden_dim"),
        type_vocab_size=0,
        norm_eps=DISTILBERT_NORM_EPS,
        hidden_act=config.activation("activation"),
    )


def read_distilbert_head(config: ConfigReader) -> VocabularyLayout:
    activation = config.activation("activation", "gelu")
    layers = HeadLayout(None, "vocab_transform", activation, "vocab_layer_norm", DISTILBERT_NORM_EPS)
    return VocabularyLayout(layers, "vocab_projector", config.flag("tie_word_embeddings", True))


DISTILBERT = Family(
    "distilbert",
    read_distilbert,
    DISTILBERT_NAMES,
    ("", "distilbert."),
    layers_keys=("n_layers",),
    classifier=ClassifierLayout(HeadLayout("classifier", "pre_classifier", "relu")),
    masked_lm=read_distilbert_head,
)


# ELECTRA (Clark et al. 2020): smaller embeddings, projected to the hidden size.


def read_electra_head(config: ConfigReader) -> VocabularyLayout:
    """Return the masked-LM head of a generator."""
    name = "generator_predictions"
    layers = HeadLayout(None, f"{name}.dense", "gelu", f"{name}.LayerNorm", config.number("layer_norm_eps", 1e-12))
    return VocabularyLayout(layers, "generator_lm_head", config.flag("tie_word_embeddings", True))


ELECTRA = Family(
    "electra",
    lambda config: read_config(config, embedding_size=config.size("embedding_size", config.size("hidden_size"))),
    NAMES | {"embeddings.project": "embeddings_project"},
    ("", "electra."),
    RENAMES,
    classifier=ClassifierLayout(HeadLayout("classifier.out_proj", "classifier.dense", "gelu")),
    masked_lm=read_electra_head,
)


# RoBERTa (Liu et al. 2019), XLM-RoBERTa (Conneau et al. 2020), CamemBERT (Martin et al. 2020): positions start after
# the padding id. Earlier rows of the position table are unused and dropped.


def roberta_first_position(config: ConfigReader) -> int:
    """Return the number of unused rows at the start of the position table."""
    return config.size("pad_token_id", 1, least=0) + 1


ROBERTAS = tuple(
    Family(
        name,
        lambda config: read_config(config, roberta_first_position(config)),
        NAMES,
        prefixes,
        RENAMES,
        first_position=roberta_first_position,
        classifier=ROBERTA_CLASSIFIER,
        masked_lm=read_roberta_head,
    )
    for name, prefixes in {
        "roberta": ("", "roberta."),
        "xlm-roberta": ("", "roberta."),
        "camembert": ("", "roberta.", "camembert."),
    }.items()
)


# MPNet (Song et al. 2020): no token types, and a relative position bias that all layers share.

MPNET_FIRST_POSITION = 2  # regardless of the padding id
MPNET_NAMES = NAMES | {
    "positions.bias": "encoder.relative_attention_bias",
    "attention.query": "attention.attn.q",
    "attention.key": "attention.attn.k",
    "attention.value": "attention.attn.v",
    "attention.output": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
}


def read_mpnet(config: ConfigReader) -> EncoderConfig:
    config.check_heads("hidden_size", "num_attention_heads")
    config.require("relative_attention_num_buckets", 32)
    return make_config(
        config,
        max_position_embeddings=config.size("max_position_embeddings") - MPNET_FIRST_POSITION,
        type_vocab_size=0,
        relative_bias=RelativeConfig(),
    )


MPNET = Family(
    "mpnet",
    read_mpnet,
    MPNET_NAMES,
    ("", "mpnet."),
    first_position=lambda config: MPNET_FIRST_POSITION,
    classifier=ROBERTA_CLASSIFIER,
    masked_lm=read_roberta_head,
)


# JinaBERT (Günther et al. 2023), published as `bert` with custom code: a fixed score bias instead of positions, and
# gated feed-forward networks.

JINA_ACTIVATIONS = {"geglu": "gelu", "reglu": "relu"}
JINA_NAMES = NAMES | {
    "feed_forward.gate": "mlp.gate",
    "feed_forward.inner": "mlp.up",
    "feed_forward.outer": "mlp.wo",
    "feed_forward_norm": "mlp.layernorm",
}


def read_jina_bert(config: ConfigReader, **parts: Any) -> EncoderConfig:
    config.require("position_embedding_type", "alibi")
    config.require("add_cross_attention", False)
    config.require("is_decoder", False)
    config.check_heads("hidden_size", "num_attention_heads")
    return make_config(
        config,
        type_vocab_size=config.size("type_vocab_size", 2),
        hidden_act=config.choice("feed_forward_type", JINA_ACTIVATIONS, "original"),
        position_table=False,
        alibi=True,
        gated=True,
        feed_forward_bias=False,
        **parts,
    )


JINA_BERT = Family(
    "jina_bert",
    read_jina_bert,
    JINA_NAMES,
    ("", "bert."),
    fused={"mlp.gated_layers": ("mlp.gate", "mlp.up")},
    code=("JinaBert",),
)

# jina-embeddings-v2-base-code: the queries, and the keys, of all heads are normalized together, and attention has a
# second residual connection.

JINA_CODE_BERT = Family(
    "jina_bert_code",
    lambda config: read_jina_bert(config, block="double_post", joint_query_key_norm=True),
    NAMES
    | {
        "attention.query_norm": "attention.self.layer_norm_q",
        "attention.key_norm": "attention.self.layer_norm_k",
        "residual_norm": "layer_norm_1",
        "feed_forward.gate": "mlp.gate",
        "feed_forward.inner": "mlp.up",
        "feed_forward.outer": "mlp.down_layer",
        "feed_forward_norm": "layer_norm_2",
    },
    ("", "bert."),
    fused={"mlp.up_gated_layer": ("mlp.up", "mlp.gate")},
    code=("JinaBert",),
)

FAMILIES = (BERT, ERNIE, DISTILBERT, ELECTRA, *ROBERTAS, MPNET, JINA_BERT, JINA_CODE_BERT)
