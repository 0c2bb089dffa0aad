"""The network that is trained: the encoder with a head that predicts masked tokens."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.encoder import Encoder, EncoderConfig
from model.train.batches import IGNORED, TrainingBatch
from model.train.config import ModelOptions

INITIAL_DEVIATION = 0.02


class MaskedLanguageModel(nn.Module):
    """BERT's masked language model (Devlin et al. 2019); its output layer is the table of token embeddings."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        config = encoder.config
        self.encoder = encoder
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, batch: TrainingBatch) -> Tensor:
        """Return the sum of the cross-entropy of the masked tokens, in nats."""
        hidden = self.encoder(**batch.inputs)  # (R, T, D)
        is_target = batch.labels != IGNORED
        targets = self.norm(F.gelu(self.transform(hidden[is_target])))  # (N, D), masked tokens only
        logits = F.linear(targets, self.encoder.embeddings.word_embeddings.weight, self.bias)  # (N, V)
        return F.cross_entropy(logits.float(), batch.labels[is_target], reduction="sum")


def make_network(options: ModelOptions, vocab_size: int, seed: int) -> MaskedLanguageModel:
    """Return a network with random weights that depend on the seed alone."""
    config = EncoderConfig(
        vocab_size=vocab_size,
        hidden_size=options.hidden_size,
        num_hidden_layers=options.num_hidden_layers,
        num_attention_heads=options.num_attention_heads,
        intermediate_size=options.intermediate_size,
        max_position_embeddings=options.max_input_tokens,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
    )
    network = MaskedLanguageModel(Encoder(config))
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=INITIAL_DEVIATION, generator=generator)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    if options.positions == "sinusoidal":
        positions = network.encoder.embeddings.position_embeddings
        positions.weight.requires_grad_(False)
        positions.weight.copy_(sinusoids(options.max_input_tokens, options.hidden_size))
    return network


def sinusoids(positions: int, size: int) -> Tensor:
    """Return sinusoidal position embeddings, (positions, size) (Vaswani et al. 2017, section 3.5).

    They are scaled to the deviation of the other embeddings, which are not multiplied by sqrt(D) here.
    """
    rates = torch.exp(torch.arange(0, size, 2) * (-math.log(10_000) / size))
    angles = torch.arange(positions)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1) * INITIAL_DEVIATION * math.sqrt(2)
