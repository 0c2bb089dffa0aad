"""The layers of a model in its artifact: their weights, and the graphs that compute their attention."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from model.artifact.files import Artifact
from model.artifact.manifest import LayerRecord, LayersRecord, TensorRecord
from service.engine.backends.cpu_session import open_cpu_session
from service.engine.explain.maps import AttentionOutput, Floats, OutputWeights


class ArtifactLayers(Sequence["ArtifactLayer"]):
    """The layers of a model, first layer first. Graphs are opened on first use, each for all its layers."""

    def __init__(self, artifact: Artifact, threads: int) -> None:
        self._artifact = artifact
        record = artifact.manifest.layers
        assert isinstance(record, LayersRecord)
        self._record = record
        self._session = cache(lambda graph: open_cpu_session(artifact, graph, threads, arena=False))

    def __len__(self) -> int:
        return len(self._record.layers)

    def __getitem__(self, index: Any) -> Any:
        return ArtifactLayer(self._artifact, self._record, self._record.layers[index], self._session)


class ArtifactLayer:
    """One layer. Its weights are read from the mapped file when they are used, and copied if they have 16 bits."""

    def __init__(self, artifact: Artifact, layers: LayersRecord, record: LayerRecord, session: Any) -> None:
        self._artifact = artifact
        self._layers = layers
        self._record = record
        self._session = session

    @property
    def weights(self) -> OutputWeights:
        """The weights between the heads and the result that maps decompose."""
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
        inputs = {"hidden_state": np.ascontiguousarray(hidden)[None], "position_ids": np.arange(len(hidden))[None]}
        inputs |= {name: self._read(tensor) for name, tensor in self._record.weights.items()}
        results = self._session(self._record.graph).run(list(outputs), inputs)
        return dict(zip(outputs, results, strict=True))

    def _read(self, tensor: TensorRecord) -> Floats:
        return self._artifact.map(tensor)[:]
