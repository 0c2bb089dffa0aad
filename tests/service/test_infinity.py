"""infinity's API: combinations of request fields get the native API's numbers, or one of its errors."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from service.engine.model_loader import LoadedModel
from tests.labels import CLASSIFIER, CROSS_ENCODER
from tests.operation_requests import SHORT_TEXTS, TEXTS, Body, body, optional
from tests.service.test_tei_products import product
from tests.serving import load_kind, serve

EMBEDDER = "embedding model"
MODEL = st.sampled_from([..., ..., "default/not-specified", "other"])
EMBEDDINGS = body(
    input=st.one_of(TEXTS, st.lists(TEXTS, max_size=3)),
    model=MODEL,
    encoding_format=optional(st.sampled_from(["float", "base64"])),
    dimensions=optional(st.sampled_from([0, 64, -1, 385])),
    modality=optional(st.sampled_from(["text", "text", "image"])),
    user=optional(st.none()),
)
RERANK = body(
    query=SHORT_TEXTS,
    documents=st.lists(TEXTS, max_size=3),
    model=MODEL,
    top_n=optional(st.one_of(st.none(), st.integers(0, 4))),
    return_documents=optional(st.booleans()),
    raw_scores=optional(st.booleans()),
)
CLASSIFY = body(input=st.lists(TEXTS, max_size=3), model=MODEL, raw_scores=optional(st.booleans()))


@pytest.fixture(scope="module", params=[EMBEDDER, CROSS_ENCODER, CLASSIFIER])
def rest(request: pytest.FixtureRequest, model: LoadedModel) -> Iterator[httpx.Client]:
    with serve(model if request.param == EMBEDDER else load_kind(request.param)) as client:
        yield client


@product
@given(request=EMBEDDINGS)
def test_embeddings_equal_the_native_api(rest: httpx.Client, request: Body) -> None:
    response = rest.post("/infinity/embeddings", json=request)
    event(str(response.status_code))
    if request.get("modality") == "image":
        check_error(response, 422)
        return
    inputs = request["input"] if isinstance(request["input"], list) else [request["input"]]
    fields = {"inputs": cut(rest, inputs), "dimensions": request.get("dimensions") or None}
    native = rest.post("/v1/encode", json=with_model(request, fields))
    if not check_same_status(response, native):
        return
    results, data = native.json()["results"], response.json()["data"]
    assert [item["index"] for item in data] == list(range(len(results)))
    for item, result in zip(data, results, strict=True):
        embedding = item["embedding"]
        if request.get("encoding_format") == "base64":
            embedding = np.frombuffer(base64.b64decode(embedding), "<f4")
        np.testing.assert_allclose(embedding, result["pooled"], atol=5e-3)
    check_fields(response, native, "list")


@product
@given(request=RERANK)
def test_rerank_equals_the_native_api(rest: httpx.Client, request: Body) -> None:
    response = rest.post("/infinity/rerank", json=request)
    event(str(response.status_code))
    fields = {name: request[name] for name in ("query", "top_n", "raw_scores") if name in request}
    native = rest.post("/v1/rerank", json=with_model(request, fields | {"documents": cut(rest, request["documents"])}))
    if not check_same_status(response, native):
        return
    scores = {result["index"]: result["relevance_score"] for result in native.json()["results"]}
    assert len(response.json()["results"]) == len(scores)
    for rank, score in zip(response.json()["results"], scores.values(), strict=True):
        for expected in (score, scores.get(rank["index"], score)):  # equal scores may swap places
            assert rank["relevance_score"] == pytest.approx(expected, abs=2e-3)
        document = request["documents"][rank["index"]] if request.get("return_documents") else None
        assert rank.get("document") == document
    check_fields(response, native, "rerank")


@product
@given(request=CLASSIFY)
def test_classify_equals_the_native_api(rest: httpx.Client, request: Body) -> None:
    response = rest.post("/infinity/classify", json=request)
    event(str(response.status_code))
    fields = {"inputs": cut(rest, request["input"]), "raw_scores": request.get("raw_scores", False)}
    native = rest.post("/v1/classify", json=with_model(request, fields))
    if not check_same_status(response, native):
        return
    for labels, result in zip(response.json()["data"], native.json()["results"], strict=True):
        scores = {label["label"]: label["score"] for label in result["labels"]}
        assert {label["label"]: label["score"] for label in labels} == pytest.approx(scores, abs=1e-4)
    check_fields(response, native, "classify")


def test_models_have_their_load_and_capabilities(rest: httpx.Client) -> None:
    info = rest.get("/v1/model").json()
    body = rest.get("/infinity/models").raise_for_status().json()
    (model,) = body["data"]
    assert (body["object"], model["id"], model["owned_by"]) == ("list", info["name"], "infinity")
    assert (model["stats"]["queue_absolute"], model["backend"]) == (0, info["provider"])
    expected = {"embed": "encode", "rerank": "rerank", "classify": "classify"}
    assert {expected[name] for name in model["capabilities"]} == set(info["operations"]) & set(expected.values())
    wrong = rest.get("/infinity/models?a=1", headers={"x-attendant-strict": "1"}).json()
    assert set(wrong["error"]) == {"message", "type", "param", "code"}


def with_model(request: Body, fields: Body) -> Body:
    """Return a native request with truncation, for the same model."""
    name = request.get("model", "default/not-specified")
    return fields | {"truncation": "right", "model": None if name == "default/not-specified" else name}


def cut(rest: httpx.Client, texts: list[str]) -> list[str]:
    """Return the part of each text within the character limit."""
    limit = rest.get("/v1/model").json()["limits"]["max_input_characters"]
    return [text[:limit] for text in texts]


def check_fields(response: httpx.Response, native: httpx.Response, kind: str) -> None:
    body, tokens = response.json(), native.json()["usage"]["tokens"]
    assert (body["object"], body["model"]) == (kind, native.json()["model"])
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert body["id"] == response.headers["x-request-id"]
    assert body["created"] > 1_700_000_000


def check_error(response: httpx.Response, status: int) -> None:
    assert response.status_code == status, response.text
    error: Any = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert "inputs" not in error["message"]


def check_same_status(response: httpx.Response, native: httpx.Response) -> bool:
    """Return whether both APIs accept the request; otherwise, check that both reject it alike."""
    if native.status_code == 200:
        assert response.status_code == 200, response.text
        return True
    check_error(response, native.status_code)
    return False
