"""Artifacts without optional parts: what still works, and the errors of what does not, in every API."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model.artifact.manifest import Absent
from model.export.export import Variants
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.manifests import with_manifest
from tests.model.conftest import export_tiny
from tests.service.conftest import ServiceHarness, open_harness
from tests.serving import ServiceThread
from tests.shared_models import load_anew

TEXT, OTHER = "river bank", "money in bank"
WHY = "(exported with --no-explain). Export it again without --no-explain."
LAYERS = f"layers: only the last layer is supported for this model {WHY}"
MAPS = f"Attention maps are not supported for this model {WHY}"
WORDS = f"Comparisons of words are not supported for this model {WHY}"
OCCURRENCES = [{"text": TEXT, "word_index": 1}, {"text": OTHER, "word_index": 2}]
REJECTED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/encode", {"inputs": TEXT, "layers": [0]}, LAYERS),
    ("/v1/encode", {"inputs": TEXT, "layers": [1, 2]}, LAYERS),
    ("/v1/encode", {"inputs": TEXT, "layers": "all"}, LAYERS),
    ("/v1/attend", {"inputs": TEXT}, MAPS),
    ("/v1/attend", {"inputs": TEXT, "kind": "projection", "layers": [-1]}, MAPS),
    ("/v1/compare", {"occurrences": OCCURRENCES}, WORDS),
    ("/v1/compare", {"occurrences": OCCURRENCES, "layers": [-1], "top_contributors": 0}, WORDS),
]
SERVED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/encode", {"inputs": TEXT, "outputs": ["pooled", "tokens", "words", "static"]}),
    ("/v1/encode", {"inputs": TEXT, "layers": [2]}),
    ("/v1/tokenize", {"inputs": TEXT}),
    ("/v1/similarity", {"queries": TEXT, "documents": [OTHER], "explain": True, "effect": "occlusion"}),
    ("/v1/similarity", {"queries": TEXT, "documents": [OTHER], "explain": True, "effect": "leave_one_out"}),
]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny(tmp_path_factory.mktemp("no-explain"), Variants(explain=False))


@pytest.fixture(scope="module")
def model_without_explain(artifact: Path) -> LoadedModel:
    return load_anew(Settings(model_dir=artifact, precision="float32"))


@pytest.fixture(scope="module")
def model_with_explain(tiny_artifact: Path) -> LoadedModel:
    return load_anew(Settings(model_dir=tiny_artifact, precision="float32"))


@pytest.fixture
async def harness(model_without_explain: LoadedModel) -> AsyncIterator[ServiceHarness]:
    async with open_harness(model_without_explain) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(model_without_explain: LoadedModel) -> Iterator[ServiceThread]:
    with ServiceThread(model_without_explain) as running:
        yield running


@pytest.mark.parametrize(("path", "body", "message"), REJECTED)
async def test_requests_of_hidden_layers_are_rejected(
    harness: ServiceHarness, path: str, body: dict[str, Any], message: str
) -> None:
    response = await harness.post(path, body)
    error = response.json()["error"]
    assert (response.status_code, error["reason"], error["message"]) == (422, "UNSUPPORTED_BY_MODEL", message)
    assert error["field"] == ("layers" if message is LAYERS else None)


@pytest.mark.parametrize(("path", "body"), SERVED)
async def test_requests_of_the_last_layer_get_the_same_response(
    harness: ServiceHarness, model_with_explain: LoadedModel, path: str, body: dict[str, Any]
) -> None:
    """Explanations of similarity need only token vectors of the last layer, which the fast lane computes."""
    response = await harness.post(path, body)
    assert response.status_code == 200, response.text
    async with open_harness(model_with_explain) as other:
        expected = (await other.post(path, body)).json()
    varying = {"timing", "timings", "model"}
    assert {key: value for key, value in response.json().items() if key not in varying} == {
        key: value for key, value in expected.items() if key not in varying
    }


async def test_explain_lane_does_not_exist(harness: ServiceHarness) -> None:
    """Neither metrics nor health checks nor shutdown depend on it."""
    assert harness.engine.explain_lane is None
    await harness.post("/v1/encode", {"inputs": TEXT})
    harness.engine.watch(1.0)
    assert harness.engine.healthy
    samples = [sample for family in harness.metrics.registry.collect() for sample in family.samples]
    lanes = {sample.labels["lane"] for sample in samples if sample.name == "attendant_lane_up"}
    assert lanes == {"fast"}
    await asyncio.wait_for(harness.engine.drain(), 5)


def test_open_inference_protocol_has_no_attention_output(service: ServiceThread) -> None:
    with httpx.Client(base_url=service.rest, timeout=60) as rest:
        outputs = rest.get("/v2/models/tiny-bert").json()["outputs"]
        assert [output["name"] for output in outputs] == ["pooled", "tokens", "token_counts"]
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]}
        assert rest.post("/v2/models/tiny-bert/infer", json=body).status_code == 200
        response = rest.post("/v2/models/tiny-bert/infer", json={**body, "outputs": [{"name": "attention"}]})
        assert (response.status_code, response.json()["error"]) == (400, MAPS)


async def test_model_without_embedding_table_rejects_static_vectors(model_with_explain: LoadedModel) -> None:
    absent = Absent(reason="no embedding table", remedy="Use another model.")
    manifest = model_with_explain.artifact.manifest.model_copy(update={"static": absent})
    async with open_harness(replace(with_manifest(model_with_explain, manifest), static=None)) as harness:
        response = await harness.post("/v1/encode", {"inputs": TEXT, "outputs": ["static"]})
        assert response.status_code == 422
        assert response.json()["error"]["message"] == (
            'outputs: "static" is not supported for this model (no embedding table). Use another model.'
        )
        assert (await harness.post("/v1/compare", {"occurrences": OCCURRENCES})).status_code == 422
        response = await harness.post("/v1/encode", {"inputs": TEXT, "layers": [0]})
        assert np.isfinite(response.json()["results"][0]["pooled"]).all()
