"""Tiny encoders with random weights, and the weights as the service reads them."""

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

VOCAB_SIZE, POSITIONS = 61, 160


@dataclass(frozen=True)
class SequenceOutput:
    """An encoder's output for one sequence: `hidden_states` (L+1, T, D), `probs` (L, H, T, T)."""

    hidden_states: Floats
    probs: Floats


def random_encoder(
    dtype: torch.dtype = torch.float32,
    *,
    layers: int = 3,
    heads: int = 4,
    hidden_size: int = 32,
    scale: float = 0.3,
    causal: bool = False,
) -> Encoder:
    """Return an encoder whose random weights, biases and layer norms are large enough to expose wrong order or
    scale.
    """
    config = EncoderConfig(
        VOCAB_SIZE, hidden_size, layers, heads, 2 * hidden_size, POSITIONS, type_vocab_size=2, layer_norm_eps=1e-3,
        causal=causal,
    )  # fmt: skip
    encoder = Encoder(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(41)
    with torch.no_grad():
        for module in encoder.modules():
            center = 1.0 if isinstance(module, nn.LayerNorm) else 0.0
            for name, parameter in module.named_parameters(recurse=False):
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_((center if name == "weight" else 0.0) + scale * noise)
    return encoder


def bert_init_encoder(dtype: torch.dtype, *, layers: int, heads: int, hidden_size: int) -> Encoder:
    """Return an encoder initialized like BERT: normal weights with standard deviation 0.02, zero biases, identity layer
    norms.
    """
    encoder = random_encoder(dtype, layers=layers, heads=heads, hidden_size=hidden_size, scale=0.02)
    with torch.no_grad():
        for module in encoder.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.fill_(1)
            if isinstance(module, nn.LayerNorm | nn.Linear):
                module.bias.zero_()
    return encoder


def block_weights(encoder: Encoder) -> list[BlockWeights]:
    """Return each block's weights, as `MappedBlocks` reads them from an artifact."""
    weights = []
    for block in iter_blocks(encoder):
        attention = block.attention
        parts = {"query": attention.query, "key": attention.key, "value": attention.value, "output": attention.output}
        weights.append(
            BlockWeights(
                encoder.config.num_attention_heads,
                encoder.config.layer_norm_eps,
                **{name: part.weight.detach().numpy().T for name, part in parts.items()},
                **{f"{name}_bias": part.bias.detach().numpy() for name, part in parts.items()},
                norm=block.attention_norm.weight.detach().numpy(),
                norm_bias=block.attention_norm.bias.detach().numpy(),
                causal=encoder.config.causal,
            )
        )
    return weights


def iter_blocks(encoder: Encoder) -> Iterator[Block]:
    for block in encoder.blocks:
        assert isinstance(block, Block)
        yield block


def random_ids(tokens: int) -> list[int]:
    ids: list[int] = np.random.default_rng(tokens).permutation(VOCAB_SIZE)[:tokens].tolist()
    return ids


def run(encoder: Encoder, ids: list[int]) -> SequenceOutput:
    input_ids = torch.tensor([ids])
    with torch.inference_mode():
        output = encoder.encode(
            input_ids, torch.arange(len(ids))[None], torch.zeros_like(input_ids), torch.ones_like(input_ids)
        )
    return SequenceOutput(torch.cat(output.hidden_states).numpy(), torch.cat(output.probs).numpy())


def run_block(block: Block, hidden: Floats, *, causal: bool = False) -> Floats:
    x, tokens = torch.from_numpy(np.array(hidden))[None], len(hidden)
    mask = torch.zeros(tokens, tokens, dtype=x.dtype)
    if causal:
        mask.masked_fill_(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -torch.inf)
    with torch.inference_mode():
        output, _ = block(x, mask)
    result: Floats = output[0].numpy()
    return result


@contextmanager
def capture_outputs(module: nn.Module) -> Iterator[list[Floats]]:
    """Yield a list that collects the output (T, D) of every call to `module`."""
    outputs: list[Floats] = []
    hook = module.register_forward_hook(lambda _, __, output: outputs.append(output[0].numpy()))
    try:
        yield outputs
    finally:
        hook.remove()


@contextmanager
def replace_outputs(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Apply `change` to the outputs (1, T, D) of `module` inside the context."""
    hook = module.register_forward_hook(lambda _, __, output: change(output))
    try:
        yield
    finally:
        hook.remove()
