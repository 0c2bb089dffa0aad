"""Routes whose clients send a whole list of texts at once accept as many as the OpenAI route."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.config import Settings
from service.operations.inputs import MAX_LISTED_INPUTS
from tests.serving import ServiceThread
from tests.shared_models import load_shared

ROUTES = {
    "/v1/embeddings": "input", "/embeddings": "input", "/embed": "inputs", "/": "inputs", "/api/embed": "input",
    "/infinity/embeddings": "input",
}  # fmt: skip


@pytest.fixture(scope="module")
def client(tiny_artifact: Path) -> Iterator[httpx.Client]:
    model = load_shared(Settings(model_dir=tiny_artifact))
    with ServiceThread(model) as service, httpx.Client(base_url=service.rest, timeout=60) as opened:
        yield opened


@pytest.mark.parametrize("path", ROUTES)
def test_list_of_the_largest_size_is_embedded(client: httpx.Client, path: str) -> None:
    texts = [f"text {number % 7}" for number in range(MAX_LISTED_INPUTS)]
    response = client.post(path, json={"model": "tiny-bert", ROUTES[path]: texts})
    body = response.raise_for_status().json()
    vectors = body if isinstance(body, list) else body.get("embeddings") or [item["embedding"] for item in body["data"]]
    assert len(vectors) == MAX_LISTED_INPUTS
    assert vectors[0][:3] == pytest.approx(vectors[7][:3], abs=1e-2)

    response = client.post(path, json={"model": "tiny-bert", ROUTES[path]: [*texts, "one more"]})
    assert response.status_code in (400, 413, 422)
    assert str(MAX_LISTED_INPUTS) in response.text
