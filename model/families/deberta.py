"""DeBERTa V2 and V3 (He et al. 2021 and 2023): post-norm blocks with disentangled attention."""

from model.encoder import DisentangledConfig, EncoderConfig
from model.families.bert import NAMES as BERT_NAMES
from model.families.family import UNUSED, ConfigReader, Family, make_config, read_bert_head
from model.heads.classifiers import ClassifierLayout
from model.heads.row_head import HeadLayout
from model.heads.vocabulary import VocabularyLayout
from model.source.published import CheckpointError, unsupported

NAMES = BERT_NAMES | {
    "positions.distances": "encoder.rel_embeddings",
    "positions.distances.norm": "encoder.LayerNorm",
    "attention.query": "attention.self.query_proj",
    "attention.key": "attention.self.key_proj",
    "attention.value": "attention.self.value_proj",
    "attention.distance_key": "attention.self.pos_key_proj",
    "attention.distance_query": "attention.self.pos_query_proj",
}
TERMS = ("c2p", "p2c")


def read_config(config: ConfigReader) -> EncoderConfig:
    config.check_heads("hidden_size", "num_attention_heads")
    if config.size("conv_kernel_size", 0, least=0):
        raise CheckpointError(
            "config.json: conv_kernel_size: convolutions are not supported. Use a model without them, such as "
            "microsoft/deberta-v3-base."
        )
    size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    config.require("embedding_size", size)
    types = config.value("pos_att_type", [])
    types = [part.strip() for part in types.lower().split("|")] if isinstance(types, str) else types
    if not set(types) <= {*TERMS, ""}:
        raise unsupported("config.json: pos_att_type", types, TERMS)
    head_size = config.size("attention_head_size", size // heads)
    positions = config.size("max_position_embeddings", 512)
    return make_config(
        config,
        max_position_embeddings=positions,
        type_vocab_size=config.size("type_vocab_size", 0, least=0),
        norm_eps=config.number("layer_norm_eps", 1e-7),
        position_table=config.flag("position_biased_input", True),
        head_size=head_size,
        attention_scale=(head_size * (1 + sum(term in types for term in TERMS))) ** -0.5,
        disentangled=_read_distances(config, types, positions) if config.flag("relative_attention") else None,
    )


def _read_distances(config: ConfigReader, types: list[str], positions: int) -> DisentangledConfig:
    """Return the options of disentangled attention. Values below 1 select defaults."""
    distance = config.value("max_relative_positions", -1)
    distance = positions if distance == -1 else config.size("max_relative_positions", least=0) or positions
    buckets = config.value("position_buckets", -1)
    buckets = 0 if buckets == -1 else config.size("position_buckets", least=0)
    if buckets and distance - 1 <= buckets // 2:
        raise CheckpointError(
            f"config.json: position_buckets: too many for max_relative_positions ({buckets}, {distance})."
        )
    return DisentangledConfig(
        span=buckets or distance,
        max_distance=distance if buckets else 0,
        content_to_position="c2p" in types,
        position_to_content="p2c" in types,
        shared=config.flag("share_att_key"),
        norm="layer_norm" in str(config.value("norm_rel_ebd", "none")).lower().split("|"),
    )


def read_classifier(config: ConfigReader) -> ClassifierLayout:
    activation = config.activation("pooler_hidden_act", "gelu")
    return ClassifierLayout(HeadLayout("classifier", "pooler.dense", activation))


HEAD = "lm_predictions.lm_head"


def read_masked_lm(config: ConfigReader) -> VocabularyLayout:
    """Return the masked-LM head: with `legacy` false the published one, which uses the embedding table, else BERT's."""
    if config.flag("legacy", True):
        return read_bert_head(config)
    activation, eps = config.activation("hidden_act", "gelu"), config.number("layer_norm_eps", 1e-7)
    layers = HeadLayout(None, f"{HEAD}.dense", activation, f"{HEAD}.LayerNorm", eps)
    return VocabularyLayout(layers, HEAD, tied=True)


FAMILIES = (
    Family(
        "deberta-v2",
        read_config,
        NAMES,
        ("", "deberta."),
        unused=rf"{UNUSED}|^(lm_predictions|mask_predictions)\.",
        classifier=read_classifier,
        masked_lm=read_masked_lm,
    ),
)
