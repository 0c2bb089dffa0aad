"""The heads of a checkpoint, found by its config.json and the files of sentence-transformers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from model.artifact import TOKENIZER
from model.checkpoint_files import CheckpointError
from model.config_files import HARMLESS, TOKENIZER_CONFIG, ModelFiles, Module
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
from model.sentence_transformers_config import read_similarity


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
    files: ModelFiles,
    family: Family,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    encoder: Encoder,
    tokenizer: bytes,
) -> Classifier | None:
    """Return the classifier of a checkpoint with these weights; None without one. Raises CheckpointError."""
    if (module := find_logit_score(files)) is not None:
        embeddings = encoder.embeddings.word_embeddings.weight.detach()
        # transformers writes the key whenever the output layer is stored once.
        tied = ConfigReader(config).flag("tie_word_embeddings", True)
        output = find_decoder("lm_head.weight", head_tensors(family, tensors), embeddings, tied=tied)
        return read_logit_score(module, files, config, output, tokenizer)
    if not is_classifier(config) and files.sentence_transformers.get("model_type") != "CrossEncoder":
        return None
    options, size = files.sentence_transformers, encoder.config.hidden_size
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
    files: ModelFiles, family: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor], encoder: Encoder
) -> Sparse | None:
    """Return the sparse head of a checkpoint with these weights; None without one. Raises CheckpointError."""
    pooling = next((module for module in files.modules if module.kind == "SpladePooling"), None)
    if pooling is None:
        return read_linear_sparse(files.directory, encoder.config.hidden_size)
    if family.masked_lm is None:
        raise CheckpointError(f"modules.json: SpladePooling of a {family.name} model is not supported.")
    layout, weights = family.masked_lm(ConfigReader(config)), None
    if files.queries is not None:
        query = files.module_config(files.queries[0])
        query.require("path")
        _check_same_tokenizer(files, files.queries[0])
        weights = read_query_weights(files.queries[0].path, encoder.config.vocab_size)
    head = read_splade(files.module_config(pooling), load_vocabulary_head(layout, family, tensors, encoder), weights)
    similarity, limit = read_similarity(files, "dot"), files.sentence_transformers.integer("max_active_dims")
    return replace(head, similarity=similarity, max_active=limit)


def _check_same_tokenizer(files: ModelFiles, query: Module) -> None:
    """Raise CheckpointError unless queries have the tokenizer of documents."""
    parts = ("normalizer", "pre_tokenizer", "model", "added_tokens")
    own, other = (files.read(path / TOKENIZER) for path in (files.transformer, query.path))
    differ = [part for part in parts if len(other) and own.get(part) != other.get(part)]
    config, other_config = (files.read(path / TOKENIZER_CONFIG) for path in (files.transformer, query.path))
    keys = {*config, *other_config} - HARMLESS[TOKENIZER_CONFIG]
    differ += sorted(key for key in keys if config.get(key) != other_config.get(key))
    if differ:
        raise CheckpointError(
            f"{query.path.name}: queries have another tokenizer than documents ({', '.join(differ)}), which is not "
            "supported. Use the same one."
        )


def load_masked_lm(
    files: ModelFiles,
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
    mask_token_id = find_mask_token(tokenizer, files.read(files.transformer / TOKENIZER_CONFIG))
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
