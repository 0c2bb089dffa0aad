"""ELECTRA (Clark et al. 2020): BERT with a projection of smaller embeddings."""

from model.families.bert import NAMES, RENAMES, read_config
from model.families.family import Family

FAMILIES = (
    Family("electra", read_config, NAMES | {"embeddings.project": "embeddings_project"}, ("", "electra."), RENAMES),
)
