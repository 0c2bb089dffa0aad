"""Encoders to train: new ones with random weights, and published models."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from model.checkpoint import Checkpoint
from model.encoder import Encoder, EncoderConfig, LayerConfig, RotaryConfig, sinusoids
from model.families.config_reader import ConfigReader
from model.train.config import ModelOptions, TrainError

BERT_DEVIATION, BERT_HIDDEN_SIZE = 0.02, 768


def make_encoder(options: ModelOptions, vocab_size: int) -> Encoder:
    """Return an encoder of these sizes; `initialize` sets its weights."""
    return Encoder(
        EncoderConfig(
            vocab_size=vocab_size,
            hidden_size=options.hidden_size,
            num_hidden_layers=options.num_hidden_layers,
            num_attention_heads=options.num_attention_heads,
            intermediate_size=options.intermediate_size,
            max_position_embeddings=options.max_input_tokens,
            type_vocab_size=2,
            norm_eps=1e-12,
            causal=options.attention == "causal",
            block=options.block,
            position_table=options.positions != "rotary",
            gated=options.gated,
            layers=tuple(_make_layer(options, index) for index in range(options.num_hidden_layers)),
        )
    )


def _make_layer(options: ModelOptions, index: int) -> LayerConfig:
    """Return the options of a layer; windows and the first norm follow ModernBERT (Warner et al. 2024).

    A pre-norm encoder needs no norm before its first attention, which reads the normalized embeddings.
    """
    has_window = options.window > 0 and index % options.global_attn_every_n_layers > 0
    return LayerConfig(
        window=options.window if has_window else None,
        rotary=RotaryConfig(options.rope_theta) if options.positions == "rotary" else None,
        attention_norm=options.block == "post" or index > 0,
    )


def initial_deviation(hidden_size: int) -> float:
    """Return the standard deviation of initial weights: BERT's for its size, and more for smaller encoders.

    With BERT's own deviation, small encoders learn slowly, because their sums have fewer terms.
    """
    return BERT_DEVIATION * math.sqrt(BERT_HIDDEN_SIZE / hidden_size)


def initialize(network: nn.Module, hidden_size: int, seed: int) -> None:
    """Set the weights of all linear layers and embeddings to random ones that depend on the seed alone."""
    generator, deviation = torch.Generator().manual_seed(seed), initial_deviation(hidden_size)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=deviation, generator=generator)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def set_sinusoidal_positions(encoder: Encoder) -> None:
    """Replace the position embeddings by sinusoids, which are not trained.

    They are scaled to the deviation of the other embeddings, which are not multiplied by sqrt(D) here.
    """
    assert encoder.embeddings.position_embeddings is not None
    positions = encoder.embeddings.position_embeddings.weight
    positions.requires_grad_(False)
    positions.copy_(sinusoids(*positions.shape) * initial_deviation(positions.shape[1]) * math.sqrt(2))


def keep_blocks(checkpoint: Checkpoint, indices: Sequence[int]) -> None:
    """Remove all blocks but these, as students of a deeper teacher start (Sanh et al. 2019). Raises TrainError."""
    encoder, family = checkpoint.encoder, checkpoint.family
    if indices[-1] >= len(encoder.blocks):
        raise TrainError(
            f"model.init_blocks: out of range ({indices[-1]}, limit {len(encoder.blocks) - 1}). Remove it."
        )
    layers = tuple(encoder.config.layers[index] for index in indices)
    config = replace(encoder.config, num_hidden_layers=len(indices), layers=layers)
    if family.read_config(ConfigReader(family.select_layers(checkpoint.config, indices))) != config:
        raise TrainError(
            f"model.init_blocks: the layers of model.init differ, and config.json of {family.name} cannot describe "
            f"this selection ({list(indices)}). Keep layers of the same kinds in the same places, or all."
        )
    encoder.blocks = nn.ModuleList(encoder.blocks[index] for index in indices)
    encoder.config = config
