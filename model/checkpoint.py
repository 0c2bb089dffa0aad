"""Published weights to an `Encoder`: one name map per family, every tensor used or a clear failure."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.encoder import ACTIVATIONS, Encoder, EncoderConfig
from model.modules import TextVector, read_max_tokens, read_text_vector
from model.published import CheckpointError, read_json, read_tensors


@dataclass(frozen=True)
class Checkpoint:
    """Everything a published model says: the encoder, and how a text's vector is made of its tokens' vectors."""

    encoder: Encoder
    family: str
    max_tokens: int
    tokenizer: bytes
    text_vector: TextVector


@dataclass(frozen=True)
class Family:
    """How one family spells our encoder: `prefixes` its tensors may carry, and the name of each part.

    `after_padding`: the head of the position table, up to the padding id, is never used by a text (RoBERTa counts
    from its padding id plus one); it is dropped, so that positions start at 0 everywhere else.
    """

    prefixes: tuple[str, ...]
    names: dict[str, str]
    after_padding: bool = False
    sizes: dict[str, str] = field(default_factory=dict)


BERT_NAMES = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.types": "embeddings.token_type_embeddings",
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
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
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
BERT_SIZES = {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "feed_forward_width": "intermediate_size",
    "activation": "hidden_act",
}
DISTILBERT_SIZES = {
    "width": "dim",
    "layers": "n_layers",
    "heads": "n_heads",
    "feed_forward_width": "hidden_dim",
    "activation": "activation",
}

# MiniLM, BGE, E5, GTE and LaBSE publish themselves as `bert`; multilingual E5 as `xlm-roberta`.
FAMILIES = {
    "bert": Family(("", "bert."), BERT_NAMES, sizes=BERT_SIZES),
    "roberta": Family(("", "roberta."), BERT_NAMES, after_padding=True, sizes=BERT_SIZES),
    "xlm-roberta": Family(("", "roberta."), BERT_NAMES, after_padding=True, sizes=BERT_SIZES),
    "camembert": Family(("", "roberta.", "camembert."), BERT_NAMES, after_padding=True, sizes=BERT_SIZES),
    "distilbert": Family(("", "distilbert."), DISTILBERT_NAMES, sizes=DISTILBERT_SIZES),
    "electra": Family(("", "electra."), BERT_NAMES, sizes=BERT_SIZES),
}

# Heads that a language-model or classifier checkpoint carries beside its encoder, and index buffers.
NOT_ENCODER = re.compile(
    r"^(pooler|cls|lm_head|classifier|pre_classifier|qa_outputs|discriminator_predictions|generator_predictions"
    r"|generator_lm_head|vocab_transform|vocab_layer_norm|vocab_projector)\.|^embeddings\.(position_ids|token_type_ids)$"
)


def load_checkpoint(directory: Path) -> Checkpoint:
    """Read a directory of published files; raise `CheckpointError` naming what does not fit."""
    config = read_json(directory / "config.json")
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise CheckpointError(f"config.json: model_type {kind!r} is not one of {', '.join(sorted(FAMILIES))}.")
    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise CheckpointError(
            f"{directory}: no tokenizer.json. Save one with transformers: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)."
        )
    encoder = build_encoder(kind, config, read_tensors(directory))
    return Checkpoint(
        encoder=encoder,
        family=kind,
        max_tokens=read_max_tokens(directory, encoder.config.max_positions),
        tokenizer=tokenizer.read_bytes(),
        text_vector=read_text_vector(directory, encoder.config.width),
    )


def build_encoder(kind: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> Encoder:
    """An `Encoder` holding exactly `tensors`, in float32 and evaluation mode."""
    family = FAMILIES[kind]
    encoder = Encoder(_encoder_config(family, config)).eval()
    prefix = _prefix(family, tensors)
    given = {_modern(name.removeprefix(prefix)): tensor for name, tensor in tensors.items()}
    state = {}
    for name, parameter in encoder.state_dict().items():
        source = _published_name(family, name)
        if source is None:
            state[name] = torch.zeros_like(parameter)  # DistilBERT has no types: adding 0 is exact
            continue
        tensor = given.pop(source, None)
        if tensor is None:
            raise CheckpointError(f"The weights lack the tensor {prefix}{source}.")
        if name == "embeddings.positions.weight":
            tensor = tensor[_first_position(family, config) :]
        if tensor.shape != parameter.shape:
            raise CheckpointError(
                f"The tensor {prefix}{source} has the shape {tuple(tensor.shape)}, "
                f"but config.json asks for {tuple(parameter.shape)}."
            )
        state[name] = tensor.float()
    left = sorted(name for name in given if not NOT_ENCODER.match(name))
    if left:
        raise CheckpointError(
            f"The weights hold the tensor {left[0]}, which the family {kind} has no place for"
            + (f" (and {len(left) - 1} more)." if len(left) > 1 else ".")
        )
    encoder.load_state_dict(state)
    return encoder


def _encoder_config(family: Family, config: dict[str, Any]) -> EncoderConfig:
    def need(key: str) -> Any:
        if key not in config:
            raise CheckpointError(f"config.json: {key} is missing.")
        return config[key]

    if config.get("position_embedding_type", "absolute") != "absolute":
        raise CheckpointError(
            f"config.json: position_embedding_type {config['position_embedding_type']!r}; only learned "
            "absolute positions are supported."
        )
    sizes = {ours: need(theirs) for ours, theirs in family.sizes.items()}
    if sizes["activation"] not in ACTIVATIONS:
        raise CheckpointError(
            f"config.json: activation {sizes['activation']!r} is not one of {', '.join(sorted(ACTIVATIONS))}."
        )
    for name, value in {**sizes, "vocab_size": need("vocab_size")}.items():
        theirs = family.sizes.get(name, name)
        if name != "activation" and (type(value) is not int or value < 1):
            raise CheckpointError(f"config.json: {theirs} is {value!r}, not a positive whole number.")
    if sizes["width"] % sizes["heads"]:
        raise CheckpointError(
            f"config.json: {family.sizes['width']} {sizes['width']} is not a multiple of the number of heads, "
            f"{sizes['heads']}."
        )
    return EncoderConfig(
        vocab_size=need("vocab_size"),
        max_positions=need("max_position_embeddings") - _first_position(family, config),
        types=config.get("type_vocab_size", 2) if "embeddings.types" in family.names else 1,
        layer_norm_eps=config.get("layer_norm_eps", 1e-12),
        embedding_width=config.get("embedding_size") or sizes["width"],
        **sizes,
    )


def _first_position(family: Family, config: dict[str, Any]) -> int:
    """RoBERTa's positions count from its padding id plus one."""
    return int(config.get("pad_token_id", 1)) + 1 if family.after_padding else 0


def _prefix(family: Family, tensors: dict[str, Tensor]) -> str:
    first = f"{family.names['embeddings.tokens']}.weight"
    for prefix in family.prefixes:
        if prefix + first in tensors:
            return prefix
    raise CheckpointError(f"The weights lack the tensor {first}.")


def _published_name(family: Family, name: str) -> str | None:
    """Ours to theirs: "blocks.3.attention.query.weight" -> "encoder.layer.3.attention.self.query.weight"."""
    part, _, leaf = name.rpartition(".")
    if not part.startswith("blocks."):
        theirs = family.names.get(part)
        return theirs and f"{theirs}.{leaf}"
    _, number, inner = part.split(".", 2)
    return f"{family.names['blocks']}.{number}.{family.names[inner]}.{leaf}"


def _modern(name: str) -> str:
    """The first BERT files call a layer norm's weight and bias gamma and beta."""
    return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
