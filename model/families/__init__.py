"""Model families: config keys and tensor names per architecture. CONTRIBUTING.md says how to add one."""

from collections.abc import Collection, Mapping
from typing import Any

from model.families import attendant, bert, deberta, llama, modernbert, rotary_bert, t5
from model.families.family import Family

MODULES = (attendant, bert, deberta, llama, modernbert, rotary_bert, t5)
FAMILIES: dict[str, Family] = {family.name: family for module in MODULES for family in module.FAMILIES}


def find_family(config: Mapping[str, Any], tensors: Collection[str] = ()) -> Family | None:
    """Return the family of a config.json; None for an unsupported one.

    JinaBERT's two architectures have the same config.json keys, and are distinguished by tensor names.
    """
    if config.get("model_type") == "xlm-roberta" and config.get("position_embedding_type") == "rotary":
        return FAMILIES["jina_embeddings_v3"]  # as published with custom code, like the next one
    if config.get("model_type") == "bert" and config.get("position_embedding_type") == "alibi":
        return FAMILIES["jina_bert_code" if any("mlp.up_gated_layer." in name for name in tensors) else "jina_bert"]
    return FAMILIES.get(str(config.get("model_type")))
