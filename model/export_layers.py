"""Export of the graphs that attention maps are computed from: one per kind of layer, with its weights as inputs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from model.encoder import Encoder, LayerAttention
from model.encoder.layer_attention import OUTPUTS
from model.manifest import GraphRecord
from model.measurements import GraphReport, ParityRecord
from model.onnx_graph import GraphSignature, describe_graph, write_graph

TOKENS = 16
MEASURED_TOKENS = 3 * TOKENS + 1
TOLERANCE = 1e-5
"""Maximum difference of attention probabilities."""


@dataclass(frozen=True)
class LayerGraphs:
    """The graphs and their measurements by name, and the name of each layer's graph."""

    graphs: dict[str, GraphRecord]
    reports: dict[str, GraphReport]
    graph_of_layer: list[str]


def write_layer_graphs(encoder: Encoder, root: Path) -> LayerGraphs:
    """Write a graph for each distinct `LayerConfig` of an encoder to `root`."""
    layers = encoder.config.layers
    kinds = list(dict.fromkeys(layers))
    graphs, reports = {}, {}
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
        write_graph(module, root / f"{name}.onnx", None, signature)
        graphs[name] = describe_graph(root / f"{name}.onnx", None, "float32")
        tokens = min(MEASURED_TOKENS, encoder.config.max_position_embeddings)
        reports[name] = GraphReport(parity=_measure(module, root / f"{name}.onnx", tokens))
    return LayerGraphs(graphs, reports, [f"layer_{kinds.index(layer)}" for layer in layers])


def _measure(module: LayerAttention, graph: Path, tokens: int) -> ParityRecord:
    """Compare the attention probabilities of a graph with torch on `tokens` random hidden states."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    weights = [tensor.detach().contiguous() for tensor in module.weights().values()]
    width = session.get_inputs()[0].shape[2]
    hidden = torch.randn(1, tokens, width, generator=torch.Generator().manual_seed(0))
    inputs = [hidden, torch.arange(tokens)[None], *weights]
    with torch.inference_mode():
        _, expected, _ = module(*inputs)
    names = [value.name for value in session.get_inputs()]
    (probs,) = session.run(["probs"], {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
    difference = float(np.abs(probs - expected.numpy()).max())
    return ParityRecord(batches=1, max_abs_difference=difference, tolerance=TOLERANCE)
