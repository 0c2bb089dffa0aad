"""Golden vectors: every backend is checked against them at startup, and an inaccurate precision falls back to
float32.
"""

import base64
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.artifact import GOLDEN, Artifact, ArtifactError
from service.config import ConfigError, Settings
from service.engine.backends.cpu import detect_cpu
from service.engine.backends.openvino import OpenVinoBackend
from service.engine.golden_check import min_golden_cosine
from service.engine.model_loader import LoadedModel
from tests.shared_models import load_anew


@pytest.fixture
def artifact(default_artifact: Path, tmp_path: Path) -> Path:
    """Return a copy whose golden vectors the test may modify."""
    return Path(shutil.copytree(default_artifact, tmp_path / "artifact"))


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile only two shapes, so that a backend opens in a second."""
    monkeypatch.setattr(OpenVinoBackend, "batch_shapes", ((1, 64), (1, 256)))


def change_golden(root: Path, **fields: Any) -> None:
    golden = json.loads((root / GOLDEN).read_text())
    (root / GOLDEN).write_text(json.dumps(golden | fields))


def raise_limit(root: Path) -> None:
    """Record a limit that bfloat16 does not reach."""
    limits = json.loads((root / GOLDEN).read_text())["min_cosine"]
    change_golden(root, min_cosine=limits | {"bfloat16": 0.9999999})


def turn_golden(root: Path, dimensions: int) -> None:
    """Replace the golden vectors with vectors that match no precision."""
    count = len(json.loads((root / GOLDEN).read_text())["texts"])
    vectors = np.random.default_rng(0).standard_normal((count, dimensions)).astype("<f4")
    change_golden(root, vectors=base64.b64encode(vectors.tobytes()).decode())


def test_default_model_has_32_golden_vectors_and_reaches_its_limit(model: LoadedModel) -> None:
    golden = model.artifact.read_golden_vectors()
    assert golden is not None
    assert len(golden.texts) == len(set(golden.texts)) == 32
    cosine = min_golden_cosine(golden, model.artifact.manifest, model.tokenizer, model.backend)
    print(f"{model.backend.choice.precision}: min cosine {cosine:.6f}")
    assert golden.min_cosine[model.backend.choice.precision] <= cosine <= 1.000001


def test_inaccurate_precision_falls_back_to_float32(
    artifact: Path, caplog: pytest.LogCaptureFixture, model: LoadedModel
) -> None:
    """The selection line must say so. On a CPU without bfloat16, float32 is selected right away."""
    raise_limit(artifact)
    with caplog.at_level(logging.INFO):
        loaded = load_anew(Settings(model_dir=artifact))
    assert loaded.backend.choice.precision == "float32"
    (line,) = [record.getMessage() for record in caplog.records if "backend selected" in record.getMessage()]
    assert "precision=float32" in line
    if model.backend.choice.precision == "bfloat16":
        assert "bfloat16 is too inaccurate for this model (min cosine 0.99" in line
        assert "limit 0.9999999" in loaded.backend.choice.reason


@pytest.mark.skipif(not detect_cpu().bfloat16, reason="this CPU has no bfloat16 support")
def test_requested_precision_that_is_too_inaccurate_is_rejected(artifact: Path) -> None:
    raise_limit(artifact)
    with pytest.raises(ConfigError, match=r'ATTENDANT_PRECISION: "bfloat16" is too inaccurate .* Use "float32"\.'):
        load_anew(Settings(model_dir=artifact, precision="bfloat16"))


def test_float32_that_differs_from_the_export_is_rejected(artifact: Path, model: LoadedModel) -> None:
    turn_golden(artifact, model.artifact.manifest.architecture.hidden_size)
    with pytest.raises(ArtifactError, match=r"golden\.json: vectors differ from the export \(min cosine -?0\.\d+"):
        load_anew(Settings(model_dir=artifact, precision="float32", provider="cpu"))


def test_artifact_without_golden_vectors_is_served(artifact: Path, model: LoadedModel) -> None:
    (artifact / GOLDEN).unlink()
    assert Artifact.open(artifact).read_golden_vectors() is None
    loaded = load_anew(Settings(model_dir=artifact))
    assert loaded.backend.choice.precision == model.backend.choice.precision


@pytest.mark.parametrize(
    "fields", [{"vectors": "AAAA"}, {"vectors": "*"}, {"texts": 1}, {"other": 1}, {"min_cosine": {"float32": 1}}]
)
def test_invalid_golden_vectors_are_rejected(artifact: Path, fields: dict[str, Any]) -> None:
    change_golden(artifact, **fields)
    with pytest.raises(ArtifactError, match=r"golden\.json: invalid golden vectors\. Export again\."):
        Artifact.open(artifact).read_golden_vectors()
