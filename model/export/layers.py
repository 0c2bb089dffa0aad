"""What attention maps are computed from: one graph per kind of layer, with its weights as inputs, and their records."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from model.artifact.manifest import KINDS, Kind, LayerRecord, LayersRecord, ParityRecord
from model.encoder.attention import attention_mask
from model.encoder.config import EncoderConfig
from model.encoder.encoder import Encoder
from model.encoder.layers import Block
from model.export.graphs import GraphSet, GraphSignature, WeightStore, open_session, write_graph
from model.export.parity import compare

OUTPUTS = ("scores", "probs", "values")


class _ScoresAndValues(nn.Module):
    """The parts of a layer from its input to the scores and values of its attention."""

    def __init__(self, encoder: Encoder, index: int) -> None:
        super().__init__()
        block, layer = encoder.blocks[index], encoder.config.layers[index]
        assert isinstance(block, Block)
        self.causal, self.window = encoder.config.causal, layer.window
        self.norm = block.attention_norm if block.norm_before_attention else nn.Identity()
        self.attention = block.attention
        self.bias = encoder.positions.bias
        self.rotary = encoder.positions.find_rotary(layer)

    def forward(self, hidden_state: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        mask = attention_mask(position_ids * 0, position_ids, causal=self.causal, window=self.window)
        if self.bias is not None:
            mask = mask + self.bias(position_ids)
        rotation = None if self.rotary is None else self.rotary(position_ids)
        q, k, v = self.attention.project(self.norm(hidden_state), rotation)
        return self.attention.scores(q, k, mask), v


class LayerAttention(nn.Module):
    """Scores, probabilities and values of one layer in one sequence.

    Layers with the same options compute the same function of their weights, so one graph serves them all. Linear
    weights are (in, out), as in exported graphs.
    """

    def __init__(self, encoder: Encoder, index: int) -> None:
        super().__init__()
        self._parts = _ScoresAndValues(encoder, index)
        self._linear = {
            f"{name}.weight" for name, module in self._parts.named_modules() if isinstance(module, nn.Linear)
        }

    def weights(self) -> dict[str, Tensor]:
        """Return the weights of the layer and its tables of positions, by name."""
        tensors = {**dict(self._parts.named_parameters()), **dict(self._parts.named_buffers())}
        return {
            name: tensor.T if name in self._linear else tensor
            for name, tensor in tensors.items()
            if not name.startswith("attention.output.")
        }

    def forward(self, hidden_state: Tensor, position_ids: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores and probs (H, T, T), and values (H, T, d).

        Args:
            hidden_state: The input of the layer, (1, T, D).
            position_ids: 0 to T-1, (1, T).
            weights: The weights of a layer with the same options, in the order of `weights()`.
        """
        state = {
            name: tensor.T if name in self._linear else tensor
            for name, tensor in zip(self.weights(), weights, strict=True)
        }
        scores, values = functional_call(self._parts, state, (hidden_state, position_ids))
        return scores[0], torch.softmax(scores[0], dim=-1), values[0]


TOKENS = 16
MEASURED_TOKENS = 3 * TOKENS + 1
TOLERANCE = 1e-5
"""Maximum difference of attention probabilities."""


def write_layer_graphs(encoder: Encoder, graphs: GraphSet) -> list[str]:
    """Write a graph for each distinct `LayerConfig` of an encoder; return the name of each layer's graph."""
    layers = encoder.config.layers
    kinds = list(dict.fromkeys(layers))
    for number, kind in enumerate(kinds):
        name = f"layer_{number}"
        module = LayerAttention(encoder, layers.index(kind)).eval()
        weights = {key: tensor.contiguous() for key, tensor in module.weights().items()}
        examples = {
            "hidden_state": torch.zeros(1, TOKENS, encoder.config.hidden_size),
            "position_ids": torch.zeros(1, TOKENS, dtype=torch.int64),
            **weights,
        }
        axes = {"hidden_state": {1: "T"}, "position_ids": {1: "T"}}
        signature = GraphSignature(examples, axes, OUTPUTS, variadic=len(weights))
        write_graph(module, graphs.path(name), None, signature)
        tokens = min(MEASURED_TOKENS, encoder.config.max_position_embeddings)
        graphs.add(name, _measure(module, graphs.path(name), tokens))
    return [f"layer_{kinds.index(layer)}" for layer in layers]


def _measure(module: LayerAttention, graph: Path, tokens: int) -> ParityRecord:
    """Compare the attention probabilities of a graph with torch on `tokens` random hidden states."""
    session = open_session(graph)
    weights = [tensor.detach().contiguous() for tensor in module.weights().values()]
    width = session.get_inputs()[0].shape[2]
    hidden = torch.randn(1, tokens, width, generator=torch.Generator().manual_seed(0))
    inputs = [hidden, torch.arange(tokens)[None], *weights]
    with torch.inference_mode():
        _, expected, _ = module(*inputs)
    names = [value.name for value in session.get_inputs()]
    (probs,) = session.run(["probs"], {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
    return compare([(expected.numpy(), probs)], TOLERANCE)


def attention_kinds(config: EncoderConfig) -> tuple[Kind, ...]:
    """Return the kinds of map that a model has.

    Causal attention and windows mask scores with the lowest float32, so a map of scores would be meaningless.
    """
    masked = config.causal or any(layer.window is not None for layer in config.layers)
    return tuple(kind for kind in KINDS if not (masked and kind == "scores"))


def describe_layers(encoder: Encoder, graphs: Sequence[str], store: WeightStore) -> LayersRecord:
    """Return the records that attention maps need; `graphs` names each layer's graph."""
    config = encoder.config
    layers = []
    for index, (graph, block) in enumerate(zip(graphs, encoder.blocks, strict=True)):
        assert isinstance(block, Block)
        output, norm = block.attention.output, block.mixed_norm
        layers.append(
            LayerRecord(
                graph=graph,
                weights={name: store.find(tensor) for name, tensor in LayerAttention(encoder, index).weights().items()},
                output=store.find(output.weight.T),
                output_bias=store.find_optional(output.bias),
                norm=store.find(norm.weight),
                norm_bias=store.find_optional(getattr(norm, "bias", None)),
            )
        )
    return LayersRecord(
        norm="rms_norm" if config.norm == "rms_norm" else "layer_norm",
        norm_eps=config.norm_eps,
        residual_in_norm=config.block != "sandwich",
        layers=tuple(layers),
    )
