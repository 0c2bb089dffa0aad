"""text-embeddings-inference clients from PyPI get the same numbers as the native API.

Each client is installed in its own environment.
"""

from pathlib import Path

import httpx
import numpy as np
import pytest

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.clients.conftest import CheckArrays, native
from tests.clients.environments import ClientEnvironment, run_client
from tests.labels import TOKEN_CLASSIFIER, export_classifier
from tests.retrievers import SPLADE, export_retriever
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow

TEXTS = ["money bank grows", "the river bank, déjà vu", "word " * 300]

HUGGINGFACE_HUB = """
import asyncio
from huggingface_hub import AsyncInferenceClient

endpoint = InferenceClient(rest, provider="hf-inference")
results = {
    "snippet": vectors,
    "one": client.feature_extraction(texts[0]),
    "options": client.feature_extraction(texts, normalize=False, truncate=True, truncation_direction="left"),
    "async": asyncio.run(AsyncInferenceClient(rest).feature_extraction(texts)),
    "dimensions": client.feature_extraction(texts, dimensions=64, encoding_format="float"),
    "info": endpoint.get_endpoint_info(),
    "healthy": endpoint.health_check(),
    "tokens": InferenceClient(rest + "/embed_all").feature_extraction(texts[0]),
    "similarity": InferenceClient(rest + "/similarity").sentence_similarity(texts[0], other_sentences=texts[1:]),
}
for name, call in (
    ("invalid", lambda: client.feature_extraction("")),
    ("long", lambda: client.feature_extraction(texts, truncate=False)),
    ("no_head", lambda: InferenceClient(rest + "/predict").text_classification(texts[0])),
):
    try:
        call()
    except Exception as error:
        results[name] = [error.response.status_code, str(error)]
send(results)
"""
LANGCHAIN = """
import asyncio
one, several = embeddings.embed_query(texts[0]), asyncio.run(embeddings.aembed_documents(texts))
send({"snippet": vectors, "one": [one], "async": several})
"""
LLAMA_INDEX = """
import asyncio
one, several = embeddings.get_query_embedding(texts[0]), asyncio.run(embeddings.aget_text_embedding_batch(texts))
send({"snippet": vectors, "one": [one], "async": several})
"""
HAYSTACK = """
from haystack_integrations.components.embedders.huggingface_api import HuggingFaceAPITextEmbedder
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

options = {"api_type": "text_embeddings_inference", "api_params": {"url": rest}, "normalize": True}
results = {"snippet": vectors, "one": [HuggingFaceAPITextEmbedder(**options).run(texts[0])["embedding"]]}
try:
    HuggingFaceTEIRanker(url=rest, max_retries=0).run(query=texts[0], documents=documents)
except Exception as error:
    results["no_head"] = str(error)
send(results)
"""


TASKS = """
url = rest + "/models/{}/pipeline/{}"
fill = InferenceClient(url.format("masked", "fill-mask"))
label = InferenceClient(url.format("tokens", "token-classification"))
results = {
    "words": fill.fill_mask(texts[0], top_k=3),
    "targets": fill.fill_mask(texts[0], targets=["river", "bank"]),
    "entities": label.token_classification(texts[1]),
    "tokens": label.token_classification(texts[1], aggregation_strategy="none"),
}
try:
    fill.fill_mask(texts[1])
except Exception as error:
    results["invalid"] = [error.response.status_code, str(error)]
send(results)
"""


def test_huggingface_hub(rest: httpx.Client, check_arrays: CheckArrays, tmp_path: Path) -> None:
    results = run_client("huggingface-hub", HUGGINGFACE_HUB, tmp_path, rest, texts=TEXTS)
    check_arrays(results["snippet"], native(rest, TEXTS))
    check_arrays(results["one"], native(rest, TEXTS[0]))
    check_arrays(results["async"], native(rest, TEXTS))
    check_arrays(results["options"], native(rest, TEXTS, normalize=False, truncation="left"))
    check_arrays(results["tokens"], native(rest, TEXTS[0], "token_vectors", outputs=["tokens"]))
    check_arrays(results["dimensions"], native(rest, TEXTS, dimensions=64))
    assert (results["info"], results["healthy"]) == (rest.get("/info").json(), True)
    body = {"queries": TEXTS[0], "documents": TEXTS[1:], "truncation": "right"}
    scores = rest.post("/v1/similarity", json=body).json()["scores"]
    np.testing.assert_allclose(results["similarity"], scores[0], atol=1e-3)
    assert [results[name][0] for name in ("invalid", "long", "no_head")] == [422, 422, 424]


def test_huggingface_hub_tasks(tmp_path: Path) -> None:
    directories = {"masked": export_retriever(SPLADE), "tokens": export_classifier(TOKEN_CLASSIFIER)}
    names = ",".join(f"{name}={path}" for name, path in directories.items())
    settings = Settings(models=names, precision="float32")
    models = [LoadedModel.load(settings, option) for option in settings.served_models]
    texts = ["the [MASK] by the river", "Lovelace lived in London"]
    imports = "from huggingface_hub import InferenceClient\n"
    with ServiceThread(*models, models=names) as service, httpx.Client(base_url=service.rest) as client:
        environment = ClientEnvironment.create("huggingface_hub", tmp_path / "huggingface_hub")
        results = environment.call(imports + TASKS, rest=service.rest, texts=texts)
        native = client.post("/v1/fill-mask", json={"inputs": texts[0], "top_k": 3})
        (position,) = native.raise_for_status().json()["results"][0]["positions"]
        body = {"model": "tokens", "inputs": texts[1]}
        entities = client.post("/v1/token-classify", json=body).json()["results"][0]["entities"]
    assert [word["token"] for word in results["words"]] == [item["id"] for item in position["layers"][0]["predictions"]]
    assert {word["sequence"] for word in results["targets"]} == {"the river by the river", "the bank by the river"}
    assert [(item["entity_group"], item["word"]) for item in results["entities"]] == [
        (item["label"], item["text"]) for item in entities
    ]
    assert entities
    assert all(item["entity"] for item in results["tokens"])
    assert results["invalid"][0] == 422


@pytest.mark.parametrize(
    ("package", "code"),
    [("langchain-huggingface", LANGCHAIN), ("llama-index-embeddings-text-embeddings-inference", LLAMA_INDEX)],
)
def test_framework(rest: httpx.Client, check_arrays: CheckArrays, tmp_path: Path, package: str, code: str) -> None:
    results = run_client(package, code, tmp_path, rest, texts=TEXTS)
    check_arrays(results["snippet"], native(rest, TEXTS))
    check_arrays(results["one"], native(rest, TEXTS[0]))
    check_arrays(results["async"], native(rest, TEXTS))


def test_haystack(rest: httpx.Client, check_arrays: CheckArrays, tmp_path: Path) -> None:
    results = run_client("huggingface-api-haystack", HAYSTACK, tmp_path, rest, texts=TEXTS)
    check_arrays(results["snippet"], native(rest, TEXTS))
    check_arrays(results["one"], native(rest, TEXTS[0]))
    assert "424" in results["no_head"] or "not a reranking model" in results["no_head"]
