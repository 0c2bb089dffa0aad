"""Words for a position of a text: `*ForMaskedLM`, and `BertForPreTraining`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model.heads.vocabulary import VocabularyHead

ARCHITECTURES = ("ForMaskedLM", "ForPreTraining")
"""Ends of the names of models with the head. Of models for pre-training, those of BERT have it."""
MASK_TOKENS = ("[MASK]", "<mask>")
"""The mask tokens of tokenizers whose configuration does not name one."""


@dataclass(frozen=True)
class MaskedLM:
    """A masked-LM head from a checkpoint, and the id of the mask token; None if the tokenizer has none."""

    head: VocabularyHead
    mask_token_id: int | None


def is_masked_lm(config: Mapping[str, Any]) -> bool:
    """Return whether config.json describes a model with a masked-LM head."""
    architectures = config.get("architectures")
    return isinstance(architectures, list) and any(str(name).endswith(ARCHITECTURES) for name in architectures)


def find_mask_token(tokenizer: bytes, options: Mapping[str, Any]) -> int | None:
    """Return the id of the mask token in a tokenizer.json; `options` are the values of tokenizer_config.json."""
    named = options.get("mask_token")
    content = named.get("content") if isinstance(named, dict) else named
    names = MASK_TOKENS if content is None else (content,)
    added = json.loads(tokenizer).get("added_tokens") or ()
    return next((token["id"] for token in added if token["content"] in names), None)
