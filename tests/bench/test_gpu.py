"""The GPU's bench where there is no GPU: what it reads, what it measures with, and what it says when it cannot."""

import subprocess
import sys
from pathlib import Path

import pytest

from model.artifact import TOKENIZER, Artifact
from model.corpus import sample_sentences
from model.tokenizer import Tokenizer
from service.engine.backends.cuda_session import gpu_count
from tests.bench import gpu, gpu_engine
from tests.bench.gpu_artifacts import PACKAGES, Size, make_artifact, missing_packages
from tests.bench.gpu_kernels import Kernels
from tests.conftest import ROOT
from tests.service.engine.backends.varlen_models import open_varlen

TINY = Size("tiny", layers=2, width=48, inner=64, heads=3, positions=128, vocabulary=2000)

SPOKEN = """ready
\x1b[36mOperator=PackedMultiHeadAttention Node=a DataType=fp16 SdpaKernel=FLASH_ATTENTION\x1b[0m
\x1b[36mOperator=PackedMultiHeadAttention Node=b DataType=fp16 SdpaKernel=FLASH_ATTENTION\x1b[0m
\x1b[36mOperator=PackedMultiHeadAttention Node=a DataType=fp16 SdpaKernel=EFFICIENT_ATTENTION\x1b[0m
PLACED []
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A random model as the bench makes it, but tiny."""
    return Artifact.open(make_artifact(TINY, tmp_path_factory.mktemp("bench") / "artifact"))


def test_kernels_are_read_from_the_log() -> None:
    """Each node once, with all that it ran."""
    found = Kernels.of(SPOKEN)
    assert found.attention == {"a": {"FLASH_ATTENTION", "EFFICIENT_ATTENTION"}, "b": {"FLASH_ATTENTION"}}
    assert found.elsewhere == set()
    assert [verdict.passed for verdict in found.verdicts(layers=2)] == [True, True]


@pytest.mark.parametrize(
    ("spoken", "passed"),
    [
        ("", [False, True]),
        (SPOKEN.replace("EFFICIENT_ATTENTION", "MATH"), [False, True]),
        (SPOKEN.replace("Node=b", "Node=a"), [False, True]),
        (SPOKEN.replace("[]", '["MatMul"]'), [True, False]),
    ],
    ids=["silence", "an unfused kernel once", "one node of two", "a product on the CPU"],
)
def test_target_is_missed_when_log_does_not_prove_it(spoken: str, passed: list[bool]) -> None:
    """Neither what was not said, nor what was said of another node."""
    assert [verdict.passed for verdict in Kernels.of(spoken).verdicts(layers=2)] == passed


def test_random_model_has_the_requested_shape(artifact: Artifact) -> None:
    """And its graph for CUDA, as near to float32 as any."""
    manifest = artifact.manifest
    assert (
        manifest.num_hidden_layers,
        manifest.hidden_size,
        manifest.num_attention_heads,
        manifest.max_input_tokens,
    ) == (2, 48, 3, 128)
    report = artifact.read_report()
    assert report is not None
    accuracy = report.graphs["cuda"].accuracy
    assert accuracy is not None
    assert (accuracy.texts, accuracy.min_cosine > 0.9999) == (200, True)


def test_engine_is_measured(artifact: Artifact) -> None:
    """Rates, the time of one text and the smallest cosine, with the same code as on a GPU."""
    backend = open_varlen(artifact, max_batch_tokens=512)
    tokenizer = Tokenizer(artifact.read(TOKENIZER))
    full = gpu_engine.full_texts(tokenizer, 2000, 64, 20)
    assert {len(text.tokens) for text in full} == {64}
    mixed = gpu_engine.sentence_texts(tokenizer, sample_sentences(100), 128)
    assert gpu_engine.measure_throughput(backend, full, 0.5) > 0
    assert gpu_engine.measure_throughput(backend, mixed, 0.5) > 0
    assert gpu_engine.measure_latency_ms(backend, full, 3) > 0
    assert 0.9999 < gpu_engine.measure_accuracy(backend, artifact, mixed) < 1.000001


def test_packages_are_those_that_are_imported(capsys: pytest.CaptureFixture[str]) -> None:
    """Here none is missing; where nothing can be imported, each is named as pip calls it."""
    assert gpu.main(["--missing"]) == 0
    assert capsys.readouterr().out == "\n"
    bare = "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; from tests.bench import gpu; "
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {bare}sys.exit(gpu.main([]))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("bench-gpu: these packages are missing: pip install ")
    assert {"tokenizers", "torch", "onnxruntime-gpu[cuda,cudnn]"} <= set(done.stderr.split())
    assert missing_packages(["server"]) == []
    assert len({module for modules in PACKAGES.values() for module in modules}) > 20


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU here")
def test_message_is_one_line_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a status that is not 0."""
    assert gpu.main(["--bert", str(tmp_path), "--minilm", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bench-gpu: ")
    assert len(err.splitlines()) == 1
