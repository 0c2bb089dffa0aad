"""The heads of a checkpoint, found by its config.json and the files of sentence-transformers."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from model.checkpoint_files import CheckpointError, read_optional_json
from model.encoder import Encoder
from model.families.config_reader import ConfigReader
from model.families.family import Family
from model.heads import (
    Classifier,
    MaskedLM,
    MultiVector,
    Sparse,
    TokenClassifier,
    VocabularyHead,
    VocabularyLayout,
    find_decoder,
    find_mask_token,
    is_classifier,
    is_masked_lm,
    is_token_classifier,
    read_classifier,
    read_linear_sparse,
    read_query_weights,
    read_splade,
    read_token_classifier,
    read_vocabulary_head,
)
from model.logit_score import find_logit_score, read_logit_score
from model.sentence_transformers_config import CONFIG as SENTENCE_TRANSFORMERS
from model.sentence_transformers_config import find_query_module, find_splade_pooling


def check_expansion(encoder: Encoder, head: MultiVector) -> None:
    """Raise CheckpointError if expansion tokens, to which no token attends, are out of reach of a query's own tokens.

    They would attend to no token at all.
    """
    windows = [layer.window for layer in encoder.config.layers if layer.window is not None]
    if head.expansion is None or head.expansion.attended or not windows:
        return
    if head.expansion.length > min(windows) + 1:
        raise CheckpointError(
            f"query_expansion: length {head.expansion.length} exceeds the attention window ({min(windows)} tokens at "
            "each side), and attend is false. Set attend to true, or a shorter length."
        )


def load_classifier(
    directory: Path,
    family: Family,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    encoder: Encoder,
    tokenizer: bytes,
) -> Classifier | None:
    """Return the classifier of a checkpoint with these weights; None without one. Raises CheckpointError."""
    if (module := find_logit_score(directory)) is not None:
        embeddings = encoder.embeddings.word_embeddings.weight.detach()
        # transformers writes the key whenever the output layer is stored once.
        tied = ConfigReader(config).flag("tie_word_embeddings", True)
        output = find_decoder("lm_head.weight", head_tensors(family, tensors), embeddings, tied=tied)
        return read_logit_score(module, directory, config, output, tokenizer)
    if not is_classifier(config):
        return None
    options, size = read_optional_json(directory / SENTENCE_TRANSFORMERS), encoder.config.hidden_size
    return read_classifier(config, options, family.classifier_layout(config), head_tensors(family, tensors), size)


def load_token_classifier(
    family: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor], encoder: Encoder
) -> TokenClassifier | None:
    """Return the token classifier of a checkpoint with these weights; None without one. Raises CheckpointError."""
    if not is_token_classifier(config):
        return None
    layout = family.token_classifier_layout(config)
    return read_token_classifier(config, layout, head_tensors(family, tensors), encoder.config.hidden_size)


def load_sparse(
    directory: Path, family: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor], encoder: Encoder
) -> Sparse | None:
    """Return the sparse head of a checkpoint with these weights; None without one. Raises CheckpointError."""
    pooling = find_splade_pooling(directory)
    if pooling is None:
        return read_linear_sparse(directory, encoder.config.hidden_size)
    if family.masked_lm is None:
        raise CheckpointError(f"modules.json: SpladePooling of a {family.name} model is not supported.")
    layout, query = family.masked_lm(ConfigReader(config)), find_query_module(directory)
    weights = None if query is None else read_query_weights(query, encoder.config.vocab_size)
    return read_splade(pooling, load_vocabulary_head(layout, family, tensors, encoder), weights)


def load_masked_lm(
    directory: Path,
    family: Family,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    encoder: Encoder,
    tokenizer: bytes,
) -> MaskedLM | None:
    """Return the masked-LM head of a checkpoint with these weights; None without one. Raises CheckpointError."""
    if not is_masked_lm(config) or family.masked_lm is None:
        return None
    layout = family.masked_lm(ConfigReader(config))
    if not layout.is_in(head_tensors(family, tensors)):
        return None
    mask_token_id = find_mask_token(tokenizer, read_optional_json(directory / "tokenizer_config.json"))
    return MaskedLM(load_vocabulary_head(layout, family, tensors, encoder), mask_token_id)


def load_vocabulary_head(
    layout: VocabularyLayout, family: Family, tensors: Mapping[str, Tensor], encoder: Encoder
) -> VocabularyHead:
    """Return the projection onto the vocabulary of a checkpoint with these weights. Raises CheckpointError."""
    embeddings = encoder.embeddings.word_embeddings.weight.detach()
    return read_vocabulary_head(layout, head_tensors(family, tensors), embeddings, encoder.config.hidden_size)


def head_tensors(family: Family, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by their names without the prefix of the encoder, which has been read."""
    prefix = family.find_prefix(tensors)
    assert prefix is not None
    return dict(family.parts(tensors, prefix))


def find_unexported(
    family: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor], exported: Collection[str]
) -> list[str]:
    """Return the `architectures` in config.json whose heads have tensors, but do not end with a name in `exported`."""
    if not any(family.is_head(name) for name in head_tensors(family, tensors)):
        return []
    names = [str(name) for name in config.get("architectures") or ()]
    return [name for name in names if not name.endswith(("Model", *exported))]
