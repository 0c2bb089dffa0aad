"""Networks to train: encoders with new or published weights, and embeddings."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from model.artifact.manifest import COMBINED, CombinedPooling, split_pooling
from model.checkpoint import Checkpoint
from model.encoder import Encoder, EncoderConfig, LayerConfig, RotaryConfig, sinusoids
from model.families.family import ConfigReader
from model.source.sentence_transformers import DenseLayer
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

    A pre-norm encoder needs no norm before its first attention, whose input is already normalized.
    """
    has_window = options.window > 0 and index % options.global_attn_every_n_layers > 0
    return LayerConfig(
        window=options.window if has_window else None,
        rotary=RotaryConfig(options.rope_theta) if options.positions == "rotary" else None,
        attention_norm=options.block == "post" or index > 0,
    )


def initial_deviation(hidden_size: int) -> float:
    """Return the standard deviation of initial weights: BERT's at BERT's size, larger for smaller encoders.

    With BERT's deviation, small encoders learn slowly, because their sums contain fewer terms.
    """
    return BERT_DEVIATION * math.sqrt(BERT_HIDDEN_SIZE / hidden_size)


def initialize(network: nn.Module, hidden_size: int, seed: int) -> None:
    """Initialize all linear layers and embeddings with random weights that depend only on the seed."""
    generator, deviation = torch.Generator().manual_seed(seed), initial_deviation(hidden_size)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=deviation, generator=generator)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def set_sinusoidal_positions(encoder: Encoder) -> None:
    """Replace the position embeddings with fixed sinusoids.

    They are scaled to the standard deviation of the other embeddings, which are not multiplied by sqrt(D) here.
    """
    assert encoder.embeddings.position_embeddings is not None
    positions = encoder.embeddings.position_embeddings.weight
    positions.requires_grad_(False)
    positions.copy_(sinusoids(*positions.shape) * initial_deviation(positions.shape[1]) * math.sqrt(2))


def keep_blocks(checkpoint: Checkpoint, indices: Sequence[int]) -> None:
    """Keep only these blocks, to initialize a student from a deeper teacher (Sanh et al. 2019). Raises TrainError."""
    encoder, family = checkpoint.encoder, checkpoint.family
    if indices[-1] >= len(encoder.blocks):
        raise TrainError(f"model.init_blocks: out of range ({indices[-1]}, limit {len(encoder.blocks) - 1}).")
    layers = tuple(encoder.config.layers[index] for index in indices)
    config = replace(encoder.config, num_hidden_layers=len(indices), layers=layers)
    if family.read_config(ConfigReader(family.select_layers(checkpoint.config, indices))) != config:
        raise TrainError(
            f"model.init_blocks: the layers of model.init differ, and config.json of {family.name} cannot describe "
            f"this selection ({list(indices)}). Keep layers of the same kinds in the same places, or all."
        )
    encoder.blocks = nn.ModuleList(encoder.blocks[index] for index in indices)
    encoder.config = config


class TextEncoder(nn.Module):
    """An encoder followed by pooling and dense layers."""

    def __init__(self, encoder: Encoder, pooling: CombinedPooling, dense: Sequence[DenseLayer]) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.dense = nn.Sequential(*(module for layer in dense for module in _modules(layer)))

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the float32 embeddings (S, D) of the S sequences of a packed batch, in the order of their ids."""
        hidden = self.encoder(**inputs)
        embeddings: Tensor = self.dense(pool(hidden, inputs["sequence_ids"], inputs["position_ids"], self.pooling))
        return embeddings.float()

    def embed_spans(self, inputs: dict[str, Tensor], span_ids: Tensor) -> Tensor:
        """Return the mean last hidden state of each of S spans, (S, hidden size), like the server's word vectors.

        `span_ids` (R, T) are 1 to S, and 0 outside of spans.
        """
        return pool(self.encoder(**inputs), span_ids, inputs["position_ids"], "mean")

    @property
    def dimensions(self) -> int:
        sizes = [module.out_features for module in self.dense if isinstance(module, nn.Linear)]
        return sizes[-1] if sizes else self.encoder.config.hidden_size

    def dense_layers(self) -> tuple[DenseLayer, ...]:
        """Return the dense layers with their current weights."""
        modules = list(self.dense)
        return tuple(
            DenseLayer(
                module.weight.detach().cpu(), None if module.bias is None else module.bias.detach().cpu(),
                "tanh" if index + 1 < len(modules) and isinstance(modules[index + 1], nn.Tanh) else "identity",
            )
            for index, module in enumerate(modules)
            if isinstance(module, nn.Linear)
        )  # fmt: skip


def pool(hidden: Tensor, sequence_ids: Tensor, position_ids: Tensor, pooling: CombinedPooling) -> Tensor:
    """Return the pooled vectors (S, D), or (S, P * D) of P combined poolings, in float32 of hidden states (R, T, D).

    `sequence_ids` (R, T) are 1 to S, and 0 for padding; `position_ids` (R, T) are 0 at the first token of a sequence.
    """
    if COMBINED in pooling:
        return torch.cat([pool(hidden, sequence_ids, position_ids, part) for part in split_pooling(pooling)], dim=1)
    owners, vectors = sequence_ids.flatten(), hidden.flatten(0, 1).float()
    count = int(owners.max())
    if pooling in ("cls", "last"):
        positions = position_ids.flatten()
        lengths = torch.bincount(owners, minlength=count + 1)
        chosen = (positions == (0 if pooling == "cls" else lengths[owners] - 1)) & (owners > 0)
        pooled = vectors.new_zeros(count + 1, vectors.shape[1]).index_copy(0, owners[chosen], vectors[chosen])
    elif pooling == "max":
        lowest = vectors.new_full((count + 1, vectors.shape[1]), -torch.inf)
        pooled = lowest.scatter_reduce(0, owners.unsqueeze(1).expand_as(vectors), vectors, "amax")
    else:
        weights = (position_ids.flatten() + 1 if pooling == "weighted_mean" else torch.ones_like(owners)).float()
        sums = vectors.new_zeros(count + 1, vectors.shape[1]).index_add(0, owners, vectors * weights.unsqueeze(1))
        divisors = weights.new_zeros(count + 1).index_add(0, owners, weights).clamp(min=1)
        pooled = sums / (divisors.sqrt() if pooling == "mean_sqrt_len" else divisors).unsqueeze(1)
    return pooled[1:]


def _modules(layer: DenseLayer) -> list[nn.Module]:
    outputs, inputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, bias=layer.bias is not None)
    with torch.no_grad():
        linear.weight.copy_(layer.weight)
        if layer.bias is not None:
            linear.bias.copy_(layer.bias)
    return [linear, nn.Tanh()] if layer.activation == "tanh" else [linear]
