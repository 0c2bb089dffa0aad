"""Classification of a text, and scores of a cross-encoder: `*ForSequenceClassification`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from model.checkpoint_files import CheckpointError
from model.head_records import ClassifierPooling, PairTemplateRecord, ScoreActivation
from model.heads.row_head import HeadLayout, RowHead, read_labels

ARCHITECTURE = "ForSequenceClassification"


@dataclass(frozen=True)
class ClassifierLayout:
    """The layers of a classifier, and the rows that they read; see `ClassificationHead`."""

    layers: HeadLayout
    pooling: ClassifierPooling = "cls"

    def skipped_token_id(self, config: Mapping[str, Any]) -> int | None:
        """Return the padding token of config.json if the classifier reads the last token.

        transformers reads the last token that is not padding, and some tokenizers append the padding token to each
        text.
        """
        return config.get("pad_token_id") if self.pooling == "last" else None


@dataclass(frozen=True)
class Classifier:
    """A classifier from a checkpoint: logits (N, C) of rows (N, D). See `ClassificationHead`."""

    head: RowHead
    pooling: ClassifierPooling
    skipped_token_id: int | None
    labels: tuple[str, ...]
    activation: ScoreActivation
    template: PairTemplateRecord | None = None
    pair_activation: ScoreActivation | None = None


def is_classifier(config: Mapping[str, Any]) -> bool:
    """Return whether config.json describes a model with a classifier."""
    architectures = config.get("architectures")
    return isinstance(architectures, list) and any(str(name).endswith(ARCHITECTURE) for name in architectures)


def read_classifier(
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    layout: ClassifierLayout,
    tensors: Mapping[str, Tensor],
    hidden_size: int,
) -> Classifier:
    """Return the classifier of a checkpoint.

    `config` and `options` are the values of config.json and of config_sentence_transformers.json. `tensors` have the
    names of the architecture, without the prefix of the encoder.

    Raises:
        CheckpointError: a tensor or a value of config.json is missing or invalid.
    """
    head = RowHead(layout.layers, tensors, hidden_size)
    labels = read_labels(config, head.out_features)
    skipped, activation = layout.skipped_token_id(config), read_activation(config, options, len(labels))
    pair_activation = read_pair_activation(config, options, len(labels))
    return Classifier(head, layout.pooling, skipped, labels, activation, pair_activation=pair_activation)


def read_pair_activation(config: Mapping[str, Any], options: Mapping[str, Any], labels: int) -> ScoreActivation | None:
    """Return the function for the score of a pair where it differs from `read_activation`; None elsewhere.

    For a regression model, transformers returns the logit, and CrossEncoder of sentence-transformers its sigmoid.
    """
    is_regression = labels == 1 and config.get("problem_type") == "regression"
    return "sigmoid" if is_regression and _named_activation(config, options) is None else None


def _named_activation(config: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """Return the first function that is named in the three places of sentence-transformers."""
    nested = config.get("sentence_transformers")
    paths = (
        options.get("activation_fn"),
        nested.get("activation_fn") if isinstance(nested, dict) else None,
        config.get("sbert_ce_default_activation_function"),
    )
    return next((str(path) for path in paths if path is not None), None)


def read_activation(config: Mapping[str, Any], options: Mapping[str, Any], labels: int) -> ScoreActivation:
    """Return the function that turns logits into scores.

    sentence-transformers can name it in three places, in this order. Otherwise it is the one of the pipeline
    "text-classification" of transformers.
    """
    path = _named_activation(config, options)
    named = None if path is None else path.rsplit(".", 1)[-1]
    names: dict[str, ScoreActivation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
    if labels > 1:
        names["Softmax"] = "softmax"
    if named is not None and named not in names:
        raise CheckpointError(f"activation_fn: unsupported function {path!r}. Supported: {', '.join(names)}.")
    if named is not None and (labels == 1 or named != "Identity"):
        return names[named]
    if config.get("problem_type") == "regression":
        return "identity"
    return "sigmoid" if labels == 1 or config.get("problem_type") == "multi_label_classification" else "softmax"
