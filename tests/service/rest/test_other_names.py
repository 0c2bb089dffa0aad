"""The names that clients of Jina and Voyage use at /v1/embeddings and /v1/rerank do what the usual names do."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.engine.model_loader import LoadedModel
from tests.serving import ServiceThread

LONG = "word " * 400
EMBEDDINGS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"embedding_type": "base64"}, {"encoding_format": "base64"}),
    ({"output_dimension": 8}, {"dimensions": 8}),
    ({"output_dtype": "float", "normalized": True}, {}),
    ({"truncation": True, "input": LONG}, {"truncate": True, "input": LONG}),
    ({"truncation": False, "input": LONG}, {"truncate": False, "input": LONG}),
    ({"output_dimension": 0}, {"dimensions": 0}),
)
RERANK: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"top_k": 1}, {"top_n": 1}),
    ({"top_k": 0}, {"top_n": 0}),
    ({"truncation": True}, {"truncation": "auto"}),
    ({"truncation": False}, {"truncation": "error"}),
)


@pytest.fixture(scope="module")
def client(model: LoadedModel) -> Iterator[httpx.Client]:
    with ServiceThread(model) as service, httpx.Client(base_url=service.rest, timeout=60) as opened:
        yield opened


def answer(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Return the status, and the response without the ID of the request."""
    response = client.post(path, json=body)
    assert "x-attendant-ignored" not in response.headers
    document = response.json()
    document.pop("id", None)
    if isinstance(document.get("error"), dict):
        document["error"].pop("request_id", None)
    return response.status_code, document


def assert_same(left: Any, right: Any) -> None:
    """Compare answers; vectors depend slightly on the batch that a request is in."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        left, right = list(left.values()), list(right.values())
    if isinstance(left, list | tuple):
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, float):
        assert left == pytest.approx(right, abs=1e-2)
    elif not (isinstance(left, str) and len(left) > 500):  # in base64
        assert left == right


@pytest.mark.parametrize(("theirs", "ours"), EMBEDDINGS)
def test_embeddings(client: httpx.Client, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    base = {"model": "all-MiniLM-L6-v2", "input": ["money bank grows"]}
    assert_same(answer(client, "/v1/embeddings", base | theirs), answer(client, "/v1/embeddings", base | ours))


def test_unnormalized_vectors(client: httpx.Client) -> None:
    body = {"model": "all-MiniLM-L6-v2", "input": "money bank grows"}
    _, document = answer(client, "/v1/embeddings", body | {"normalized": False})
    (native,) = client.post("/v1/encode", json={"inputs": "money bank grows", "normalize": False}).json()["results"]
    assert document["data"][0]["embedding"] == pytest.approx(native["pooled"], abs=1e-3)
    assert sum(value * value for value in native["pooled"]) > 2


@pytest.mark.parametrize("field", ["output_dtype", "embedding_type"])
def test_types_other_than_float_are_errors(client: httpx.Client, field: str) -> None:
    body = {"model": "all-MiniLM-L6-v2", "input": "a", field: "ubinary"}
    status, document = answer(client, "/v1/embeddings", body)
    assert (status, document["error"]["param"], document["error"]["code"]) == (400, field, "unknown_value")


@pytest.mark.parametrize(("theirs", "ours"), RERANK)
def test_rerank(client: httpx.Client, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    base = {"query": "money", "documents": ["river", "bank", LONG]} if "truncation" in ours else {
        "query": "money", "documents": ["river", "bank"],
    }  # fmt: skip
    assert_same(answer(client, "/v1/rerank", base | theirs), answer(client, "/v1/rerank", base | ours))
