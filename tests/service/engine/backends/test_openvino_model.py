"""Constants over memory-mapped weights: the verified bytes, not copied, and stable under concurrent runs."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from model.artifact.files import WEIGHTS, Artifact
from model.artifact.manifest import Precision
from model.artifact.packing import BatchShape, pack_batch
from service.engine.backends.base import BackendChoice
from service.engine.backends.openvino import OpenVinoBackend, import_openvino, read_model

CHOICE = BackendChoice("openvino", "float32", "fast", 2, 1, 512, "test")
RUNS = 400


def test_weights_become_constants_and_other_inputs_remain(default_artifact: Path) -> None:
    artifact = Artifact.open(default_artifact)
    model = read_model(import_openvino().Core(), artifact, "fast")
    assert [parameter.get_friendly_name() for parameter in model.get_parameters()] == [
        value.name for value in artifact.manifest.graphs["fast"].inputs
    ]
    constants = {op.get_friendly_name(): op for op in model.get_ops() if op.get_type_name() == "Constant"}
    weights = [tensor for tensor in onnx.load(default_artifact / "fast.onnx").graph.initializer if tensor.raw_data]
    external = [tensor for tensor in weights if len(tensor.raw_data) > 64]
    assert len(external) > 90
    for tensor in external:
        constant = constants[tensor.name]
        np.testing.assert_array_equal(constant.data, numpy_helper.to_array(tensor))


def test_weights_of_a_replaced_file_are_not_read(default_artifact: Path, tmp_path: Path) -> None:
    """The descriptor stays open, so a reopened backend still reads the verified file."""
    root = Path(shutil.copytree(default_artifact, tmp_path / "artifact"))
    backend = OpenVinoBackend(Artifact.open(root), CHOICE)
    inputs = pack_batch([([101, 2314, 102], None)], BatchShape(1, 16)).inputs
    expected = backend.infer(inputs)
    (tmp_path / "zeros").write_bytes(bytes((root / WEIGHTS).stat().st_size))
    (tmp_path / "zeros").replace(root / WEIGHTS)
    backend.reopen()
    np.testing.assert_array_equal(backend.infer(inputs), expected)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_threads_get_the_same_results_while_pages_are_released_and_sessions_reopened(
    default_artifact: Path, precision: Precision
) -> None:
    artifact = Artifact.open(default_artifact)
    backend = OpenVinoBackend(artifact, BackendChoice("openvino", precision, "fast", 2, 1, 512, "test"))
    generator = np.random.default_rng(3)
    batches = [
        pack_batch([(generator.integers(1000, 20000, size).tolist(), None)], backend.fit([size]).shape).inputs
        for size in (1, 9, 30, 60, 120)
    ]
    pools = [pool for pool in (backend._throughput, backend._latency) if pool is not None]
    expected = [[pool.infer(batch) for pool in pools] for batch in batches]

    def work(thread: int) -> int:
        wrong = 0
        for number in range(RUNS):
            index = (number + thread) % len(batches)
            output = backend.infer(batches[index])
            wrong += not any(np.array_equal(output, result) for result in expected[index])
            if thread == 0 and number % 100 == 99:
                backend.reopen()
            if thread == 1 and number % 20 == 19:
                artifact.release_pages()
        return wrong

    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(work, range(4))) == [0, 0, 0, 0]
