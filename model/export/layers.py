"""Graphs of single layers, with the weights as inputs, and their records.

For each kind of layer, one graph computes the inputs of attention maps, and another computes every step from the
layer's input to its output.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from model.artifact.manifest import (
    KINDS,
    Kind,
    LayerRecord,
    LayersRecord,
    ParityRecord,
    PositionKind,
    StepsRecord,
    StructureRecord,
    TensorRecord,
)
from model.encoder.attention import attention_mask
from model.encoder.config import EncoderConfig
from model.encoder.encoder import Encoder
from model.encoder.layers import Block
from model.export.graphs import GraphSet, GraphSignature, WeightStore, open_session, write_graph
from model.export.parity import compare

OUTPUTS = ("scores", "probs", "values")
ANGLES, BIAS = "angles", "bias"


class LayerGraphs(NamedTuple):
    """The names of a layer's graphs."""

    attention: str
    steps: str


class _Positions(nn.Module):
    """A layer's attention mask, rotation and position bias, for one sequence with `position_ids` (1, T)."""

    def __init__(self, encoder: Encoder, index: int) -> None:
        super().__init__()
        layer = encoder.config.layers[index]
        self.causal, self.window = encoder.config.causal, layer.window
        self.bias, self.distances = encoder.positions.bias, encoder.positions.distances
        self.rotary = encoder.positions.find_rotary(layer)

    def mask(self, position_ids: Tensor) -> Tensor:
        """Return the additive mask, (1, 1, T, T)."""
        return attention_mask(position_ids * 0, position_ids, causal=self.causal, window=self.window)

    def rotation(self, position_ids: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the cosines and sines of rotary positions, if the model uses them."""
        return None if self.rotary is None else self.rotary(position_ids)


class _Attention(_Positions):
    """The parts of a layer from its input to the scores and values of its attention."""

    def __init__(self, encoder: Encoder, index: int) -> None:
        super().__init__(encoder, index)
        block = _block(encoder, index)
        self.norm = block.attention_norm if block.norm_before_attention else nn.Identity()
        self.attention = block.attention

    def forward(self, hidden_state: Tensor, position_ids: Tensor) -> tuple[Tensor, ...]:
        mask = self.mask(position_ids)
        if self.bias is not None:
            mask = mask + self.bias(position_ids)
        q, k, v = self.attention.project(self.norm(hidden_state), self.rotation(position_ids))
        distances = None if self.distances is None else self.distances(position_ids)
        scores = self.attention.scores(q, k, mask, distances)[0]
        return scores, torch.softmax(scores, dim=-1), v[0]


class _Steps(_Positions):
    """The parts of a layer from its input to its output."""

    def __init__(self, encoder: Encoder, index: int) -> None:
        super().__init__(encoder, index)
        self.block, self.has_bias = _block(encoder, index), encoder.config.has_position_bias

    def forward(self, hidden_state: Tensor, position_ids: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        attention, normalized = self.block.attention, self.block.read(hidden_state)
        q, k, v = attention.project(normalized, self.rotation(position_ids))
        x, normalized, q = hidden_state[:, rows], normalized[:, rows], q[:, :, rows]
        terms = self.distance_terms(position_ids, rows, q, k)
        relative = [] if self.bias is None else [self.bias(position_ids)[:, :, rows]]
        bias = sum((*relative, *terms), q.new_zeros(()))
        scores = attention.scores(q, k, bias)
        weights = torch.softmax(scores + self.mask(position_ids)[:, :, rows], dim=-1)
        heads = weights @ v
        projected, residual = self.block.add_attention(x, attention.output(heads.transpose(1, 2).flatten(2)))
        feed_forward, output = self.block.add_feed_forward(residual)
        steps = [normalized, q, k, v, scores, weights, heads, projected, residual, feed_forward, output]
        if self.rotary is not None:
            cos, sin = self.rotary(position_ids)
            steps.append(torch.atan2(sin, cos)[0, :, rows])
        if self.has_bias:
            steps += (bias, *terms)
        return tuple(step[0] for step in steps)

    def distance_terms(self, position_ids: Tensor, rows: Tensor, q: Tensor, k: Tensor) -> list[Tensor]:
        """Return the terms for queries (1, H, R, d) and keys (1, H, T, d), (1, H, R, T) each."""
        if self.distances is None:
            return []
        embeddings, of_pairs = self.distances(position_ids)
        return [*self.block.attention.distance_terms(q, k, embeddings, of_pairs[:, rows]).values()]


def _block(encoder: Encoder, index: int) -> Block:
    block = encoder.blocks[index]
    assert isinstance(block, Block)
    return block


class LayerFunction(nn.Module):
    """A function of one sequence and a layer's weights.

    Layers with the same options compute the same function of their weights, so they share one graph. Linear weights are
    (in, out), as in exported graphs.
    """

    inputs: tuple[str, ...] = ("hidden_state", "position_ids")
    outputs: tuple[str, ...]

    def __init__(self, parts: nn.Module, unused: tuple[str, ...] = ()) -> None:
        """Weights whose names start with an item of `unused` are not inputs."""
        super().__init__()
        self._parts = parts
        self._linear = {f"{name}.weight" for name, module in parts.named_modules() if isinstance(module, nn.Linear)}
        self._unused = unused

    def weights(self) -> dict[str, Tensor]:
        """Return the layer's weights and position tables, by name."""
        tensors = {**dict(self._parts.named_parameters()), **dict(self._parts.named_buffers())}
        return {
            name: tensor.T if name in self._linear else tensor
            for name, tensor in tensors.items()
            if not name.startswith(self._unused)
        }

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs for the inputs, and the weights of a layer with the same options, as in `weights()`."""
        count = len(self.inputs)
        state = {
            name: tensor.T if name in self._linear else tensor
            for name, tensor in zip(self.weights(), tensors[count:], strict=True)
        }
        outputs: tuple[Tensor, ...] = functional_call(self._parts, state, tensors[:count])
        return outputs


class LayerAttention(LayerFunction):
    """Scores and probabilities (H, T, T), and values (H, T, d), of one layer for one sequence.

    The inputs are those of the layer, (1, T, D), and the positions 0 to T-1, (1, T).
    """

    outputs = OUTPUTS

    def __init__(self, encoder: Encoder, index: int) -> None:
        super().__init__(_Attention(encoder, index), ("attention.output.",))


class LayerSteps(LayerFunction):
    """Every step of one layer for R tokens of one sequence, as defined in docs/maps.md, "Inside a layer".

    Keys and values are (H, T, d), queries and heads (H, R, d), scores and weights (H, R, T), and the others (R, D).
    With rotary positions, the angles (R, d/2) follow, in radians from -pi to pi. With relative positions, the score
    bias, (H, R, T), follows, and then the terms of disentangled attention that add up to it. `rows` (R) are the
    indices of the tokens; the other inputs are as in `LayerAttention`.
    """

    inputs = (*LayerFunction.inputs, "rows")
    outputs: tuple[str, ...] = (
        "normalized", "queries", "keys", "values", "scores", "weights", "heads", "projected", "residual",
        "feed_forward", "output",
    )  # fmt: skip

    def __init__(self, encoder: Encoder, index: int) -> None:
        parts = _Steps(encoder, index)
        super().__init__(parts)
        if parts.rotary is not None:
            self.outputs = (*self.outputs, ANGLES)
        if parts.has_bias:
            self.outputs = (*self.outputs, BIAS)
        if (options := encoder.config.disentangled) is not None:
            self.outputs = (*self.outputs, *options.terms)


TOKENS = 16
MEASURED_TOKENS = 3 * TOKENS + 1
TOLERANCE = 1e-5
"""Maximum difference of attention probabilities, and of layer outputs relative to the largest value."""


def write_layer_graphs(encoder: Encoder, graphs: GraphSet) -> list[LayerGraphs]:
    """Write the graphs of each distinct `LayerConfig` of an encoder; return the names of each layer's graphs."""
    layers = encoder.config.layers
    kinds = list(dict.fromkeys(layers))
    names = []
    for number, kind in enumerate(kinds):
        index = layers.index(kind)
        names.append(LayerGraphs(f"layer_{number}", f"steps_{number}"))
        _write(LayerAttention(encoder, index), names[-1].attention, graphs, encoder.config)
        _write(LayerSteps(encoder, index), names[-1].steps, graphs, encoder.config)
    return [names[kinds.index(layer)] for layer in layers]


def _write(module: LayerFunction, name: str, graphs: GraphSet, config: EncoderConfig) -> None:
    module.eval()
    weights = {key: tensor.contiguous() for key, tensor in module.weights().items()}
    inputs = _inputs(module, TOKENS, config)
    axes = {"hidden_state": {1: "T"}, "position_ids": {1: "T"}, "rows": {0: "R"}}
    axes = {key: names for key, names in axes.items() if key in inputs}
    write_graph(module, graphs.path(name), None, GraphSignature(inputs | weights, axes, module.outputs, variadic=True))
    tokens = min(MEASURED_TOKENS, config.max_position_embeddings)
    graphs.add(name, _measure(module, graphs.path(name), _inputs(module, tokens, config)))


def _inputs(module: LayerFunction, tokens: int, config: EncoderConfig) -> dict[str, Tensor]:
    """Return random layer inputs, without weights. The rows are all tokens except the last, in reverse."""
    inputs = {
        "hidden_state": torch.randn(1, tokens, config.hidden_size, generator=torch.Generator().manual_seed(0)),
        "position_ids": torch.arange(tokens)[None],
        "rows": torch.arange(tokens - 1).flip(0),
    }
    return {name: inputs[name] for name in module.inputs}


def _measure(module: LayerFunction, graph: Path, inputs: dict[str, Tensor]) -> ParityRecord:
    """Compare the probabilities or the output of a layer with torch."""
    session, name = open_session(graph), "probs" if isinstance(module, LayerAttention) else "output"
    weights = [tensor.detach().contiguous() for tensor in module.weights().values()]
    values = [*inputs.values(), *weights]
    with torch.inference_mode():
        expected = module(*values)[module.outputs.index(name)].numpy()
    names = [value.name for value in session.get_inputs()]
    (actual,) = session.run([name], {name: value.numpy() for name, value in zip(names, values, strict=True)})
    scale = max(1.0, float(np.abs(expected).max()))
    return compare([(expected / scale, actual / scale)], TOLERANCE)


def attention_kinds(config: EncoderConfig) -> tuple[Kind, ...]:
    """Return the kinds of map that a model supports.

    Causal attention and windows mask scores with the lowest float32, which would make a map of scores meaningless.
    """
    masked = config.causal or any(layer.window is not None for layer in config.layers)
    return tuple(kind for kind in KINDS if not (masked and kind == "scores"))


def describe_layers(encoder: Encoder, graphs: Sequence[LayerGraphs], store: WeightStore) -> LayersRecord:
    """Return the layer records, including the layers' graphs."""
    config = encoder.config
    layers = []

    def find_weights(function: LayerFunction) -> dict[str, TensorRecord]:
        return {name: store.find(tensor) for name, tensor in function.weights().items()}

    for index, (names, block) in enumerate(zip(graphs, encoder.blocks, strict=True)):
        assert isinstance(block, Block)
        output, norm, steps = block.attention.output, block.mixed_norm, LayerSteps(encoder, index)
        has = {name: name in steps.outputs for name in (ANGLES, BIAS)}
        layers.append(
            LayerRecord(
                graph=names.attention,
                weights=find_weights(LayerAttention(encoder, index)),
                steps=StepsRecord(graph=names.steps, weights=find_weights(steps), **has),
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
        structure=describe_structure(encoder, store),
    )


def describe_structure(encoder: Encoder, store: WeightStore) -> StructureRecord:
    """Return the structure record of the layers."""
    config, table = encoder.config, encoder.embeddings.position_embeddings
    used: dict[PositionKind, bool] = {
        "table": config.position_table,
        "rotary": any(layer.rotary is not None for layer in config.layers),
        "relative": config.has_position_bias,
    }
    return StructureRecord(
        block=config.block,
        positions=tuple(kind for kind, is_used in used.items() if is_used),
        segments=config.type_vocab_size > 0,
        embedding_norm=config.embedding_norm,
        head_size=config.head_size,
        num_key_value_heads=config.num_key_value_heads,
        attention_scale=config.attention_scale,
        intermediate_size=config.intermediate_size,
        gated=config.gated,
        position_table=None if table is None else store.find(table.weight),
    )
