"""Cohere's API: embedding types, input types, documents, errors. tests/clients tests Cohere's client."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest

from service.engine.model_loader import LoadedModel
from tests.manifests import with_manifest, with_prompts
from tests.service.conftest import GOLDEN, open_harness

MODEL = "all-MiniLM-L6-v2"
TEXTS = [GOLDEN, "the river bank"]
TYPES = ["float", "int8", "ubinary", "binary", "base64"]
PROMPTS = {"query": "find: ", "document": "text: "}


def embed(rest: httpx.Client, **fields: Any) -> Any:
    body = {"model": MODEL, "texts": TEXTS, "input_type": "search_document"} | fields
    return rest.post("/v2/embed", json=body).raise_for_status().json()


def native(rest: httpx.Client, **fields: Any) -> Any:
    body = rest.post("/v1/encode", json={"inputs": TEXTS} | fields).raise_for_status().json()
    return [result["pooled"] for result in body["results"]]


def test_embeddings_have_every_requested_type(rest: httpx.Client) -> None:
    body = embed(rest, embedding_types=TYPES)
    embeddings = body["embeddings"]
    assert list(embeddings) == TYPES
    expected = np.array(native(rest))
    np.testing.assert_allclose(embeddings["float"], expected, atol=5e-4)
    decoded = [np.frombuffer(base64.b64decode(item), "<f4") for item in embeddings["base64"]]
    np.testing.assert_allclose(decoded, embeddings["float"], atol=1e-6)
    np.testing.assert_allclose(embeddings["int8"], np.rint(127 * expected), atol=1)
    assert (np.abs(np.array(embeddings["ubinary"]) - native(rest, dtype="ubinary")) > 0).mean() < 0.1
    assert (np.array(embeddings["binary"]) + 128 == embeddings["ubinary"]).all()
    assert np.array(embeddings["binary"]).min() < 0
    assert (body["texts"], body["response_type"]) == (TEXTS, "embeddings_by_type")
    assert body["meta"]["api_version"] == {"version": "2"}
    assert body["meta"]["tokens"] == body["meta"]["billed_units"] == {"input_tokens": 10}


def test_request_id_is_returned(rest: httpx.Client) -> None:
    body = {"texts": TEXTS, "input_type": "classification"}
    for path, request in (("/v2/embed", body), ("/v2/rerank", {"query": "a", "documents": ["b"]})):
        response = rest.post(path, json=request, headers={"x-request-id": "one"})
        assert (response.json()["id"], response.headers["x-request-id"]) == ("one", "one")
        response = rest.post(path, json={}, headers={"x-request-id": "two"})
        assert (response.status_code, response.json()["id"]) == (422, "two")


def test_output_dimension_truncates(rest: httpx.Client) -> None:
    embeddings = embed(rest, output_dimension=64)["embeddings"]
    np.testing.assert_allclose(embeddings["float"], native(rest, dimensions=64), atol=5e-4)


@pytest.mark.parametrize(("truncate", "side"), [("START", "left"), ("END", "right"), (None, "right")])
def test_long_texts_are_truncated(rest: httpx.Client, truncate: str | None, side: str) -> None:
    """This includes texts over the character limit."""
    limit = rest.get("/v1/model").json()["limits"]["max_input_characters"]
    texts = ["river " + "bank " * limit + "money", "a " + "word " * 300 + "b"]
    parts = [text[:limit] if side == "right" else text[-limit:] for text in texts]
    embeddings = embed(rest, texts=texts, truncate=truncate)["embeddings"]
    np.testing.assert_allclose(embeddings["float"], native(rest, inputs=parts, truncation=side), atol=5e-4)


async def test_input_type_selects_a_prompt(model: LoadedModel) -> None:
    prompted = with_manifest(model, with_prompts(model.artifact.manifest, PROMPTS, "document"))
    expected = {"search_query": "find: ", "search_document": "text: ", "classification": "", "clustering": ""}
    async with open_harness(prompted) as harness:
        for input_type, prompt in expected.items():
            response = await harness.post("/v2/embed", {"texts": [GOLDEN], "input_type": input_type})
            native_response = await harness.post("/v1/encode", {"inputs": [GOLDEN], "prompt": prompt})
            (result,) = native_response.json()["results"]
            (embedding,) = response.json()["embeddings"]["float"]
            np.testing.assert_allclose(embedding, result["pooled"], atol=1e-5)


def test_documents_are_returned_as_objects(rest: httpx.Client) -> None:
    documents = [GOLDEN, {"text": "a river", "id": 7, "tags": ["x"]}]
    body = {"query": "money", "documents": documents}
    results = rest.post("/v2/rerank", json=body).json()["results"]
    assert all("document" not in result for result in results)
    results = rest.post("/v2/rerank", json=body | {"return_documents": True}).json()["results"]
    assert {result["index"]: result["document"] for result in results} == {0: {"text": GOLDEN}, 1: documents[1]}
    assert len(rest.post("/v2/rerank", json=body | {"top_n": 1}).json()["results"]) == 1


@pytest.mark.parametrize(
    ("path", "changes", "status", "message"),
    [
        ("/v2/embed", {"input_type": "image"}, 422, "input_type: unknown value"),
        ("/v2/embed", {"embedding_types": []}, 422, "embedding_types: empty"),
        ("/v2/embed", {"embedding_types": ["float", "float"]}, 422, "embedding_types: contains the same type"),
        ("/v2/embed", {"embedding_types": ["uint8"]}, 422, "embedding_types[0]: unknown value"),
        ("/v2/embed", {"texts": ["a", " "]}, 422, "texts[1]: empty or blank"),
        ("/v2/embed", {"texts": []}, 422, "texts: empty"),
        ("/v2/embed", {"texts": ["a"] * 300}, 422, "texts: too many items (300, limit 256)"),
        ("/v2/embed", {"texts": ["word " * 300], "truncate": "NONE"}, 422, 'or set truncate to "END"'),
        ("/v2/embed", {"output_dimension": 900}, 422, "output_dimension: out of range"),
        ("/v2/embed", {"output_dimension": 7, "embedding_types": ["binary"]}, 422, "output_dimension: "),
        ("/v2/embed", {"images": ["data:"]}, 422, "images is not supported"),
        ("/v2/embed", {"model": "embed-v4.0"}, 404, 'model: not found ("embed-v4.0")'),
        ("/v2/rerank", {"model": "rerank-v3.5"}, 404, 'model: not found ("rerank-v3.5")'),
        ("/v2/rerank", {"documents": ["a", {"txt": "b"}]}, 422, "documents[1].text: missing"),
        ("/v2/rerank", {"query": " "}, 422, "query: empty or blank"),
        ("/v2/rerank", {"top_n": 0}, 422, "top_n: "),
    ],
)
def test_errors_have_cohere_names(
    rest: httpx.Client, path: str, changes: dict[str, Any], status: int, message: str
) -> None:
    valid = {"texts": TEXTS, "input_type": "classification"} if "embed" in path else {"query": "a", "documents": TEXTS}
    response = rest.post(path, json=valid | changes)
    body = response.json()
    assert (response.status_code, set(body)) == (status, {"id", "message"})
    assert message in body["message"]
