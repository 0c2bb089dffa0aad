"""Model families: one module per architecture, each a data entry. CONTRIBUTING.md says how to add one."""

from collections.abc import Mapping
from typing import Any

from model.families import (
    attendant,
    bert,
    distilbert,
    electra,
    eurobert,
    gemma3,
    gte,
    jina_embeddings_v3,
    modernbert,
    mpnet,
    nomic_bert,
    qwen3,
    roberta,
)
from model.families.family import Family

MODULES = (
    attendant, bert, distilbert, electra, eurobert, gemma3, gte, jina_embeddings_v3, modernbert, mpnet, nomic_bert,
    qwen3, roberta,
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.name: family for module in MODULES for family in module.FAMILIES}


def find_family(config: Mapping[str, Any]) -> Family | None:
    """Return the family of a config.json; None for an unsupported one."""
    if config.get("model_type") == "xlm-roberta" and config.get("position_embedding_type") == "rotary":
        return FAMILIES["jina_embeddings_v3"]  # as published, with code of its own
    return FAMILIES.get(str(config.get("model_type")))
