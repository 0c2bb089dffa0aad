"""ELECTRA (Clark et al. 2020): BERT with a projection of smaller embeddings."""

from model.encoder import EncoderConfig
from model.families import bert
from model.families.config_reader import ConfigReader
from model.families.family import Family
from model.heads import ClassifierLayout, HeadLayout

NAMES = bert.NAMES | {"embeddings.project": "embeddings_project"}


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration."""
    return bert.read_config(config, embedding_size=config.size("embedding_size", config.size("hidden_size")))


CLASSIFIER = ClassifierLayout(HeadLayout("classifier.out_proj", "classifier.dense", "gelu"))
FAMILIES = (Family("electra", read_config, NAMES, ("", "electra."), bert.RENAMES, classifier=CLASSIFIER),)
