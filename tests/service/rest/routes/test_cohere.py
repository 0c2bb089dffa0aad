"""Cohere's API: request IDs and errors. test_cohere_products.py compares numbers with the native API."""

from typing import Any

import httpx
import pytest

from tests.service.conftest import GOLDEN

MODEL = "all-MiniLM-L6-v2"
TEXTS = [GOLDEN, "the river bank"]


def test_request_id_is_returned(rest: httpx.Client) -> None:
    body = {"texts": TEXTS, "input_type": "classification"}
    for path, request in (("/v2/embed", body), ("/v2/rerank", {"query": "a", "documents": ["b"]})):
        response = rest.post(path, json=request, headers={"x-request-id": "one"})
        assert (response.json()["id"], response.headers["x-request-id"]) == ("one", "one")
        response = rest.post(path, json={}, headers={"x-request-id": "two"})
        assert (response.status_code, response.json()["id"]) == (422, "two")


@pytest.mark.parametrize(
    ("path", "changes", "status", "message"),
    [
        ("/v2/embed", {"input_type": "image"}, 422, "input_type: unknown value"),
        ("/v2/embed", {"embedding_types": []}, 422, "embedding_types: empty"),
        ("/v2/embed", {"embedding_types": ["uint8"]}, 422, "embedding_types[0]: unknown value"),
        ("/v2/embed", {"texts": ["a"] * 300}, 422, "texts: too many items (300, limit 256)"),
        ("/v2/embed", {"texts": ["word " * 300], "truncate": "NONE"}, 422, 'or set truncate to "END"'),
        ("/v2/embed", {"output_dimension": 7, "embedding_types": ["binary"]}, 422, "output_dimension: "),
        ("/v2/embed", {"images": ["data:"]}, 422, "images is not supported"),
        ("/v2/embed", {"model": "embed-v4.0"}, 404, 'model: not found ("embed-v4.0")'),
        ("/v2/rerank", {"model": "rerank-v3.5"}, 404, 'model: not found ("rerank-v3.5")'),
        ("/v2/rerank", {"documents": ["a", {"txt": "b"}]}, 422, "documents[1].text: missing"),
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
