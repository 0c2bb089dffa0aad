"""Paths that clients send besides those of the routes: aliases, extra slashes, prefixes of proxies, and mistakes."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from service import __version__
from service.engine.model_loader import LoadedModel
from service.rest.middleware import normalize
from tests.serving import serve

MODEL = "all-MiniLM-L6-v2"
PREFIX = "/embeddings-api"
EMBEDDINGS = {"input": "money bank grows", "model": MODEL}


@pytest.fixture(scope="module")
def rest(model: LoadedModel) -> Iterator[httpx.Client]:
    with serve(model, root_path=PREFIX) as client:
        yield client


@pytest.mark.parametrize(
    "path", ["/embeddings", "//v1/embeddings", "/v1/embeddings/", "/v1//embeddings//", f"{PREFIX}/v1/embeddings"]
)
def test_path_reaches_the_route(rest: httpx.Client, path: str) -> None:
    expected = rest.post("/v1/embeddings", json=EMBEDDINGS).json()
    assert rest.post(f"{rest.base_url}".rstrip("/") + path, json=EMBEDDINGS).json() == expected


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/v1/embedding", "/v1/embeddings"),
        ("/v1/v1/embeddings", "/v1/embeddings"),
        ("/v1/embeddings/embeddings", "/v1/embeddings"),
        ("/openai/v1/embeddings", "/v1/embeddings"),
        ("/v1/re-rank", "/v1/rerank"),
        ("/api/v1/embeddings", "/v1/embeddings"),
        ("/v1/embed", "/v1/embeddings"),
        ("/v1/encodes", "/v1/encode"),
    ],
)
def test_unknown_path_names_the_nearest_one(rest: httpx.Client, path: str, nearest: str) -> None:
    response = rest.post(path, json={})
    assert response.status_code == 404
    assert f"Did you mean {nearest}?" in response.text


def test_prefix_that_is_part_of_a_route_is_kept() -> None:
    assert normalize("/api/embed", "/api") == "/api/embed"
    assert normalize("/api/v1/encode", "/api") == "/v1/encode"
    assert normalize("/api/", "/api") == "/"
    assert normalize("/api", "/api") == "/"
    assert normalize("/api", "/api", "GET") == "/api"  # URLs in the page are relative
    assert normalize("//api//v1/encode", "/api") == "/v1/encode"
    assert normalize("//livez", "") == "//livez"


def test_docs_work_behind_a_prefix(rest: httpx.Client) -> None:
    """All URLs of the page are relative, and requests go to the prefix."""
    for base in ("", PREFIX):
        page = rest.get(f"{base}/docs")
        for url in re.findall(r'(?:src|href)="([^"]+)"', page.text):
            assert rest.get(f"{base}/{url}").status_code == 200
        start = rest.get(f"{base}/docs/start.js").text
        assert 'url: "openapi.json"' in start
        assert rest.get(f"{base}/openapi.json").json()["servers"] == [{"url": PREFIX}]
        assert rest.get(f"{base}/").headers["content-type"].startswith("text/html")


def close(actual: Any, expected: Any) -> None:
    """Compare vectors, whose last digits depend on the other texts of their batches in bfloat16."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-3)


def test_ollama_clients_get_the_same_vectors(rest: httpx.Client) -> None:
    texts = ["money bank grows", "word " * 300]
    native = rest.post("/v1/encode", json={"inputs": texts, "truncation": "right"}).json()
    vectors = np.array([result["pooled"] for result in native["results"]])
    body = {"model": f"{MODEL}:latest", "input": texts, "keep_alive": "5m", "options": {}}
    response = rest.post("/api/embed", json=body)
    answer = response.json()
    assert answer["model"] == MODEL
    close(answer["embeddings"], vectors)
    assert answer["prompt_eval_count"] == sum(result["token_count"] for result in native["results"])
    assert response.headers["x-attendant-ignored"] == "keep_alive, options"
    close(rest.post("/api/embed", json={"model": MODEL, "input": texts[0]}).json()["embeddings"], vectors[:1])
    close(rest.post("/api/embeddings", json={"model": MODEL, "prompt": texts[0]}).json()["embedding"], vectors[0])
    short = rest.post("/api/embed", json={"model": MODEL, "input": texts[0], "dimensions": 8}).json()["embeddings"]
    assert len(short[0]) == 8
    assert [model["name"] for model in rest.get("/api/tags").json()["models"]] == [MODEL]
    assert rest.get("/api/version").json() == {"version": __version__}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "llama3", "input": "a"}, 404, 'model: not found ("llama3")'),
        ({"model": MODEL, "input": "word " * 300, "truncate": False}, 422, "or set truncate to true"),
        ({"model": MODEL}, 422, "input: missing. Send it."),
    ],
)
def test_ollama_clients_get_its_errors(rest: httpx.Client, body: Any, status: int, message: str) -> None:
    response = rest.post("/api/embed", json=body)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert message in response.json()["error"]


def test_sentences_at_the_root_are_explained(rest: httpx.Client) -> None:
    body = {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
    response = rest.post("/", json=body)
    assert response.json()["error"] == "inputs: wrong type (object). Send sentences to compare to /similarity."
    assert rest.post("/similarity", json=body).status_code == 200


def test_detokenize_returns_the_text_of_tokens(rest: httpx.Client) -> None:
    tokens = rest.post("/v1/tokenize", json={"inputs": "money bank grows"}).json()["results"][0]["tokens"]
    ids = [token["id"] for token in tokens]
    response = rest.post("/detokenize", json={"model": MODEL, "tokens": ids})
    assert response.json() == {"prompt": "[CLS] money bank grows [SEP]"}
    wrong = rest.post("/detokenize", json={"tokens": [10**6]}).json()["error"]
    assert wrong["param"] == "tokens[0]"
    assert rest.get("/version").json() == {"version": __version__}
