"""The ONNX Runtime session for CUDA without a GPU: a clear error, and no fallback to another provider."""

from pathlib import Path

import onnxruntime
import pytest

from model.artifact.files import Artifact
from service.config import ConfigError
from service.engine.backends.base import DEFAULT_GPU
from service.engine.backends.cuda_session import CUDA, built_for_cuda, gpu_count, open_session
from service.engine.backends.sessions import add_weights


def test_built_for_cuda_follows_the_onnxruntime_package() -> None:
    assert built_for_cuda() == (CUDA in onnxruntime.get_available_providers())


def test_gpu_count_matches_the_kernel_driver() -> None:
    assert gpu_count() == len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


@pytest.mark.skipif(gpu_count() > 0, reason="this machine has a GPU")
def test_open_session_fails_when_cuda_is_missing(default_artifact: Path) -> None:
    """The CPU provider could run this graph, but falling back would hide the problem."""
    artifact = Artifact.open(default_artifact)
    graph = artifact.manifest.graphs["fast"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    add_weights(options, artifact, "fast")
    with pytest.raises(ConfigError, match='ATTENDANT_PROVIDER: "cuda" failed on GPU 0'):
        open_session(artifact.read(graph.file), options, DEFAULT_GPU)
