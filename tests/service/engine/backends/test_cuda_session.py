"""A GPU that is not there: said in one line, never replaced in silence."""

from pathlib import Path

import onnxruntime
import pytest

from model.artifact import Artifact
from service.config import ConfigError
from service.engine.backends.base import FIRST_GPU
from service.engine.backends.cuda_session import CUDA, built_for_cuda, gpu_count, open_session


def test_built_for_cuda_is_what_onnxruntime_says() -> None:
    """The package decides, not the machine."""
    assert built_for_cuda() == (CUDA in onnxruntime.get_available_providers())


def test_gpus_are_those_of_the_driver() -> None:
    """The kernel's own list of them says the same; without a driver there are none."""
    assert gpu_count() == len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU here")
def test_a_session_that_would_run_elsewhere_does_not_open(default_artifact: Path) -> None:
    """Any other provider could run this graph; it is refused all the same."""
    artifact = Artifact.open(default_artifact)
    graph = artifact.manifest.graphs["fast"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    weights = artifact.read(graph.weights)
    options.add_external_initializers_from_files_in_memory([graph.weights], [weights], [len(weights)])
    with pytest.raises(ConfigError, match='ATTENDANT_PROVIDER: "cuda" failed on GPU 0'):
        open_session(artifact.read(graph.file), options, FIRST_GPU)
