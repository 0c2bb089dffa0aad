"""Cohere's API: combinations of request fields get the native API's numbers, or one of its errors."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from service.engine.model_loader import LoadedModel
from tests.labels import CROSS_ENCODER
from tests.manifests import with_manifest, with_prompts
from tests.operation_requests import SHORT_TEXTS, TEXTS, Body, body, optional
from tests.service.test_tei_products import PROMPTS, product
from tests.serving import load_kind, serve

DOCUMENT = st.one_of(TEXTS, TEXTS.map(lambda text: {"text": text, "id": [1]}), st.just({"title": "a"}))
DOCUMENTS = st.lists(st.one_of(TEXTS, TEXTS, TEXTS, DOCUMENT), max_size=4)
RERANK = body(
    query=SHORT_TEXTS,
    documents=DOCUMENTS,
    top_n=optional(st.one_of(st.none(), st.integers(0, 5))),
    return_documents=optional(st.booleans()),
    max_tokens_per_doc=optional(st.integers(1, 4096)),
    priority=optional(st.integers(0, 9)),
)
EMBEDDING_TYPES = st.lists(st.sampled_from(["float", "int8", "ubinary", "binary", "base64"]), max_size=3)
EMBED = body(
    texts=st.lists(TEXTS, max_size=3),
    input_type=st.sampled_from(["search_query", "search_document", "classification", "clustering"]),
    embedding_types=optional(st.one_of(st.none(), EMBEDDING_TYPES)),
    output_dimension=optional(st.one_of(st.none(), st.sampled_from([0, 7, 8, 64, 256, 385]))),
    truncate=optional(st.sampled_from([None, "NONE", "START", "END"])),
)
TRUNCATIONS = {None: "right", "NONE": "error", "START": "left", "END": "right"}
DTYPES = {"float": "float32", "base64": "float32", "int8": "int8", "ubinary": "ubinary", "binary": "ubinary"}
INPUT_PROMPTS = {"search_query": PROMPTS["query"], "search_document": PROMPTS["document"]}


@pytest.fixture(scope="module", params=["embedding model", "cross-encoder"])
def rest(request: pytest.FixtureRequest, model: LoadedModel) -> Iterator[httpx.Client]:
    if request.param == "cross-encoder":
        model = load_kind(CROSS_ENCODER)
    else:
        model = with_manifest(model, with_prompts(model.artifact.manifest, PROMPTS, "document"))
    with serve(model) as client:
        yield client


@product
@given(request=RERANK)
def test_rerank_equals_the_native_api(rest: httpx.Client, request: Body) -> None:
    response = rest.post("/v2/rerank", json=request)
    event(str(response.status_code))
    limit = rest.get("/v1/model").json()["limits"]["max_input_characters"]
    documents = [cut(item, limit) for item in request["documents"]]
    fields = {name: request[name] for name in ("query", "top_n", "return_documents") if name in request}
    native = rest.post("/v1/rerank", json=fields | {"documents": documents, "truncation": "right"})
    if not check_same_status(response, native):
        return
    results = native.json()["results"]
    scores = {result["index"]: result["relevance_score"] for result in results}
    assert len(response.json()["results"]) == len(results)
    for rank, result in zip(response.json()["results"], results, strict=True):
        for score in (result["relevance_score"], scores.get(rank["index"], rank["relevance_score"])):
            assert rank["relevance_score"] == pytest.approx(score, abs=2e-3)  # equal scores may swap places
        assert ("document" in rank) == (request.get("return_documents") is True)
        if "document" in rank:
            sent = request["documents"][rank["index"]]
            assert rank["document"] == ({"text": sent} if isinstance(sent, str) else sent)
    tokens = {"input_tokens": native.json()["usage"]["tokens"]}
    assert response.json()["meta"]["tokens"] == tokens
    assert native.json()["meta"] == response.json()["meta"] | {"api_version": {"version": "1"}}


@product
@given(request=EMBED)
def test_embed_equals_the_native_api(rest: httpx.Client, request: Body) -> None:
    response = rest.post("/v2/embed", json=request)
    event(str(response.status_code))
    types = request.get("embedding_types")
    types = ["float"] if types is None else types
    if not types or len(set(types)) < len(types):
        assert response.status_code == 422
        return
    info = rest.get("/v1/model").json()
    side, prompted = TRUNCATIONS[request.get("truncate")], bool(info["prompts"])
    fields = {
        "inputs": [cut(text, info["limits"]["max_input_characters"], side) for text in request["texts"]],
        "truncation": side,
        "dimensions": request.get("output_dimension"),
        "prompt": INPUT_PROMPTS.get(request["input_type"], "") if prompted else "",
    }
    for dtype in dict.fromkeys(DTYPES[kind] for kind in types):
        native = rest.post("/v1/encode", json=fields | {"dtype": dtype})
        if native.status_code != 200:
            check_same_status(response, native)
            return
        assert response.status_code == 200, response.text
        assert response.json()["meta"]["tokens"] == {"input_tokens": native.json()["usage"]["tokens"]}
        expected = [result["pooled"] for result in native.json()["results"]]
        for kind in (kind for kind in types if DTYPES[kind] == dtype):
            check_embeddings(kind, response.json()["embeddings"][kind], expected)
    assert list(response.json()["embeddings"]) == types
    assert (response.json()["texts"], response.json()["response_type"]) == (request["texts"], "embeddings_by_type")
    assert response.json()["meta"]["api_version"] == {"version": "2"}


def check_embeddings(kind: str, embeddings: Any, expected: Any) -> None:
    """Compare with native arrays. The last bits of an embedding depend on its batch."""
    assert len(embeddings) == len(expected)
    for embedding, other in zip(embeddings, expected, strict=True):
        if kind in ("ubinary", "binary"):
            values = np.array(embedding) + (128 if kind == "binary" else 0)
            bits = [np.unpackbits(np.array(array, np.uint8)) for array in (values, other)]
            assert (bits[0] != bits[1]).mean() <= 0.1
        elif kind == "int8":
            np.testing.assert_allclose(embedding, other, atol=1)
        else:
            decoded = np.frombuffer(base64.b64decode(embedding), "<f4") if kind == "base64" else embedding
            np.testing.assert_allclose(decoded, other, atol=5e-3)


def cut(item: Any, limit: int, side: str = "right") -> Any:
    """Return the part of a text, or of a document's text, within the character limit."""
    if isinstance(item, dict):
        return {name: cut(value, limit) if name == "text" else value for name, value in item.items()}
    return item if side == "error" or len(item) <= limit else item[:limit] if side == "right" else item[-limit:]


def check_same_status(response: httpx.Response, native: httpx.Response) -> bool:
    """Return whether both APIs accept the request; otherwise, check that both reject it alike."""
    assert response.status_code == native.status_code, (response.text[:200], native.text[:200])
    if response.status_code == 200:
        return True
    error = response.json()
    assert set(error) == {"id", "message"}
    assert "inputs" not in error["message"]
    return False
