"""Tiny encoders with random weights, in any element type, and what the service reads of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.encoder import Block, Encoder, EncoderConfig
from service.engine.explain.maps import BlockWeights

Floats = NDArray[Any]

VOCABULARY, POSITIONS = 61, 160


@dataclass(frozen=True)
class Ran:
    """One text through an encoder: `hidden` `(L+1, T, D)`, `probs` `(L, H, T, T)`."""

    hidden: Floats
    probs: Floats


def random_encoder(
    dtype: torch.dtype = torch.float32, *, layers: int = 3, heads: int = 4, width: int = 32, scale: float = 0.3
) -> Encoder:
    """Weights large enough that a wrong order, sign or scale shows at once, every bias and layer norm included."""
    config = EncoderConfig(VOCABULARY, width, layers, heads, 2 * width, POSITIONS, types=2, layer_norm_eps=1e-3)
    encoder = Encoder(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(41)
    with torch.no_grad():
        for module in encoder.modules():
            centre = 1.0 if isinstance(module, nn.LayerNorm) else 0.0
            for name, parameter in module.named_parameters(recurse=False):
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_((centre if name == "weight" else 0.0) + scale * noise)
    return encoder


def as_bert_begins(dtype: torch.dtype, *, layers: int, heads: int, width: int) -> Encoder:
    """Initialised as BERT is before training: normal weights of deviation 0.02, no biases, plain layer norms."""
    encoder = random_encoder(dtype, layers=layers, heads=heads, width=width, scale=0.02)
    with torch.no_grad():
        for module in encoder.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.fill_(1)
            if isinstance(module, nn.LayerNorm | nn.Linear):
                module.bias.zero_()
    return encoder


def blocks_of(encoder: Encoder) -> list[BlockWeights]:
    """As `BlockWeights.of` reads them from an artifact."""
    blocks = []
    for block in blocks_in(encoder):
        attention = block.attention
        parts = {"query": attention.query, "key": attention.key, "value": attention.value, "output": attention.output}
        blocks.append(
            BlockWeights(
                encoder.config.heads,
                encoder.config.layer_norm_eps,
                **{name: part.weight.detach().numpy().T for name, part in parts.items()},
                **{f"{name}_bias": part.bias.detach().numpy() for name, part in parts.items()},
                norm=block.attention_norm.weight.detach().numpy(),
                norm_bias=block.attention_norm.bias.detach().numpy(),
            )
        )
    return blocks


def blocks_in(encoder: Encoder) -> Iterator[Block]:
    for block in encoder.blocks:
        assert isinstance(block, Block)
        yield block


def random_ids(tokens: int) -> list[int]:
    ids: list[int] = np.random.default_rng(tokens).permutation(VOCABULARY)[:tokens].tolist()
    return ids


def run(encoder: Encoder, ids: list[int]) -> Ran:
    """One text alone in its row."""
    row = torch.tensor([ids])
    with torch.inference_mode():
        found = encoder.encode(row, torch.arange(len(ids))[None], torch.zeros_like(row), torch.ones_like(row))
    return Ran(torch.cat(found.hidden).numpy(), torch.cat(found.probs).numpy())


def run_block(block: Block, hidden: Floats) -> Floats:
    """What one block makes of `(T, D)`, by torch."""
    given = torch.from_numpy(np.array(hidden))[None]
    with torch.inference_mode():
        out, _ = block(given, torch.zeros(1, 1, len(hidden), len(hidden), dtype=given.dtype))
    found: Floats = out[0].numpy()
    return found


@contextmanager
def catching(module: nn.Module) -> Iterator[list[Floats]]:
    """What a module gave, `(T, D)` each time that it ran."""
    caught: list[Floats] = []
    hook = module.register_forward_hook(lambda _, __, out: caught.append(out[0].numpy()))
    try:
        yield caught
    finally:
        hook.remove()


@contextmanager
def changing(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While it lasts, what a module gives, `(1, T, D)`, is changed."""
    hook = module.register_forward_hook(lambda _, __, out: change(out))
    try:
        yield
    finally:
        hook.remove()
