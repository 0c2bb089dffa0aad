"""The layers in a model's artifact: their weights, and the graphs that compute their attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from model.artifact.files import Artifact
from model.artifact.manifest import LayerRecord, LayersRecord, TensorRecord
from service.engine.backends.sessions import open_cpu_session

Floats = NDArray[Any]
AttentionOutput = Literal["scores", "probs", "values"]


@dataclass(frozen=True)
class OutputWeights:
    """The weights between a layer's heads and the result that attention maps decompose.

    Attributes:
        output: (H * d, D), the map from the heads to the attention output.
        output_bias: (D,), or None.
        norm: (D,), the weight of the norm that reads the attention output.
        norm_bias: (D,), or None.
        eps: The epsilon of the norm.
        centered: True for a LayerNorm, False for an RMSNorm.
        residual_in_norm: True if the norm reads the sum of the residual stream and the attention output.
    """

    output: Floats
    output_bias: Floats | None
    norm: Floats
    norm_bias: Floats | None
    eps: float
    centered: bool = True
    residual_in_norm: bool = True


class Layer(Protocol):
    """One layer of a model."""

    @property
    def weights(self) -> OutputWeights: ...

    def attend(self, hidden: Floats, outputs: Sequence[AttentionOutput]) -> Mapping[AttentionOutput, Floats]:
        """Return scores and probs (H, T, T), and values (H, T, d).

        `hidden` is the input of the layer, (T, D).
        """


class ArtifactLayers(Sequence["ArtifactLayer"]):
    """A model's layers, first layer first. Each graph is opened on first use and serves all its layers."""

    def __init__(self, artifact: Artifact, threads: int) -> None:
        record = artifact.manifest.layers
        assert isinstance(record, LayersRecord)
        self._record = record
        self._session = cache(lambda graph: open_cpu_session(artifact, graph, threads, arena=False))
        self._map = cache(artifact.map)

    def __len__(self) -> int:
        return len(self._record.layers)

    def __getitem__(self, index: Any) -> Any:
        return ArtifactLayer(self._map, self._record, self._record.layers[index], self._session)


class ArtifactLayer:
    """One layer. Weights are read from the mapped file on use; 16-bit weights are copied."""

    def __init__(self, map_tensor: Any, layers: LayersRecord, record: LayerRecord, session: Any) -> None:
        self._map = map_tensor
        self._layers = layers
        self._record = record
        self._session = session

    @property
    def weights(self) -> OutputWeights:
        """The weights between the heads and the result that attention maps decompose."""
        record = self._record
        return OutputWeights(
            self._read(record.output),
            None if record.output_bias is None else self._read(record.output_bias),
            self._read(record.norm),
            None if record.norm_bias is None else self._read(record.norm_bias),
            self._layers.norm_eps,
            self._layers.norm == "layer_norm",
            self._layers.residual_in_norm,
        )

    def attend(self, hidden: Floats, outputs: Sequence[AttentionOutput]) -> Mapping[AttentionOutput, Floats]:
        """Run the graph of the layer; see `Layer`."""
        results = self._run(self._record.graph, self._record.weights, hidden, outputs)
        return dict(zip(outputs, results, strict=True))

    def steps(self, hidden: Floats, rows: NDArray[np.int64], outputs: Sequence[str]) -> Mapping[str, Floats]:
        """Return intermediate steps of the layer for some input rows, as defined in docs/maps.md, "Inside a layer"."""
        record, structure = self._record.steps, self._layers.structure
        assert record is not None
        table = None if structure is None else structure.position_table
        # Positions come from the embedding table, or as angles from the layer's graph.
        names = {name: "angles" if name == "position" else name for name in outputs if name != "position" or not table}
        results = self._run(record.graph, record.weights, hidden, list(names.values()), rows=rows) if names else []
        steps = dict(zip(names, results, strict=True))
        return steps | {"position": self._map(table)[rows]} if table and "position" in outputs else steps

    def _run(
        self, graph: str, weights: Mapping[str, TensorRecord], hidden: Floats, outputs: Sequence[str],
        **inputs: NDArray[Any],
    ) -> list[Floats]:  # fmt: skip
        inputs |= {"hidden_state": np.ascontiguousarray(hidden)[None], "position_ids": np.arange(len(hidden))[None]}
        inputs |= {name: self._read(tensor) for name, tensor in weights.items()}
        results: list[Floats] = self._session(graph).run(list(outputs), inputs)
        return results

    def _read(self, tensor: TensorRecord) -> Floats:
        values: Floats = self._map(tensor)[:]
        return values
