"""Checks before an export, which takes minutes: the output directory and the tokenizer."""

import json
import string
from pathlib import Path

from model.artifact import MANIFEST, ArtifactError
from model.checkpoint import Checkpoint
from model.checkpoint_files import CheckpointError
from model.console import EX_CANTCREAT
from model.free_space import check_free_space
from model.model_source import ModelSource
from model.token_checks import find_missing_token, find_missing_type, inserted_tokens
from model.tokenized_input import TokenizerInput
from model.tokenizer_patterns import find_slow_pattern
from model.weight_files import model_weight_files

GRAPH_BYTES = 32 * 2**20
"""Size of the graphs, the tokenizer and the other files of an artifact, at most."""


class OutputError(ArtifactError):
    """An output directory that must not be replaced."""

    status = EX_CANTCREAT


def check_directory(out: Path) -> None:
    """Raise OutputError unless `out` is an artifact, an empty directory, or a new path."""
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out}: not a directory. Choose another path.")
    if out.exists() and not (out / MANIFEST).is_file() and any(out.iterdir()):
        raise OutputError(f"{out}: not empty and not an artifact. Choose another directory.")


def check_same_source(out: Path, source: ModelSource) -> None:
    """Raise OutputError if `out` has another model's artifact, even a damaged one or one of an older format."""
    if not (out / MANIFEST).is_file():
        return
    try:
        manifest = json.loads((out / MANIFEST).read_bytes())
        existing = manifest["source"], manifest["revision"]
    except (ValueError, RecursionError, TypeError, KeyError):
        raise OutputError(
            f"{out}: has a damaged {MANIFEST}, so its model is unknown. Choose another directory, or set --overwrite."
        ) from None
    # Directories of two models can have the same name; a Hugging Face model ID has one model in all its revisions.
    is_directory = str(source.revision).startswith("sha256:")
    if existing[0] != source.source or (is_directory and existing[1] != source.revision):
        raise OutputError(
            f"{out}: has the artifact of another model ({_describe_source(*existing)}, "
            f"not {_describe_source(source.source, source.revision)}). Choose another directory, or set --overwrite."
        )


def _describe_source(source: str, revision: str | None) -> str:
    return f'"{source}"' + (f" with weights {revision[:19]}" if revision and revision.startswith("sha256:") else "")


def check_space(out: Path, source: ModelSource) -> None:
    """Raise SpaceError if the artifact may not fit. The second graph's weights are written before they are compared."""
    weights = sum(path.stat().st_size for path in model_weight_files(source.directory))
    required = 2 * weights + GRAPH_BYTES
    check_free_space(out, required, f"the artifact of {source.source}", "choose another directory")


def check_tokenizer(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if the tokenizer is invalid or slow, or does not fit the embeddings or the token limit."""
    config, classifier, masked = checkpoint.encoder.config, checkpoint.classifier, checkpoint.masked_lm
    try:
        tokenizer = checkpoint.text_tokenizer()
        tokens, special_tokens = tokenizer.find_input_tokens(), len(tokenizer.encode([TokenizerInput("")])[0])
        letters = tokenizer.encode([TokenizerInput(letter) for letter in string.ascii_lowercase])
    except Exception as error:  # noqa: BLE001  # tokenizers raises Exception
        raise CheckpointError(f"tokenizer.json: invalid ({error}). Download the model again.") from None
    if (slow := find_slow_pattern(checkpoint.tokenizer)) is not None:
        raise CheckpointError(f"tokenizer.json: {slow}. Use another tokenizer, or correct the pattern.")
    # transformers 5 writes a tokenizer of special tokens only if the vocabulary files are missing: every word becomes
    # [UNK]. Each condition alone is legitimate: a model of another script may not distinguish Latin letters, and an
    # embedding table may be larger than the vocabulary. A real model that meets both is very unlikely.
    indistinct = len({tuple(tokens.input_ids) for tokens in letters}) == 1
    if indistinct and 2 * (max(tokens) + 1) < config.vocab_size:
        raise CheckpointError(
            f"tokenizer.json: no vocabulary ({tokenizer.vocab_size} tokens, vocab_size in config.json is "
            f"{config.vocab_size}). Use the tokenizer of the model."
        )
    inserted = inserted_tokens(
        checkpoint.multi_vector,
        None if classifier is None else classifier.template,
        None if masked is None else masked.mask_token_id,
    )
    problem = find_missing_token(tokenizer, config.vocab_size, inserted)
    problem = problem or find_missing_type(tokenizer, config.type_vocab_size)
    if problem is not None:
        raise CheckpointError(f"tokenizer.json: {problem}. Use the tokenizer of the model.")
    if checkpoint.max_input_tokens <= special_tokens:
        raise CheckpointError(
            f"{checkpoint.embedding_config.origins['max_input_tokens']}: maximum length leaves no room for text "
            f"({checkpoint.max_input_tokens} tokens, including {special_tokens} special tokens). "
            "Set --max-input-tokens to a larger value."
        )
