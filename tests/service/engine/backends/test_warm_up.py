"""Warm-up of models with long inputs, on backends that record shapes instead of running them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

from model.artifact.packing import PACKED_TOKENS, BatchShape, CostModel, Ints
from service.engine.backends import base
from service.engine.backends.base import LONG_SHAPE_S, BackendChoice, Floats
from service.engine.backends.onnxruntime_cpu import OnnxRuntimeCpuBackend
from service.engine.backends.openvino import OpenVinoBackend
from service.engine.tasks import HeadName

SLOW_BASE = CostModel(fixed=6e-3, token=8e-4, square=1e-7)
"""A model of base size in float32 on one core: 3,072 tokens take 3.4 s."""
FAST_SMALL = CostModel(fixed=1e-3, token=3e-5, square=1e-8)


class Recorder:
    """The methods of a backend that would run the model."""

    shapes_run: list[BatchShape]

    def reopen(self) -> None:
        self.shapes_run = []
        vars(self).update(_throughput=SimpleNamespace(infer=self.infer), _latency=None)

    def infer(self, inputs: dict[str, Ints]) -> Floats:
        rows, length = inputs["input_ids"].shape
        self.shapes_run.append(BatchShape(rows, length))
        assert length <= PACKED_TOKENS or inputs["sequence_ids"].max() == rows == 1
        return np.zeros((rows, length, 1), dtype=np.float32)


class RecordingOpenVino(Recorder, OpenVinoBackend):
    pass


class RecordingOnnxRuntime(Recorder, OnnxRuntimeCpuBackend):
    pass


def open_recording(backend_class: type[Any], costs: CostModel, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Open a backend whose batches take the time of `costs`."""

    def timed(run: Any, inputs: dict[str, Ints]) -> float:
        run(inputs)
        return costs.seconds(BatchShape(*inputs["input_ids"].shape))

    monkeypatch.setattr(base, "_timed", timed)
    architecture = SimpleNamespace(type_vocab_size=1)
    heads = dict.fromkeys(get_args(HeadName))
    manifest = SimpleNamespace(longest_input_tokens=8192, architecture=architecture, **heads)
    artifact: Any = SimpleNamespace(manifest=manifest)
    return backend_class(artifact, BackendChoice("cpu", "float32", "fast", 2, 1, 512, "test"))


@pytest.mark.parametrize("backend_class", [RecordingOpenVino, RecordingOnnxRuntime])
@pytest.mark.parametrize(("costs", "measured"), [(SLOW_BASE, [768]), (FAST_SMALL, [7168])])
def test_warm_up_measures_at_most_one_long_shape(
    backend_class: type[Any], costs: CostModel, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_recording(backend_class, costs, monkeypatch)
    backend.warm_up()
    lengths = {shape.length for shape in backend.shapes_run if shape.length > PACKED_TOKENS}
    assert sorted(lengths) == measured
    assert costs.seconds(BatchShape(1, max(measured))) <= LONG_SHAPE_S
    assert backend.shapes.costs.square == pytest.approx(costs.square, rel=1e-3)
    assert backend.seconds(8192) == pytest.approx(costs.seconds(BatchShape(1, 8192)), rel=1e-3)


@pytest.mark.parametrize("backend_class", [RecordingOpenVino, RecordingOnnxRuntime])
def test_warm_up_measures_fewer_shapes_of_a_slow_model(
    backend_class: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = CostModel(fixed=2e-2, token=1.6e-3, square=6e-7)
    measured: list[BatchShape] = []

    def fit(pairs: Sequence[tuple[BatchShape, float]]) -> CostModel:
        measured.extend(shape for shape, _ in pairs)
        return costs

    monkeypatch.setattr(CostModel, "fit", fit)
    open_recording(backend_class, costs, monkeypatch).warm_up()
    assert len(measured) == 3
    assert (measured[0].tokens, measured[-1].tokens) == (backend_class.batch_shapes[0][1], 512)
    costs = FAST_SMALL
    measured.clear()
    open_recording(backend_class, costs, monkeypatch).warm_up()
    assert len(set(measured)) == base.MEASURED_SHAPES + 1
