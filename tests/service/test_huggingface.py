"""The Hugging Face Inference API: words and entities are those of the native API, in the format of the pipelines."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.labels import TOKEN_CLASSIFIER, export_classifier
from tests.operation_requests import SHORT_TEXTS, TARGETS, Body, body, optional
from tests.retrievers import SPLADE, export_retriever
from tests.service.test_tei_products import product
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow  # test_fill_mask.py and test_entities.py compare with the pipelines

MASKED = st.builds("{} [MASK] {}".format, SHORT_TEXTS, st.sampled_from(["", "by the [MASK]", "river"]))
FILL_MASK = body(
    inputs=st.one_of(MASKED, SHORT_TEXTS, st.lists(MASKED, max_size=3)),
    parameters=optional(
        body(top_k=optional(st.integers(0, 101)), targets=optional(st.lists(st.sampled_from(TARGETS), max_size=3)))
    ),
)
ENTITIES = body(
    inputs=st.one_of(SHORT_TEXTS, st.lists(SHORT_TEXTS, max_size=3)),
    parameters=optional(body(aggregation_strategy=optional(st.sampled_from(["none", "simple", "max", "words", None])))),
)


@pytest.fixture(scope="module")
def rest() -> Iterator[httpx.Client]:
    directories = {"masked": export_retriever(SPLADE), "tokens": export_classifier(TOKEN_CLASSIFIER)}
    names = ",".join(f"{name}={path}" for name, path in directories.items())
    settings = Settings(models=names, precision="float32")
    models = [LoadedModel.load(settings, option) for option in settings.served_models]
    with ServiceThread(*models, models=names) as service, httpx.Client(base_url=service.rest, timeout=120) as client:
        yield client


@product
@given(request=FILL_MASK)
def test_fill_mask_equals_the_native_api(rest: httpx.Client, request: Body) -> None:
    response = rest.post("/models/masked/pipeline/fill-mask", json=request)
    native = rest.post(
        "/v1/fill-mask", json={"model": "masked", "inputs": request["inputs"], **request.get("parameters", {})}
    )
    if not check_same_error(response, native):
        return
    single = isinstance(request["inputs"], str)
    texts = [request["inputs"]] if single else request["inputs"]
    found = [response.json()] if single else response.json()
    for text, words, result in zip(texts, found, native.json()["results"], strict=True):
        masks = words if len(result["positions"]) > 1 else [words]
        for mask, position in zip(masks, result["positions"], strict=True):
            predictions = position["layers"][0]["predictions"]
            assert [word["token"] for word in mask] == [item["id"] for item in predictions]
            assert [word["score"] for word in mask] == pytest.approx([item["probability"] for item in predictions])
            for word in mask:
                assert word["sequence"].endswith(text[position["end"] :])
                assert word["token_str"].strip().removeprefix("##") in word["sequence"]


@product
@given(request=ENTITIES)
def test_token_classification_equals_the_native_api(rest: httpx.Client, request: Body) -> None:
    response = rest.post("/models/tokens/pipeline/token-classification", json=request)
    strategy = request.get("parameters", {}).get("aggregation_strategy") or "simple"
    options = {"model": "tokens", "aggregation": strategy}
    native = rest.post("/v1/token-classify", json={"inputs": request["inputs"], **options})
    if not check_same_error(response, native):
        return
    found = [response.json()] if isinstance(request["inputs"], str) else response.json()
    label = "entity" if strategy == "none" else "entity_group"
    for entities, result in zip(found, native.json()["results"], strict=True):
        expected = [
            {
                label: item["label"],
                "score": pytest.approx(item["score"], abs=1e-5),
                "word": item["text"],
                "start": item["start"],
                "end": item["end"],
            }
            for item in result["entities"]
        ]
        assert entities == expected


def check_same_error(response: httpx.Response, native: httpx.Response) -> bool:
    """Return whether both requests succeeded. Otherwise, they have one status, and the message names other fields."""
    event(str(response.status_code))
    assert response.status_code == native.status_code, (response.text, native.text)
    if response.status_code != 200:
        assert set(response.json()) == {"error"}
        field = native.json()["error"]["field"].split("[")[0]
        assert {"aggregation": "aggregation_strategy"}.get(field, field) in response.json()["error"]
    return response.status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("masked/pipeline/fill-mask", {"inputs": "[MASK] " * 60 + "x" * 60_000}, 413, "too many characters"),
        ("masked/pipeline/fill-mask", {"inputs": "money"}, 422, "inputs[0]: no mask token"),
        ("masked/pipeline/fill-mask", {"inputs": "[MASK]", "parameters": {"targets": 1}}, 422, "parameters.targets"),
        ("masked/pipeline/fill-mask", {"inputs": "[MASK]", "parameters": {"top_k": 0}}, 422, "parameters.top_k"),
        ("tokens/pipeline/fill-mask", {"inputs": "[MASK]"}, 422, "token_classify"),
        ("none/pipeline/fill-mask", {"inputs": "[MASK]"}, 404, "masked"),
        ("masked/pipeline/summarization", {"inputs": "money"}, 404, "/docs"),
    ],
)
def test_errors(rest: httpx.Client, path: str, body: Any, status: int, message: str) -> None:
    response = rest.post(f"/models/{path}", json=body)
    assert (response.status_code, set(response.json())) == (status, {"error"})
    assert message in response.json()["error"]


def test_repeated_texts_count_for_the_size_of_the_response() -> None:
    model = LoadedModel.load(Settings(model_dir=export_retriever(SPLADE), precision="float32"))
    text = "[MASK] " * 50 + "é" * 10
    with ServiceThread(model, max_response_bytes=3_000_000) as service:
        native = httpx.post(f"{service.rest}/v1/fill-mask", json={"inputs": text, "top_k": 60})
        path = f"/models/{model.artifact.manifest.name}/pipeline/fill-mask"
        response = httpx.post(service.rest + path, json={"inputs": text, "parameters": {"top_k": 60}})
        assert (native.status_code, response.status_code) == (200, 422)
        assert "smaller parameters.top_k" in response.json()["error"]
