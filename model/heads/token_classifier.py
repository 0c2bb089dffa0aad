"""Labels of tokens: `*ForTokenClassification`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from model.heads.row_head import HeadLayout, RowHead, read_labels

ARCHITECTURE = "ForTokenClassification"


@dataclass(frozen=True)
class TokenClassifier:
    """A token classifier from a checkpoint: logits (T, C) of the hidden states (T, D)."""

    head: RowHead
    labels: tuple[str, ...]


def is_token_classifier(config: Mapping[str, Any]) -> bool:
    """Return whether config.json describes a model with a token classifier."""
    architectures = config.get("architectures")
    return isinstance(architectures, list) and any(str(name).endswith(ARCHITECTURE) for name in architectures)


def read_token_classifier(
    config: Mapping[str, Any], layout: HeadLayout, tensors: Mapping[str, Tensor], hidden_size: int
) -> TokenClassifier:
    """Return the token classifier of a checkpoint; arguments are as in `read_classifier`. Raises CheckpointError."""
    head = RowHead(layout, tensors, hidden_size)
    return TokenClassifier(head, read_labels(config, head.out_features))
