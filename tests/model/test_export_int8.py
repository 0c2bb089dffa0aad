"""The int8 graph: every linear layer, deterministic, close to float32."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from model.artifact.files import WEIGHTS, Artifact
from model.artifact.manifest import GraphReport
from model.checkpoint import load_checkpoint
from model.export.export import Variants, export, export_graph
from model.export.graphs import GraphSet
from model.export.int8 import quantize, write_int8
from model.export.parity import pack_sequences
from tests.model.conftest import mark_slow
from tests.model.varlen_inputs import BERT_SHAPED, random_sequences, run_alone

Publish = Callable[[str], Path]
WEIGHT = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.floats(-100, 100, width=32)
)


def write_source_graph(source: Path, root: Path) -> GraphReport:
    root.mkdir(parents=True)
    checkpoint = load_checkpoint(source)
    export_graph(checkpoint.encoder, root / "fast.onnx")
    graphs = GraphSet(root)
    write_int8(graphs, checkpoint)
    return graphs.reports["int8"]


@given(WEIGHT)
def test_rounding_error_is_at_most_half_a_step(weight: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
    values, scales = quantize(weight)
    assert values.dtype == np.int8
    assert values.min() >= -127
    assert (np.abs(values * scales - weight) <= scales * 0.501 + np.finfo(np.float32).tiny).all()


def test_artifact_contains_int8_graph_and_unchanged_files(published: Path, exported: Path, tmp_path: Path) -> None:
    export(str(published), tmp_path / "out",
           variants=Variants(("int8",)))  # fmt: skip
    artifact, without = Artifact.open(tmp_path / "out"), Artifact.open(exported)
    assert set(artifact.manifest.files) - set(without.manifest.files) == {"int8.onnx", "int8.bin"}
    for name in without.manifest.files:
        assert artifact.read(name) == (exported / name).read_bytes()
    record = artifact.manifest.graphs["int8"]
    assert (record.precision, record.weights) == ("int8", ("int8.bin",))
    fast = artifact.manifest.graphs["fast"]
    assert (record.inputs, record.outputs) == (fast.inputs, fast.outputs)
    assert artifact.manifest.files["int8.bin"].size < artifact.manifest.files[WEIGHTS].size
    report = artifact.read_report()
    assert report is not None
    assert set(report.graphs) == {"fast", "explain", "layer_0", "steps_0", "int8"}
    # The last digits of measurements depend on the machine.
    (tmp_path / "out" / "report.json").unlink()
    assert Artifact.open(tmp_path / "out").digest == artifact.digest
    assert Artifact.open(tmp_path / "out").read_report() is None


@pytest.mark.parametrize("family", mark_slow(*BERT_SHAPED, "causal-bert", fast=("bert",)))
def test_linear_layers_are_int8_and_vectors_stay_close(publish: Publish, family: str, tmp_path: Path) -> None:
    source = publish(family)
    encoder = load_checkpoint(source).encoder
    layers = sum(isinstance(part, torch.nn.Linear) for part in encoder.modules())
    report = write_source_graph(source, tmp_path / "root")
    assert report.parity.max_abs_difference <= report.parity.tolerance
    graph = onnx.load(tmp_path / "root" / "int8.onnx").graph
    int8 = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    assert len(int8) == layers
    session = onnxruntime.InferenceSession(tmp_path / "root" / "int8.onnx", providers=["CPUExecutionProvider"])
    sequences = random_sequences(encoder, (7, 1, 33))
    alone = run_alone(encoder, sequences)
    (hidden,) = session.run(None, pack_sequences(sequences))
    expected = torch.cat(alone).numpy()
    cosines = (hidden[0] * expected).sum(1) / np.linalg.norm(hidden[0], axis=1) / np.linalg.norm(expected, axis=1)
    assert 0.995 < cosines.min() < 1
