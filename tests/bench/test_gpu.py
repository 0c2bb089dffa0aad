"""The GPU bench on a machine without a GPU: parsing, CPU measurements, and error messages."""

import subprocess
import sys
from pathlib import Path

import pytest

from model.artifact import TOKENIZER, Artifact
from model.sample_texts import sample_sentences
from model.tokenizer import Tokenizer
from service.engine.backends.cuda_session import gpu_count
from tests.bench import gpu, gpu_engine
from tests.bench.gpu_artifacts import PACKAGES, Size, make_artifact, missing_packages
from tests.bench.gpu_kernels import Kernels
from tests.conftest import ROOT
from tests.service.engine.backends.varlen_models import open_varlen

TINY = Size("tiny", layers=2, width=48, inner=64, heads=3, positions=128, vocabulary=2000)

LOG = """ready
\x1b[36mOperator=PackedMultiHeadAttention Node=a DataType=fp16 SdpaKernel=FLASH_ATTENTION\x1b[0m
\x1b[36mOperator=PackedMultiHeadAttention Node=b DataType=fp16 SdpaKernel=FLASH_ATTENTION\x1b[0m
\x1b[36mOperator=PackedMultiHeadAttention Node=a DataType=fp16 SdpaKernel=EFFICIENT_ATTENTION\x1b[0m
PLACED []
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A small random model, exported by the bench."""
    return Artifact.open(make_artifact(TINY, tmp_path_factory.mktemp("bench") / "artifact"))


def test_kernels_are_read_from_the_log() -> None:
    """Each node maps to all kernels that the log mentions for it."""
    kernels = Kernels.of(LOG)
    assert kernels.attention == {"a": {"FLASH_ATTENTION", "EFFICIENT_ATTENTION"}, "b": {"FLASH_ATTENTION"}}
    assert kernels.off_gpu == set()
    assert [verdict.passed for verdict in kernels.verdicts(layers=2)] == [True, True]


@pytest.mark.parametrize(
    ("log", "passed"),
    [
        ("", [False, True]),
        (LOG.replace("EFFICIENT_ATTENTION", "MATH"), [False, True]),
        (LOG.replace("Node=b", "Node=a"), [False, True]),
        (LOG.replace("[]", '["MatMul"]'), [True, False]),
    ],
    ids=["empty log", "unfused kernel", "missing node", "operator on the CPU"],
)
def test_kernel_targets_fail_when_the_log_is_incomplete(log: str, passed: list[bool]) -> None:
    assert [verdict.passed for verdict in Kernels.of(log).verdicts(layers=2)] == passed


@pytest.mark.slow
def test_random_model_has_the_requested_size(artifact: Artifact) -> None:
    """The exported CUDA graph must also be accurate enough."""
    manifest = artifact.manifest
    assert (
        manifest.architecture.num_hidden_layers,
        manifest.architecture.hidden_size,
        manifest.architecture.num_attention_heads,
        manifest.max_input_tokens,
    ) == (2, 48, 3, 128)
    report = artifact.read_report()
    assert report is not None
    accuracy = report.graphs["cuda"].accuracy
    assert accuracy is not None
    assert (accuracy.texts, accuracy.min_cosine > 0.9999) == (200, True)


@pytest.mark.slow
def test_engine_measurements_run_on_the_cpu(artifact: Artifact) -> None:
    backend = open_varlen(artifact, max_batch_tokens=512)
    tokenizer = Tokenizer(artifact.read(TOKENIZER))
    full = gpu_engine.full_texts(tokenizer, 2000, 64, 20)
    assert {len(text.tokens) for text in full} == {64}
    mixed = gpu_engine.sentence_texts(tokenizer, sample_sentences(100), 128)
    assert gpu_engine.measure_throughput(backend, full, 0.5) > 0
    assert gpu_engine.measure_throughput(backend, mixed, 0.5) > 0
    assert gpu_engine.measure_latency_ms(backend, full, 3) > 0
    assert 0.9999 < gpu_engine.measure_accuracy(backend, artifact, mixed) < 1.000001


def test_missing_packages_are_named_for_pip(capsys: pytest.CaptureFixture[str]) -> None:
    """This process has all packages, so use a subprocess without any."""
    assert gpu.main(["--missing"]) == 0
    assert capsys.readouterr().out == "\n"
    bare = "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; from tests.bench import gpu; "
    result = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {bare}sys.exit(gpu.main([]))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("bench-gpu: missing packages: pip install ")
    assert {"tokenizers", "torch", "onnxruntime-gpu[cuda,cudnn]"} <= set(result.stderr.split())
    assert missing_packages(["server"]) == []
    assert len({module for modules in PACKAGES.values() for module in modules}) > 20


@pytest.mark.skipif(gpu_count() > 0, reason="this machine has a GPU")
def test_error_is_one_line_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--bert", str(tmp_path), "--minilm", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bench-gpu: ")
    assert len(err.splitlines()) == 1
