"""Loading of published checkpoints into an `Encoder`, with one name map per model family.

Every tensor is either loaded, known to be unused, or an error.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from model.artifact import TRAINING
from model.checkpoint_files import CheckpointError, read_json, read_tensors
from model.encoder import ACTIVATIONS, Encoder, EncoderConfig
from model.manifest import TrainingRecord
from model.sentence_transformers_config import (
    FROM_FILES,
    EmbeddingConfig,
    SettingOptions,
    read_embedding_config,
    read_max_input_tokens,
)


@dataclass(frozen=True)
class Checkpoint:
    """A published model: its encoder, tokenizer.json, embedding configuration and, if known, training record."""

    encoder: Encoder
    model_type: str
    max_input_tokens: int
    tokenizer: bytes
    embedding_config: EmbeddingConfig
    training: TrainingRecord | None = None


@dataclass(frozen=True)
class Family:
    """The tensor and config names of a model family.

    `prefixes` are the possible prefixes of its tensor names. `module_names` and `config_keys` map the names of
    `Encoder` and `EncoderConfig` to those of the family.
    `position_offset`: RoBERTa numbers positions from its padding id plus one, so the rows of the position table
    before that are unused. They are dropped, and positions start at 0 in every family.
    `decoder`: `is_decoder` makes attention causal. transformers ignores the key in other families.
    """

    prefixes: tuple[str, ...]
    module_names: dict[str, str]
    position_offset: bool = False
    decoder: bool = True
    config_keys: dict[str, str] = field(default_factory=dict)


BERT_NAMES = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.token_type_embeddings": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "embeddings.project": "embeddings_project",
    "blocks": "encoder.layer",
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
DISTILBERT_NAMES = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "blocks": "transformer.layer",
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feed_forward.inner": "ffn.lin1",
    "feed_forward.outer": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}
BERT_KEYS = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "hidden_act": "hidden_act",
}
DISTILBERT_KEYS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}

# MiniLM, BGE, E5, GTE and LaBSE have model_type `bert`; multilingual E5 has `xlm-roberta`.
FAMILIES = {
    "bert": Family(("", "bert."), BERT_NAMES, config_keys=BERT_KEYS),
    "roberta": Family(("", "roberta."), BERT_NAMES, position_offset=True, config_keys=BERT_KEYS),
    "xlm-roberta": Family(("", "roberta."), BERT_NAMES, position_offset=True, config_keys=BERT_KEYS),
    "camembert": Family(("", "roberta.", "camembert."), BERT_NAMES, position_offset=True, config_keys=BERT_KEYS),
    "distilbert": Family(("", "distilbert."), DISTILBERT_NAMES, decoder=False, config_keys=DISTILBERT_KEYS),
    "electra": Family(("", "electra."), BERT_NAMES, config_keys=BERT_KEYS),
}

# Task heads of language-model and classifier checkpoints, and index buffers.
UNUSED_TENSORS = re.compile(
    r"^(pooler|cls|lm_head|classifier|pre_classifier|qa_outputs|discriminator_predictions|generator_predictions"
    r"|generator_lm_head|vocab_transform|vocab_layer_norm|vocab_projector)\.|^embeddings\.(position_ids|token_type_ids)$"
)


def load_checkpoint(directory: Path, settings: SettingOptions = FROM_FILES) -> Checkpoint:
    """Return the checkpoint in a directory of published files, with `settings` instead of those in the files.

    Raises:
        CheckpointError: a file is missing, invalid or of an unsupported model.
    """
    config = read_json(directory / "config.json")
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise CheckpointError(
            f"config.json: unsupported model_type {model_type!r}. Supported: {', '.join(sorted(FAMILIES))}."
        )
    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise CheckpointError(
            f"{tokenizer}: missing. Save it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)."
        )
    encoder = build_encoder(model_type, config, read_tensors(directory))
    embedding_config = read_embedding_config(directory, encoder.config.hidden_size, settings)
    max_input_tokens, origin = read_max_input_tokens(
        directory, encoder.config.max_position_embeddings, settings.max_input_tokens
    )
    embedding_config.origins["max_input_tokens"] = origin
    if encoder.config.causal and embedding_config.pooling == "cls":
        raise CheckpointError(
            f"{embedding_config.origins['pooling']}: cls pooling of a causal model (its first token attends to itself "
            "only, so all embeddings are equal). Use mean pooling."
        )
    return Checkpoint(
        encoder=encoder,
        model_type=model_type,
        max_input_tokens=max_input_tokens,
        tokenizer=tokenizer.read_bytes(),
        embedding_config=embedding_config,
        training=read_training(directory),
    )


def read_training(directory: Path) -> TrainingRecord | None:
    """Return the record in training.json, or None if the file is missing. Raises CheckpointError."""
    path = directory / TRAINING
    if not path.is_file():
        return None
    try:
        return TrainingRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise CheckpointError(
            f"{TRAINING}: invalid training record (at {field or 'the top'}). Correct or remove it."
        ) from None


def build_encoder(model_type: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> Encoder:
    """Return an `Encoder` with the weights `tensors`, in float32 and evaluation mode.

    Raises:
        CheckpointError: a tensor is missing, unknown or of the wrong shape, or `config` is invalid.
    """
    family = FAMILIES[model_type]
    encoder = Encoder(_encoder_config(family, config)).eval()
    prefix = _find_prefix(family, tensors)
    remaining = {_modern_name(name.removeprefix(prefix)): tensor for name, tensor in tensors.items()}
    state = {}
    for name, parameter in encoder.state_dict().items():
        source = published_name(family, name)
        if source is None:
            state[name] = torch.zeros_like(parameter)  # DistilBERT has no token types: adding 0 is exact
            continue
        tensor = remaining.pop(source, None)
        if tensor is None:
            raise CheckpointError(f"Weights: tensor {prefix}{source} is missing. Download the model again.")
        if name == "embeddings.position_embeddings.weight":
            tensor = tensor[_first_position(family, config) :]
        if tensor.shape != parameter.shape:
            raise CheckpointError(
                f"Weights: tensor {prefix}{source} has an unexpected shape "
                f"({tuple(tensor.shape)}, expected {tuple(parameter.shape)}). Check config.json."
            )
        state[name] = tensor.float()
    unknown = sorted(name for name in remaining if not UNUSED_TENSORS.match(name))
    if unknown:
        raise CheckpointError(
            f"Weights: unknown tensor {unknown[0]} for model_type {model_type} ({len(unknown)} in total). "
            "This architecture is not supported."
        )
    encoder.load_state_dict(state)
    return encoder


def _encoder_config(family: Family, config: dict[str, Any]) -> EncoderConfig:
    def require(key: str) -> Any:
        if key not in config:
            raise CheckpointError(f"config.json: {key} is missing. Download the model again.")
        return config[key]

    if config.get("position_embedding_type", "absolute") != "absolute":
        raise CheckpointError(
            f"config.json: unsupported position_embedding_type {config['position_embedding_type']!r}. "
            'Supported: "absolute".'
        )
    values = {key: require(family_key) for key, family_key in family.config_keys.items()}
    if values["hidden_act"] not in ACTIVATIONS:
        raise CheckpointError(
            f"config.json: unsupported {family.config_keys['hidden_act']} {values['hidden_act']!r}. "
            f"Supported: {', '.join(sorted(ACTIVATIONS))}."
        )
    for key, value in {**values, "vocab_size": require("vocab_size")}.items():
        if key != "hidden_act" and (type(value) is not int or value < 1):
            raise CheckpointError(
                f"config.json: {family.config_keys.get(key, key)} is not a positive integer ({value!r}). Correct it."
            )
    if values["hidden_size"] % values["num_attention_heads"]:
        raise CheckpointError(
            f"config.json: {family.config_keys['hidden_size']} is not a multiple of "
            f"{family.config_keys['num_attention_heads']} ({values['hidden_size']}, {values['num_attention_heads']}). "
            "Correct it."
        )
    has_types = "embeddings.token_type_embeddings" in family.module_names
    return EncoderConfig(
        vocab_size=require("vocab_size"),
        max_position_embeddings=require("max_position_embeddings") - _first_position(family, config),
        type_vocab_size=config.get("type_vocab_size", 2) if has_types else 1,
        layer_norm_eps=config.get("layer_norm_eps", 1e-12),
        embedding_size=config.get("embedding_size") or values["hidden_size"],
        causal=_is_causal(family, config),
        **values,
    )


def _is_causal(family: Family, config: dict[str, Any]) -> bool:
    if not family.decoder:
        return False
    for key in ("is_decoder", "add_cross_attention"):
        if type(config.get(key, False)) is not bool:
            raise CheckpointError(f"config.json: {key} is not true or false ({config[key]!r}). Correct it.")
    if config.get("add_cross_attention", False):
        raise CheckpointError(
            "config.json: add_cross_attention is true, but cross-attention is not supported. "
            "Use a model without an encoder-decoder architecture."
        )
    return bool(config.get("is_decoder", False))


def _first_position(family: Family, config: dict[str, Any]) -> int:
    return int(config.get("pad_token_id", 1)) + 1 if family.position_offset else 0


def _find_prefix(family: Family, tensors: dict[str, Tensor]) -> str:
    first = f"{family.module_names['embeddings.word_embeddings']}.weight"
    for prefix in family.prefixes:
        if prefix + first in tensors:
            return prefix
    raise CheckpointError(f"Weights: tensor {first} is missing. Download the model again.")


def published_name(family: Family, name: str) -> str | None:
    """Return the family's name of a parameter of `Encoder`; None if the family has no such parameter.

    Example: "blocks.3.attention.query.weight" -> "encoder.layer.3.attention.self.query.weight".
    """
    module, _, leaf = name.rpartition(".")
    if not module.startswith("blocks."):
        published = family.module_names.get(module)
        return published and f"{published}.{leaf}"
    _, number, part = module.split(".", 2)
    return f"{family.module_names['blocks']}.{number}.{family.module_names[part]}.{leaf}"


def _modern_name(name: str) -> str:
    """Rename gamma and beta of layer norms in early BERT checkpoints to weight and bias."""
    return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))


def published_tensors(
    model_type: str, config: dict[str, Any], source: dict[str, Tensor], encoder: Encoder
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint with the weights of `encoder` instead of its own; the inverse of loading.

    `config` and `source` are the config.json and the tensors of the checkpoint. Of the other tensors, only those of the
    pooler are kept, without which transformers would initialize one.
    """
    family = FAMILIES[model_type]
    prefix = _find_prefix(family, source)
    tensors = {name: tensor for name, tensor in source.items() if name.removeprefix(prefix).startswith("pooler.")}
    for name, tensor in encoder.state_dict().items():
        published = published_name(family, name)
        if name == "embeddings.position_embeddings.weight":
            unused = source[f"{prefix}{published}"][: _first_position(family, config)]
            tensors[f"{prefix}{published}"] = torch.cat([unused.float(), tensor.cpu()])
        elif published is not None:
            tensors[f"{prefix}{published}"] = tensor
    return tensors
