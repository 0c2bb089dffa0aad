"""ELECTRA (Clark et al. 2020): BERT with a projection of smaller embeddings."""

from model.encoder import EncoderConfig
from model.families import bert
from model.families.family import ConfigReader, Family
from model.heads import ClassifierLayout, HeadLayout, VocabularyLayout

NAMES = bert.NAMES | {"embeddings.project": "embeddings_project"}


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration."""
    return bert.read_config(config, embedding_size=config.size("embedding_size", config.size("hidden_size")))


CLASSIFIER = ClassifierLayout(HeadLayout("classifier.out_proj", "classifier.dense", "gelu"))


def read_masked_lm(config: ConfigReader) -> VocabularyLayout:
    """Return the head of a generator."""
    name = "generator_predictions"
    layers = HeadLayout(None, f"{name}.dense", "gelu", f"{name}.LayerNorm", config.number("layer_norm_eps", 1e-12))
    return VocabularyLayout(layers, "generator_lm_head", config.flag("tie_word_embeddings", True))


FAMILIES = (
    Family(
        "electra", read_config, NAMES, ("", "electra."), bert.RENAMES, classifier=CLASSIFIER, masked_lm=read_masked_lm
    ),
)  # fmt: skip
