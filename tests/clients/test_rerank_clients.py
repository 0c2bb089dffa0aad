"""Clients that rank documents get the native API's numbers: those of Cohere, infinity and text-embeddings-inference.

Each client is installed in its own environment.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.conftest import CheckArrays, native
from tests.clients.environments import ClientEnvironment, run_client
from tests.labels import CLASSIFIER, CROSS_ENCODER
from tests.serving import load_kind, serve

pytestmark = pytest.mark.slow

MODEL = "all-MiniLM-L6-v2"
TEXTS = ["money bank grows", "the river bank, déjà vu", "word " * 300]

COHERE = """
import asyncio

def ranks(response):
    return {result.index: result.relevance_score for result in response.results}

model, types = "all-MiniLM-L6-v2", ["float", "int8", "ubinary", "binary"]
embed = {"model": model, "texts": texts, "input_type": "search_query"}
rank = {"model": model, "query": texts[0]}
first = cohere.Client("none", base_url=rest)
short = texts[:2]
objects = [{"text": text, "id": "x"} for text in short]

async def run_async():
    async with cohere.AsyncClientV2("none", base_url=rest) as opened:
        ranked = await opened.rerank(**rank, documents=texts)
        return ranks(ranked), (await opened.embed(**embed, embedding_types=["float"])).embeddings.float_

typed = client.embed(**embed, embedding_types=types)
embeddings = typed.embeddings
documents = first.rerank(**rank, documents=short, return_documents=True)
fields = first.rerank(**rank, documents=[{"title": text} for text in short], rank_fields=["title"])
ranks_async, vectors_async = asyncio.run(run_async())
results = {
    "snippet": vectors, "scores": scores, "async": vectors_async, "scores_async": ranks_async,
    "types": {name: getattr(embeddings, name) for name in ("float_", *types[1:])},
    "texts": typed.texts, "tokens": [typed.meta.tokens.input_tokens, ranked.meta.tokens.input_tokens],
    "id": [bool(typed.id), bool(ranked.id), bool(documents.id)],
    "dimensions": client.embed(**embed, embedding_types=["float"], output_dimension=64).embeddings.float_,
    "left": client.embed(**embed, embedding_types=["float"], truncate="START").embeddings.float_,
    "top_n": len(client.rerank(**rank, documents=texts, top_n=2, max_tokens_per_doc=4096).results),
    "first": ranks(documents), "first_meta": documents.meta.tokens.input_tokens,
    "documents": {result.index: result.document.text for result in documents.results},
    "fields": ranks(fields),
    "long": ranks(first.rerank(**rank, documents=texts, max_chunks_per_doc=1)),
    "objects": [result.document.id for result in
                first.rerank(**rank, documents=objects, return_documents=True).results],
}
for name, call in (
    ("empty", lambda: client.embed(**embed | {"texts": ["a", ""]})),
    ("none", lambda: client.embed(**embed, truncate="NONE")),
    ("unknown_model", lambda: client.rerank(model="rerank-v3.5", query="a", documents=["b"])),
    ("first_long", lambda: first.rerank(**rank, documents=texts)),
):
    try:
        call()
    except cohere.core.ApiError as error:
        body = error.body["error"] if "error" in error.body else error.body
        results[name] = [type(error).__name__, error.status_code, body["message"]]
send(results)
"""
LANGCHAIN = """
titles = [{"title": text, "id": 7} for text in texts]
send({
    "order": [document.page_content for document in documents],
    "scores": scores,
    "fields": reranker.rerank(titles, texts[0], rank_fields=["title"], top_n=None, max_tokens_per_doc=4096),
    "top_n": len(reranker.rerank(texts, texts[0], top_n=1)),
})
"""
LLAMA_INDEX = """
send({"order": list(scores), "scores": list(scores.values())})
"""
COHERE_HAYSTACK = """
import asyncio

documents = [Document(content=text) for text in texts]
found = asyncio.run(ranker.run_async(texts[0], documents, top_k=2))["documents"]
send({"order": list(scores), "scores": list(scores.values()), "async": [document.score for document in found]})
"""
JINA_HAYSTACK = """
from haystack_integrations.components.embedders.jina import JinaDocumentEmbedder

best = ranker.run(texts[0], [Document(content=text) for text in texts[:2]], top_k=1)["documents"]
embedder = JinaDocumentEmbedder(
    api_key=Secret.from_token("none"), model="all-MiniLM-L6-v2", base_url=f"{rest}/v1/embeddings", progress_bar=False
)
embedded = embedder.run([Document(content=text) for text in texts[:2]])["documents"]
send({
    "order": list(scores), "scores": list(scores.values()), "best": [document.content for document in best],
    "vectors": [document.embedding for document in embedded],
})
"""
INFINITY = """
import asyncio
from infinity_client.api.default import classify, models
from infinity_client.models import ClassifyInput

best = RerankInput(query=texts[0], documents=texts, return_documents=True, top_n=1)
short = OpenAIEmbeddingInputText(input_=texts[0], model="all-MiniLM-L6-v2", dimensions=64)


async def run_async():  # in one event loop, because the client keeps its connections
    return await embeddings.asyncio(client=client, body=body), await rerank.asyncio(client=client, body=best)


embedded, reranked = asyncio.run(run_async())
(listed,) = models.sync(client=client).data
unsupported = classify.sync_detailed(client=client, body=ClassifyInput(input_=texts))
unknown = rerank.sync_detailed(client=client, body=RerankInput(query="a", documents=["b"], model="bge"))
send({
    "snippet": vectors, "scores": scores,
    "async": [item.embedding for item in embedded.data],
    "dimensions": [item.embedding for item in embeddings.sync(client=client, body=short).data],
    "best": [item.document for item in reranked.results],
    "models": [listed.id, listed.capabilities, listed.stats.additional_properties["queue_absolute"]],
    "errors": [unsupported.status_code, unknown.status_code],
})
"""
INFINITY_CLASSIFY = """
from infinity_client import Client
from infinity_client.api.default import classify
from infinity_client.models import ClassifyInput

client = Client(base_url=f"{rest}/infinity")
result = classify.sync(client=client, body=ClassifyInput(input_=texts))
send({"labels": [{item.label: item.score for item in labels} for labels in result.data]})
"""
HUGGINGFACE_HUB = """
from huggingface_hub import InferenceClient

classifier = InferenceClient(rest + "/predict")
# With TEI's response for one text, the client returns the best label alone.
best = classifier.text_classification(texts[0])
labels = classifier.text_classification([[texts[0]]])
send({"best": [best.label, best.score], "labels": [[item.label, item.score] for item in labels]})
"""


@pytest.fixture(scope="module")
def cross_encoder() -> Iterator[httpx.Client]:
    with serve(load_kind(CROSS_ENCODER)) as client:
        yield client


@pytest.fixture(scope="module")
def classifier() -> Iterator[httpx.Client]:
    with serve(load_kind(CLASSIFIER)) as client:
        yield client


def rank(rest: httpx.Client, documents: list[str]) -> dict[str, Any]:
    """Return the native API's scores by index, best first, as JSON keys."""
    body = {"query": TEXTS[0], "documents": documents, "truncation": "right"}
    results = rest.post("/v1/rerank", json=body).raise_for_status().json()["results"]
    return {str(result["index"]): pytest.approx(result["relevance_score"], abs=2e-3) for result in results}


def test_cohere(rest: httpx.Client, check_arrays: CheckArrays, tmp_path: Path) -> None:
    results = run_client("cohere", COHERE, tmp_path, rest, texts=TEXTS)
    expected = native(rest, TEXTS)
    for name in ("snippet", "async"):
        check_arrays(results[name], expected)
    check_arrays(results["types"]["float_"], expected)
    assert len(results["types"]["int8"][0]) == 384
    assert len(results["types"]["ubinary"][0]) == len(results["types"]["binary"][0]) == 48
    check_arrays(results["dimensions"], native(rest, TEXTS, dimensions=64))
    check_arrays(results["left"], native(rest, TEXTS, truncation="left"))
    scores = rank(rest, TEXTS)
    for name in ("scores", "scores_async", "long"):
        assert list(results[name].items()) == list(scores.items())
    for name in ("first", "fields"):
        assert results[name] == rank(rest, TEXTS[:2])
    assert results["documents"] == {"0": TEXTS[0], "1": TEXTS[1]}
    assert (results["objects"], results["top_n"]) == (["x", "x"], 2)
    assert (results["texts"], results["id"]) == (TEXTS, [True, True, True])
    assert all(tokens > 0 for tokens in (*results["tokens"], results["first_meta"]))
    kind, status, message = results["empty"]
    assert (kind, status) == ("UnprocessableEntityError", 422)
    assert message.startswith("texts[1]: empty or blank")
    assert results["none"][1] == 422
    assert 'or set truncate to "END"' in results["none"][2]
    assert results["unknown_model"][:2] == ["NotFoundError", 404]
    assert results["first_long"][1] == 422
    assert 'or set truncation to "right"' in results["first_long"][2]


def test_langchain_cohere(rest: httpx.Client, tmp_path: Path) -> None:
    results = run_client("langchain-cohere", LANGCHAIN, tmp_path, rest, texts=TEXTS)
    scores = rank(rest, TEXTS)
    assert results["order"] == [TEXTS[int(index)] for index in scores]
    assert results["scores"] == list(scores.values())
    assert (len(results["fields"]), results["top_n"]) == (3, 1)


def test_llama_index_cohere(rest: httpx.Client, tmp_path: Path) -> None:
    check_nodes(rest, run_client("llama-index-postprocessor-cohere-rerank", LLAMA_INDEX, tmp_path, rest, texts=TEXTS))


def test_haystack_cohere(rest: httpx.Client, tmp_path: Path) -> None:
    results = run_client("cohere-haystack", COHERE_HAYSTACK, tmp_path, rest, texts=TEXTS)
    check_nodes(rest, results)
    assert results["async"] == list(rank(rest, TEXTS).values())[:2]


def test_haystack_jina(rest: httpx.Client, check_arrays: CheckArrays, tmp_path: Path) -> None:
    """`/v1/rerank` accepts requests of Jina's API."""
    results = run_client("jina-haystack", JINA_HAYSTACK, tmp_path, rest, texts=TEXTS)
    texts = [text[:256] for text in TEXTS]
    scores = rank(rest, texts)
    assert results["order"] == [texts[int(index)] for index in scores]
    assert results["scores"] == list(scores.values())
    assert results["best"] == [TEXTS[int(next(iter(rank(rest, TEXTS[:2]))))]]
    check_arrays(results["vectors"], native(rest, TEXTS[:2]))


def test_llama_index_tei(cross_encoder: httpx.Client, tmp_path: Path) -> None:
    package = "llama-index-postprocessor-tei-rerank"
    check_nodes(cross_encoder, run_client(package, LLAMA_INDEX, tmp_path, cross_encoder, texts=TEXTS))


def test_huggingface_hub_classifies(classifier: httpx.Client, tmp_path: Path) -> None:
    """`text_classification` is for TEI's /predict."""
    environment = ClientEnvironment.create("huggingface_hub", tmp_path / "huggingface_hub")
    url = str(classifier.base_url).rstrip("/")
    results = environment.call(HUGGINGFACE_HUB, rest=url, texts=TEXTS)
    body = {"inputs": TEXTS[:1]}
    (expected,) = classifier.post("/v1/classify", json=body).raise_for_status().json()["results"]
    labels = [[label["label"], pytest.approx(label["score"], abs=1e-4)] for label in expected["labels"]]
    assert (results["best"], results["labels"]) == (labels[0], labels)


def test_infinity(rest: httpx.Client, classifier: httpx.Client, check_arrays: CheckArrays, tmp_path: Path) -> None:
    results = run_client("infinity-client", INFINITY, tmp_path, rest, texts=TEXTS)
    for name in ("snippet", "async"):
        check_arrays(results[name], native(rest, TEXTS))
    check_arrays(results["dimensions"], native(rest, TEXTS[:1], dimensions=64))
    assert list(results["scores"].items()) == list(rank(rest, TEXTS).items())
    assert results["best"] == [TEXTS[int(next(iter(rank(rest, TEXTS))))]]
    assert results["models"] == [MODEL, ["embed", "rerank"], 0]
    assert results["errors"] == [422, 404]
    environment = ClientEnvironment.create("infinity_client", tmp_path / "classifier")
    url = str(classifier.base_url).rstrip("/")
    labels = environment.call(INFINITY_CLASSIFY, rest=url, texts=TEXTS[:2])["labels"]
    expected = classifier.post("/v1/classify", json={"inputs": TEXTS[:2]}).json()["results"]
    for found, result in zip(labels, expected, strict=True):
        assert found == pytest.approx({label["label"]: label["score"] for label in result["labels"]}, abs=1e-4)


def check_nodes(rest: httpx.Client, results: Any) -> None:
    scores = rank(rest, TEXTS)
    assert results["order"] == [TEXTS[int(index)] for index in scores]
    assert results["scores"] == list(scores.values())
