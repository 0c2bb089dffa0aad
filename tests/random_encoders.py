"""Tiny encoders with random weights, and the weights as the service reads them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.encoder import (
    Block,
    DisentangledConfig,
    Encoder,
    EncoderConfig,
    LayerConfig,
    RelativeConfig,
    RMSNorm,
    RotaryConfig,
    SelfAttention,
)
from model.export.layers import LayerAttention
from service.engine.layers import AttentionOutput, OutputWeights
from service.operations.maps import LayerMaps

Floats = NDArray[Any]

VOCAB_SIZE, POSITIONS = 61, 160


@dataclass(frozen=True)
class SequenceOutput:
    """An encoder's output for one sequence: `hidden_states` (L+1, T, D), `probs` (L, H, T, T)."""

    hidden_states: Floats
    probs: Floats


PARTS: dict[str, dict[str, Any]] = {
    "bert": {},
    "causal": {"causal": True},
    "relative bias": {"relative_bias": RelativeConfig(16, 20), "type_vocab_size": 0},
    "distances": {"disentangled": DisentangledConfig(6, 20), "position_table": False},
    "alibi": {"alibi": True, "position_table": False, "gated": True, "feed_forward_bias": False},
    "jina code": {"block": "double_post", "joint_query_key_norm": True},
    "modernbert": {
        "block": "pre", "norm": "layer_norm_without_bias", "position_table": False, "attention_bias": False,
        "attention_output_bias": False, "gated": True,
        "layers": (
            LayerConfig(rotary=RotaryConfig(100.0), attention_norm=False),
            LayerConfig(4, RotaryConfig(30.0)),
            LayerConfig(rotary=RotaryConfig(100.0)),
        ),
    },
    "pre-norm with biases": {"block": "pre", "norm": "layer_norm"},
    "qwen": {
        "block": "pre", "norm": "rms_norm", "position_table": False, "embedding_norm": False,
        "attention_output_bias": False, "causal": True, "num_key_value_heads": 2, "head_size": 10,
        "query_key_norm": True, "layers": (LayerConfig(rotary=RotaryConfig(100.0)),) * 3,
    },
    "gemma": {
        "block": "sandwich", "norm": "rms_norm", "position_table": False, "embedding_norm": False,
        "num_key_value_heads": 1, "query_key_norm": True, "attention_scale": 0.4, "embedding_scale": 1.7,
        "layers": (LayerConfig(5, RotaryConfig(30.0)), LayerConfig(rotary=RotaryConfig(100.0, 2.0)), LayerConfig(3)),
    },
}  # fmt: skip
"""Options of encoders with each part; all have three layers."""


def random_encoder(
    dtype: torch.dtype = torch.float32,
    *,
    layers: int = 3,
    heads: int = 4,
    hidden_size: int = 32,
    scale: float = 0.3,
    parts: str = "bert",
) -> Encoder:
    """Return an encoder whose random weights, biases and norms are large enough to expose wrong order or scale."""
    options: dict[str, Any] = {"type_vocab_size": 2, "norm_eps": 1e-3, **PARTS[parts]}
    config = EncoderConfig(VOCAB_SIZE, hidden_size, layers, heads, 2 * hidden_size, POSITIONS, **options)
    encoder = Encoder(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(41)
    with torch.no_grad():
        for module in encoder.modules():
            center = 1.0 if isinstance(module, nn.LayerNorm | RMSNorm) else 0.0
            for name, parameter in module.named_parameters(recurse=False):
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_((center if name == "weight" else 0.0) + scale * noise)
    return encoder


@dataclass(frozen=True)
class TorchLayer:
    """A layer of an encoder, as the service sees it; PyTorch computes its attention in the dtype of the encoder."""

    encoder: Encoder
    index: int

    @cached_property
    def block(self) -> Block:
        block = self.encoder.blocks[self.index]
        assert isinstance(block, Block)
        return block

    @cached_property
    def weights(self) -> OutputWeights:
        config, output, norm = self.encoder.config, self.block.attention.output, self.block.mixed_norm
        return OutputWeights(
            output.weight.detach().numpy().T,
            to_numpy(output.bias),
            norm.weight.detach().numpy(),
            to_numpy(getattr(norm, "bias", None)),
            config.norm_eps,
            config.norm != "rms_norm",
            config.block != "sandwich",
        )

    def attend(self, hidden: Floats, outputs: Sequence[AttentionOutput]) -> dict[AttentionOutput, Floats]:
        module, x = LayerAttention(self.encoder, self.index), torch.from_numpy(np.array(hidden))[None]
        with torch.inference_mode():
            results = module(x, torch.arange(len(hidden))[None], *module.weights().values())
        named: dict[AttentionOutput, Floats] = dict(
            zip(("scores", "probs", "values"), (result.numpy() for result in results), strict=True)
        )
        return {name: named[name] for name in outputs}

    def maps(self, hidden: Floats, heads: Sequence[int] | None = None) -> LayerMaps:
        return LayerMaps(hidden, self.attend(hidden, ("scores", "probs", "values")), self.weights, heads)

    def run(self, hidden: Floats) -> Floats:
        """Return the output of the block, (T, D)."""
        x, positions = torch.from_numpy(np.array(hidden))[None], torch.arange(len(hidden))[None]
        with torch.inference_mode():
            inputs = self.encoder.positions(self.encoder.config.layers[self.index], positions * 0, positions)
            result: Floats = self.block(x, inputs)[0].numpy()
        return result

    def decomposed(self, hidden: Floats) -> Floats:
        """Return the result that block_norm and projection decompose, (T, D)."""
        with capture_outputs(self.block.mixed_norm) as captured:
            self.run(hidden)
        return captured[0] + hidden if self.block.kind == "sandwich" else captured[0]


@dataclass(frozen=True)
class HandMadeLayer:
    """A post-norm layer with one head; linear maps are `x @ weight + bias`."""

    query: Floats
    query_bias: Floats
    key: Floats
    value: Floats

    @property
    def weights(self) -> OutputWeights:
        width = len(self.key)
        return OutputWeights(np.eye(width), np.zeros(width), np.ones(width), np.zeros(width), 1e-12)

    def attend(self, hidden: Floats, outputs: Sequence[AttentionOutput]) -> dict[AttentionOutput, Floats]:
        scores = (hidden @ self.query + self.query_bias) @ (hidden @ self.key).T * hidden.shape[1] ** -0.5
        probs = np.exp(scores - scores.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        named: dict[AttentionOutput, Floats] = {"scores": scores, "probs": probs, "values": hidden @ self.value}
        return {name: named[name][None] for name in outputs}

    def maps(self, hidden: Floats) -> LayerMaps:
        return LayerMaps(hidden, self.attend(hidden, ("scores", "probs", "values")), self.weights)


def to_numpy(tensor: Tensor | None) -> Floats | None:
    return None if tensor is None else tensor.detach().numpy()


def torch_layers(encoder: Encoder) -> list[TorchLayer]:
    return [TorchLayer(encoder, index) for index in range(len(encoder.blocks))]


def random_ids(tokens: int) -> list[int]:
    ids: list[int] = np.random.default_rng(tokens).permutation(VOCAB_SIZE)[:tokens].tolist()
    return ids


@dataclass(frozen=True)
class EncoderOutput:
    """`hidden_states`: L+1 tensors (R, T, D), embeddings first. `probs`: L tensors (R, H, T, T), none for long rows."""

    hidden_states: list[Tensor]
    probs: list[Tensor]


def encode(encoder: Encoder, *inputs: Tensor) -> EncoderOutput:
    """Return the hidden states of all layers, and their attention probabilities: the softmax of the scores."""
    probs, compute_scores = [], SelfAttention.scores

    def scores(attention: SelfAttention, *inputs: Any) -> Tensor:
        computed = compute_scores(attention, *inputs)
        probs.append(computed.softmax(dim=-1))
        return computed

    with torch.inference_mode(), mock.patch.object(SelfAttention, "scores", scores):
        return EncoderOutput(encoder.hidden_states(*inputs), probs)


def run(encoder: Encoder, ids: list[int]) -> SequenceOutput:
    input_ids = torch.tensor([ids])
    inputs = (input_ids, torch.arange(len(ids))[None], torch.zeros_like(input_ids), torch.ones_like(input_ids))
    output = encode(encoder, *inputs)
    return SequenceOutput(torch.cat(output.hidden_states).numpy(), torch.cat(output.probs).numpy())


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
