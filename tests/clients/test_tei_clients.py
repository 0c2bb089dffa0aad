"""Clients of text-embeddings-inference from PyPI get the numbers of the native API.

Each client is installed into an environment of its own.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from service.engine.model_loader import LoadedModel
from tests.clients.environments import ClientEnvironment
from tests.response_contract import array_of, assert_close
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow

TEXTS = ["money bank grows", "the river bank, déjà vu", "word " * 300]

HUGGINGFACE_HUB = """
import asyncio
from huggingface_hub import AsyncInferenceClient, InferenceClient

url, texts = arguments["url"], arguments["texts"]
client, endpoint = InferenceClient(url), InferenceClient(url, provider="hf-inference")
results = {
    "all": client.feature_extraction(texts).tolist(),
    "one": client.feature_extraction(texts[0]).tolist(),
    "options": client.feature_extraction(
        texts, normalize=False, truncate=True, truncation_direction="left"
    ).tolist(),
    "async": asyncio.run(AsyncInferenceClient(url).feature_extraction(texts)).tolist(),
    "dimensions": client.feature_extraction(texts, dimensions=64, encoding_format="float").tolist(),
    "info": endpoint.get_endpoint_info(),
    "healthy": endpoint.health_check(),
    "tokens": InferenceClient(url + "/embed_all").feature_extraction(texts[0]).tolist(),
    "similarity": InferenceClient(url + "/similarity").sentence_similarity(texts[0], other_sentences=texts[1:]),
}
for name, call in (
    ("invalid", lambda: client.feature_extraction("")),
    ("long", lambda: client.feature_extraction(texts, truncate=False)),
    ("no_head", lambda: InferenceClient(url + "/predict").text_classification(texts[0])),
):
    try:
        call()
    except Exception as error:
        results[name] = [error.response.status_code, str(error)]
print(json.dumps(results))
"""
LANGCHAIN = """
import asyncio
from huggingface_hub import AsyncInferenceClient, InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings

url, texts = arguments["url"], arguments["texts"]
# The constructor rejects URLs.
embeddings = HuggingFaceEndpointEmbeddings(huggingfacehub_api_token="none")
embeddings.client, embeddings.async_client = InferenceClient(url), AsyncInferenceClient(url)
print(json.dumps({
    "all": embeddings.embed_documents(texts),
    "one": [embeddings.embed_query(texts[0])],
    "async": asyncio.run(embeddings.aembed_documents(texts)),
}))
"""
LLAMA_INDEX = """
import asyncio
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

url, texts = arguments["url"], arguments["texts"]
embeddings = TextEmbeddingsInference(model_name="all-MiniLM-L6-v2", base_url=url)
print(json.dumps({
    "all": embeddings.get_text_embedding_batch(texts),
    "one": [embeddings.get_query_embedding(texts[0])],
    "async": asyncio.run(embeddings.aget_text_embedding_batch(texts)),
}))
"""
HAYSTACK = """
from haystack import Document
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

url, texts = arguments["url"], arguments["texts"]
options = {"api_type": "text_embeddings_inference", "api_params": {"url": url}, "normalize": True}
documents = [Document(content=text) for text in texts]
results = {
    "one": [HuggingFaceAPITextEmbedder(**options).run(texts[0])["embedding"]],
    "all": [item.embedding for item in HuggingFaceAPIDocumentEmbedder(**options).run(documents)["documents"]],
}
try:
    HuggingFaceTEIRanker(url=url, max_retries=0).run(query=texts[0], documents=documents)
except Exception as error:
    results["no_head"] = str(error)
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def rest(model: LoadedModel) -> Iterator[httpx.Client]:
    with ServiceThread(model) as service, httpx.Client(base_url=service.rest, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def tolerance(rest: httpx.Client) -> float:
    return 1e-5 if rest.get("/v1/model").json()["precision"] == "float32" else 5e-4


def native(rest: httpx.Client, inputs: Any, name: str = "pooled", **fields: Any) -> list[Any]:
    """Return an output of the native API, with the truncation that is TEI's default."""
    response = rest.post("/v1/encode", json={"inputs": inputs, "truncation": "right", **fields})
    return [result[name] for result in response.raise_for_status().json()["results"]]


def run_client(name: str, code: str, rest: httpx.Client, directory: Any) -> Any:
    """Run the code of a client with the URL of the server and the texts."""
    environment = ClientEnvironment.create(name, directory / name)
    return environment.call(code, url=str(rest.base_url).rstrip("/"), texts=TEXTS)


def check_arrays(actual: Any, expected: Any, tolerance: float) -> None:
    assert len(actual) == len(expected)
    for left, right in zip(actual, expected, strict=True):
        assert_close(array_of(left), array_of(right), tolerance)


def test_huggingface_hub(rest: httpx.Client, tolerance: float, tmp_path: Any) -> None:
    results = run_client("huggingface_hub", HUGGINGFACE_HUB, rest, tmp_path)
    check_arrays(results["all"], native(rest, TEXTS), tolerance)
    check_arrays(results["one"], native(rest, TEXTS[0]), tolerance)
    check_arrays(results["async"], native(rest, TEXTS), tolerance)
    check_arrays(results["options"], native(rest, TEXTS, normalize=False, truncation="left"), tolerance)
    check_arrays(results["tokens"], native(rest, TEXTS[0], "token_vectors", outputs=["tokens"]), tolerance)
    check_arrays(results["dimensions"], native(rest, TEXTS, dimensions=64), tolerance)
    assert (results["info"], results["healthy"]) == (rest.get("/info").json(), True)
    body = {"queries": TEXTS[0], "documents": TEXTS[1:], "truncation": "right"}
    scores = rest.post("/v1/similarity", json=body).json()["scores"]
    np.testing.assert_allclose(results["similarity"], scores[0], atol=1e-3)
    assert [results[name][0] for name in ("invalid", "long", "no_head")] == [422, 422, 424]


@pytest.mark.parametrize(("name", "code"), [("langchain", LANGCHAIN), ("llama_index", LLAMA_INDEX)])
def test_framework(rest: httpx.Client, tolerance: float, tmp_path: Any, name: str, code: str) -> None:
    results = run_client(name, code, rest, tmp_path)
    check_arrays(results["all"], native(rest, TEXTS), tolerance)
    check_arrays(results["one"], native(rest, TEXTS[0]), tolerance)
    check_arrays(results["async"], native(rest, TEXTS), tolerance)


def test_haystack(rest: httpx.Client, tolerance: float, tmp_path: Any) -> None:
    results = run_client("haystack", HAYSTACK, rest, tmp_path)
    check_arrays(results["all"], native(rest, TEXTS), tolerance)
    check_arrays(results["one"], native(rest, TEXTS[0]), tolerance)
    assert "424" in results["no_head"] or "not a reranking model" in results["no_head"]
