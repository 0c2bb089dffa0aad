"""Clients of text-embeddings-inference's gRPC API get the native API's numbers.

tei-client has stubs of TEI's own proto, and Haystack reads the descriptors through reflection.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.conftest import CheckArrays, native, serve_kind
from tests.clients.environments import ClientEnvironment, run_client
from tests.labels import CLASSIFIER, CROSS_ENCODER
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow

TEXTS = ["money bank grows", "the river bank, déjà vu", "word " * 300]
QUERY = "money"

EMBED = """
import asyncio
from tei_client.models import TruncationDirection

async def embed():  # the constructor opens the asynchronous channel in the running event loop
    opened = GrpcClient(grpc_address)
    return [list(vector) for vector in await opened.async_embed(texts, truncate=True)]

left = {"truncate": True, "truncation_direction": TruncationDirection.Left}
tokens = client.tokenize(texts[:2])
results = {
    "snippet": [list(vector) for vector in vectors],
    "async": asyncio.run(embed()),
    "options": [list(vector) for vector in client.embed(texts, normalize=False, **left)],
    "all": [[list(vector) for vector in item] for item in client.embed_all(texts[:2])],
    "tokens": [[token.id for token in item.tokens] for item in tokens],
    "decoded": client.decode([item.get_ids() for item in tokens], skip_special_tokens=True),
    "type": client.info().server_model_type.value,
}
for name, call in (
    ("long", lambda: client.embed(texts)), ("head", lambda: client._stubs.rerank.RerankStream(iter([])))
):
    try:
        call()
    except Exception as error:
        results[name] = [error.code().name, error.details()]
send(results)
"""
CLASSIFY = """
from tei_client import GrpcClient

client = GrpcClient(grpc_address)
texts = texts[:2]
found = [client.classify(texts), client.classify([(text, texts[0]) for text in texts], raw_scores=True)]
send([[{item.label: item.score for item in result.scores} for result in results] for results in found])
"""
RERANK = """
from tei_client import GrpcClient

client = GrpcClient(grpc_address)
ranked = client.rerank(arguments["query"], texts, return_text=True, truncate=True)
send([[item.index, item.score, item.text] for item in ranked.ranks])
"""
HAYSTACK = """
import asyncio
from haystack import Document
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.huggingface_api.ranker import TruncationDirection

documents = [Document(content=text) for text in texts]
arguments = {"query": arguments["query"], "documents": documents, "truncation_direction": TruncationDirection.RIGHT}

def ranks(found):
    return [[document.content, document.score] for document in found["documents"]]

rankers = {
    "rest": HuggingFaceTEIRanker(url=rest, token=None), "grpc": HuggingFaceTEIRanker(url=grpc_address, use_grpc=True),
}
results = {name: ranks(ranker.run(**arguments)) for name, ranker in rankers.items()}
results["async"] = ranks(asyncio.run(rankers["grpc"].run_async(**arguments)))
send(results)
"""


@pytest.fixture(scope="module")
def ranking() -> Iterator[tuple[dict[str, str], list[list[Any]]]]:
    """Return the addresses of a server of a cross-encoder, and the texts and scores of the native API, best first."""
    with serve_kind(CROSS_ENCODER) as (rest, addresses):
        body = {"query": QUERY, "documents": TEXTS, "truncation": "right"}
        results = rest.post("/v1/rerank", json=body).raise_for_status().json()["results"]
        scores = {result["index"]: pytest.approx(result["relevance_score"], abs=1e-5) for result in results}
        yield addresses, [[index, score, TEXTS[index]] for index, score in scores.items()]


@pytest.fixture(scope="module")
def tei_client(tmp_path_factory: pytest.TempPathFactory) -> ClientEnvironment:
    return ClientEnvironment.create("tei_client", tmp_path_factory.mktemp("environment") / "tei_client")


def test_tei_client_embeds(
    service: ServiceThread, rest: httpx.Client, check_arrays: CheckArrays, tmp_path: Path
) -> None:
    results = run_client("tei-client", EMBED, tmp_path, rest, grpc=service.grpc, texts=TEXTS)
    for name in ("snippet", "async"):
        check_arrays(results[name], native(rest, TEXTS))
    check_arrays(results["options"], native(rest, TEXTS, normalize=False, truncation="left"))
    matrices = native(rest, TEXTS[:2], "token_vectors", outputs=["tokens"])
    for vectors, expected in zip(results["all"], matrices, strict=True):
        check_arrays(vectors, expected)
    tokens = rest.post("/tokenize", json={"inputs": TEXTS[:2]}).json()
    assert results["tokens"] == [[token["id"] for token in item] for item in tokens]
    assert results["decoded"][0] == TEXTS[0]
    assert results["type"] == "embedding"
    assert results["long"][0] == "INVALID_ARGUMENT"
    assert "set truncate to true" in results["long"][1]
    assert results["head"][0] == "FAILED_PRECONDITION"


def test_tei_client_classifies(tei_client: ClientEnvironment) -> None:
    with serve_kind(CLASSIFIER) as (rest, addresses):
        found = tei_client.call(CLASSIFY, texts=TEXTS, **addresses)
        pairs = [{"text": text, "pair": TEXTS[0]} for text in TEXTS[:2]]
        for results, inputs, raw in zip(found, (TEXTS[:2], pairs), (False, True), strict=True):
            native_results = rest.post("/v1/classify", json={"inputs": inputs, "raw_scores": raw}).json()["results"]
            for scores, result in zip(results, native_results, strict=True):
                expected = {label["label"]: label["score"] for label in result["labels"]}
                assert scores == pytest.approx(expected, abs=1e-4)


def test_tei_client_ranks(tei_client: ClientEnvironment, ranking: tuple[dict[str, str], list[list[Any]]]) -> None:
    addresses, expected = ranking
    assert tei_client.call(RERANK, texts=TEXTS, query=QUERY, **addresses) == expected


def test_haystack_ranks(tmp_path: Path, ranking: tuple[dict[str, str], list[list[Any]]]) -> None:
    addresses, expected = ranking
    environment = ClientEnvironment.create("haystack", tmp_path / "haystack")
    results = environment.call(HAYSTACK, texts=TEXTS, query=QUERY, **addresses)
    for name in ("rest", "grpc", "async"):
        assert results[name] == [[text, score] for _, score, text in expected]
