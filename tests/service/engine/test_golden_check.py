"""Golden vectors: every head of a backend is checked against them at startup, and an inaccurate precision falls back
to float32.
"""

import base64
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from attendant_client.types import EncodeRequest, Input
from numpy.typing import NDArray
from onnx import numpy_helper

from model.artifact.files import GOLDEN, Artifact, ArtifactError, describe_file
from model.artifact.packing import Ints
from model.artifact.tokenizer import Tokenizer
from model.export.export import Variants, export
from model.source.sentence_transformers import SettingOptions
from service.config import ConfigError, Settings
from service.engine.backends.base import BackendChoice
from service.engine.backends.cpu import detect_cpu
from service.engine.backends.onnxruntime_cpu import OnnxRuntimeCpuBackend
from service.engine.backends.openvino import OpenVinoBackend
from service.engine.golden_check import EXPECTED_COSINE, FLOOR_COSINE, cosine, golden_cosines
from service.engine.model_loader import LoadedModel
from service.engine.vectors import DenseLayers
from tests.labels import CLASSIFIER, CROSS_ENCODER, TOKEN_CLASSIFIER, export_classifier
from tests.model.colbert_cases import COLBERT_CASES
from tests.model.conftest import mark_slow
from tests.model.family_cases import HIDDEN_SIZE
from tests.model.logit_score_cases import LOGIT_SCORE
from tests.model.model_files import copy_artifact, rewrite_manifest
from tests.model.retriever_cases import BGE_M3
from tests.retrievers import SPLADE, export_retriever
from tests.running import run
from tests.service.conftest import open_harness
from tests.shared_models import load_anew

needs_bfloat16 = pytest.mark.skipif(not detect_cpu().bfloat16, reason="this CPU has no bfloat16 support")
COLBERT = next(iter(COLBERT_CASES))
HEADS: dict[str, tuple[Callable[[str], Path], set[str]]] = {
    CLASSIFIER: (export_classifier, {"classification"}),
    CROSS_ENCODER: (export_classifier, {"classification"}),
    TOKEN_CLASSIFIER: (export_classifier, {"token_classification"}),
    SPLADE: (export_retriever, {"masked_lm", "sparse"}),
    BGE_M3: (export_retriever, {"sparse", "multi_vector"}),
    COLBERT: (export_retriever, {"multi_vector", "multi_vector_query"}),
    LOGIT_SCORE: (export_retriever, {"classification"}),
}
"""For each kind of model, the function that exports it and its heads besides the embedding head."""


@pytest.fixture
def artifact(tiny_artifact: Path, tmp_path: Path) -> Path:
    """Return a copy whose golden vectors the test may modify."""
    return copy_artifact(tiny_artifact, tmp_path)


@pytest.fixture
def tiny(tiny_artifact: Path) -> LoadedModel:
    """The model of `artifact`."""
    return LoadedModel.load(Settings(model_dir=tiny_artifact))


@pytest.fixture(scope="module")
def one_token_artifacts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """Return a function that exports a tiny BERT with another pooling."""
    from tests.model.conftest import export_tiny

    tiny = export_tiny(tmp_path_factory.mktemp("tiny")).parent / "tiny-bert"

    def export_pooled(pooling: Any) -> Path:
        out = tmp_path_factory.mktemp(pooling) / "artifact"
        export(
            str(tiny), out, revision=None, name=None, progress=lambda step: None,
            variants=Variants(explain=False), settings=SettingOptions(pooling=pooling),
        )  # fmt: skip
        return out

    return export_pooled


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile only two shapes, so that a backend opens in a second."""
    monkeypatch.setattr(OpenVinoBackend, "batch_shapes", ((1, 64), (1, 256)))


def change_golden(root: Path, **fields: Any) -> None:
    golden = json.loads((root / GOLDEN).read_text())
    (root / GOLDEN).write_text(json.dumps(golden | fields))


def change_head(root: Path, head: str, **fields: Any) -> None:
    heads = json.loads((root / GOLDEN).read_text())["heads"]
    change_golden(root, heads=heads | {head: heads[head] | fields})


def replace_embeddings(root: Path, vectors: NDArray[Any]) -> None:
    """Replace the embeddings in the golden vectors, as if the float32 model computed these."""
    change_head(root, "embedding", values=base64.b64encode(vectors.astype("<f4").tobytes()).decode())


def turned(model: LoadedModel, wanted: float) -> NDArray[Any]:
    """Return the golden embeddings, turned so that their cosine to the exact ones is `wanted`."""
    golden = model.artifact.read_golden_vectors()
    assert golden is not None
    exact = np.stack(golden.heads["embedding"].split_values())
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    other = np.random.default_rng(0).standard_normal(exact.shape)
    other -= (other * exact).sum(axis=1, keepdims=True) * exact
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    result: NDArray[Any] = wanted * exact + np.sqrt(1 - wanted**2) * other
    return result


def cosines_of(root: Path, backend_class: type[OnnxRuntimeCpuBackend] = OnnxRuntimeCpuBackend) -> dict[str, float]:
    """Return the cosines that the check measures for a float32 backend."""
    artifact = Artifact.open(root)
    golden = artifact.read_golden_vectors()
    assert golden is not None
    backend = backend_class(artifact, BackendChoice("cpu", "float32", "fast", 1, 1, 128, ""))
    tokenizer = Tokenizer(artifact.read("tokenizer.json"))
    found = golden_cosines(golden, artifact.manifest, tokenizer, backend, DenseLayers(artifact))
    return {str(head): value for head, value in found.items()}


def change_weights(root: Path, graph: str) -> None:
    """Add noise to the weights of a head's graph, as a damaged or wrongly exported head has."""
    path = root / f"{graph}.onnx"
    model = onnx.load(path)
    rng = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32:
            noisy = values + rng.standard_normal(values.shape).astype(np.float32) * max(values.std(), 0.1)
            tensor.CopyFrom(numpy_helper.from_array(noisy, tensor.name))
    onnx.save(model, path)
    record = describe_file(path).model_dump()
    rewrite_manifest(root, lambda manifest: manifest["files"].update({path.name: record}))


def test_default_model_has_32_golden_vectors_and_reaches_its_expected_cosine(model: LoadedModel) -> None:
    golden = model.artifact.read_golden_vectors()
    assert golden is not None
    assert len(golden.texts) == len(set(golden.texts)) == 32
    found = golden_cosines(golden, model.artifact.manifest, model.tokenizer, model.backend, model.dense_layers)
    assert found.keys() == {"embedding"}
    assert EXPECTED_COSINE[model.backend.choice.precision] <= found["embedding"] <= 1.000001


async def test_measured_cosine_is_that_of_served_embeddings(model: LoadedModel) -> None:
    """The golden embeddings equal those of the float32 server, and the cosine those that clients measure."""
    golden = model.artifact.read_golden_vectors()
    assert golden is not None
    exact = load_anew(Settings(model_dir=model.artifact.root, precision="float32"))
    request, served = EncodeRequest(tuple(Input(text) for text in golden.texts)), []
    for one in (model, exact):
        async with open_harness(one) as harness:
            response = await run(harness.engine, request)
        served.append([result.pooled.ravel() for result in response.results if result.pooled is not None])
    np.testing.assert_allclose(served[1], golden.heads["embedding"].split_values(), atol=2e-6, rtol=0)
    found = golden_cosines(golden, model.artifact.manifest, model.tokenizer, model.backend, model.dense_layers)
    expected = min(cosine(own, reference) for own, reference in zip(*served, strict=True))
    assert found["embedding"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", mark_slow(*HEADS, fast=(CLASSIFIER, SPLADE)))
def test_golden_vectors_have_every_head_and_float32_equals_them(kind: str) -> None:
    export_kind, heads = HEADS[kind]
    found = cosines_of(export_kind(kind))
    assert found.keys() == {"embedding", *heads}
    assert min(found.values()) > 0.9999999


@pytest.mark.parametrize(
    ("kind", "graph"),
    [
        (CLASSIFIER, "classification"),
        (TOKEN_CLASSIFIER, "token_classification"),
        (SPLADE, "masked_lm"),
        (SPLADE, "sparse"),
        pytest.param(CROSS_ENCODER, "classification", marks=pytest.mark.slow),
        pytest.param(BGE_M3, "sparse", marks=pytest.mark.slow),
        pytest.param(BGE_M3, "multi_vector", marks=pytest.mark.slow),
        (COLBERT, "multi_vector"),
        pytest.param(LOGIT_SCORE, "classification", marks=pytest.mark.slow),
    ],
)
def test_wrong_results_of_one_head_are_found(kind: str, graph: str, tmp_path: Path) -> None:
    root = copy_artifact(HEADS[kind][0](kind), tmp_path)
    change_weights(root, graph)
    found = cosines_of(root)
    wrong = {head for head, value in found.items() if value < FLOOR_COSINE["bfloat16"]}
    assert wrong == {head for head in found if head.removesuffix("_query") == graph}
    with pytest.raises(ArtifactError, match=rf"golden\.json: vectors differ from the export \({graph}(_query)?: min"):
        load_anew(Settings(model_dir=root, precision="float32", provider="cpu"))


@pytest.mark.parametrize(("pooling", "place"), [("cls", 0), ("last", -1)])
def test_an_error_in_the_pooled_row_alone_is_found(
    pooling: str, place: int, one_token_artifacts: Callable[[Any], Path]
) -> None:
    class OneWrongRow(OnnxRuntimeCpuBackend):
        """A backend with noise in the first or last token of each sequence."""

        def infer(self, inputs: dict[str, Ints]) -> NDArray[np.float32]:
            hidden = super().infer(inputs)
            positions, ids = inputs["position_ids"], inputs["sequence_ids"]
            ends = np.diff(ids, axis=1, append=0) != 0
            rows = positions == 0 if place == 0 else ends
            hidden[rows] += np.random.default_rng(0).standard_normal((rows.sum(), hidden.shape[-1]))
            return hidden

    root = one_token_artifacts(pooling)
    assert cosines_of(root)["embedding"] > 0.9999999
    assert cosines_of(root, OneWrongRow)["embedding"] < FLOOR_COSINE["bfloat16"]


def test_truncated_embeddings_are_compared_as_served(model: LoadedModel, tmp_path: Path) -> None:
    """Normalization comes first, so the 32 numbers by themselves do not have length 1."""
    artifact = copy_artifact(model.artifact.root, tmp_path)
    rewrite_manifest(artifact, lambda manifest: manifest["heads"][0].update(truncate_dim=32))
    cut = turned(model, 1)[:, :32]
    replace_embeddings(artifact, cut)
    change_head(artifact, "embedding", sizes=[32] * 32)
    assert cosines_of(artifact)["embedding"] > 0.9999999


def test_results_that_are_not_finite_are_below_every_floor() -> None:
    unit = np.ones(3, np.float32)
    assert cosine(np.array([1, np.nan, 1]), unit) == cosine(np.array([1, np.inf, 1]), unit) == cosine(unit[:2], unit)
    assert cosine(np.array([1, np.nan, 1]), unit) < 0 == cosine(0 * unit, unit)
    assert cosine(unit, 2 * unit) == pytest.approx(1)
    assert cosine(0 * unit, 0 * unit) == 1


def test_inaccurate_precision_falls_back_to_float32(
    artifact: Path, caplog: pytest.LogCaptureFixture, tiny: LoadedModel
) -> None:
    """The selection line must say so. On a CPU without bfloat16, float32 is selected right away."""
    with caplog.at_level(logging.INFO):
        loaded = load_anew(Settings(model_dir=artifact, min_cosine=0.9999999))
    assert loaded.backend.choice.precision == "float32"
    (line,) = [record.getMessage() for record in caplog.records if "backend selected" in record.getMessage()]
    assert "precision=float32" in line
    if tiny.backend.choice.precision == "bfloat16":
        assert "bfloat16 is too inaccurate for this model (embedding: min cosine 0.99" in line
        assert "limit 0.9999999" in loaded.backend.choice.reason


@needs_bfloat16
def test_precision_between_floor_and_expected_cosine_is_served_with_one_warning(
    artifact: Path, caplog: pytest.LogCaptureFixture, tiny: LoadedModel
) -> None:
    replace_embeddings(artifact, turned(tiny, 0.997))
    with caplog.at_level(logging.WARNING):
        loaded = load_anew(Settings(model_dir=artifact, precision="bfloat16"))
    assert loaded.backend.choice.precision == "bfloat16"
    (record,) = caplog.records
    line = record.getMessage()
    assert "model=tiny-bert precision=bfloat16 head=embedding cosine=0.99" in line
    assert "ATTENDANT_PRECISION=float32" in line
    assert "ATTENDANT_MIN_COSINE" in line


@needs_bfloat16
@pytest.mark.parametrize(("least", "is_served"), [(0, False), (0.9, True), (0.98, False)])
def test_option_replaces_the_floor(artifact: Path, tiny: LoadedModel, least: float, is_served: bool) -> None:
    replace_embeddings(artifact, turned(tiny, 0.93))
    settings = Settings(model_dir=artifact, precision="bfloat16", min_cosine=least)
    if is_served:
        assert load_anew(settings).backend.choice.precision == "bfloat16"
        return
    with pytest.raises(
        ConfigError, match=r'ATTENDANT_PRECISION: "bfloat16" is too inaccurate .*embedding: .* Use "float32", or set'
    ):
        load_anew(settings)


def test_float32_that_differs_from_the_export_is_rejected(artifact: Path, tiny: LoadedModel) -> None:
    size = tiny.artifact.manifest.architecture.hidden_size
    replace_embeddings(artifact, np.random.default_rng(0).standard_normal((32, size)))
    with pytest.raises(
        ArtifactError, match=r"golden\.json: vectors differ from the export \(embedding: min cosine -?0\.\d+"
    ):
        load_anew(Settings(model_dir=artifact, precision="float32", provider="cpu"))


def test_artifact_without_golden_vectors_is_served(artifact: Path, tiny: LoadedModel) -> None:
    (artifact / GOLDEN).unlink()
    assert Artifact.open(artifact).read_golden_vectors() is None
    loaded = load_anew(Settings(model_dir=artifact))
    assert loaded.backend.choice.precision == tiny.backend.choice.precision


@pytest.mark.parametrize(
    "fields",
    [
        {"values": "AAAA"},
        {"values": "*"},
        {"texts": [32] * 32},
        {"texts": []},
        {"sizes": [HIDDEN_SIZE]},
        {"ids": "AAAA"},
        {"other": 1},
        {"values": base64.b64encode(np.full((32, HIDDEN_SIZE), np.nan, "<f4").tobytes()).decode()},
    ],
)
def test_invalid_golden_vectors_are_rejected(artifact: Path, fields: dict[str, Any]) -> None:
    change_head(artifact, "embedding", **fields)
    with pytest.raises(ArtifactError, match=r"golden\.json: invalid golden vectors\. Export again\."):
        Artifact.open(artifact).read_golden_vectors()


@pytest.mark.parametrize("fields", [{"texts": 1}, {"other": 1}, {"heads": {}}])
def test_golden_vectors_without_the_heads_of_the_model_are_rejected(artifact: Path, fields: dict[str, Any]) -> None:
    change_golden(artifact, **fields)
    with pytest.raises(ArtifactError, match=r"golden\.json: invalid golden vectors\. Export again\."):
        Artifact.open(artifact).read_golden_vectors()
