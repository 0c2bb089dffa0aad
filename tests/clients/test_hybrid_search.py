"""Dense, sparse and token vectors in Qdrant's local mode: its scores, and the recipe in docs/vector-databases.md."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from attendant_client import Client, SparseVector

from tests.clients.environments import ClientEnvironment
from tests.conftest import ROOT
from tests.model.retriever_cases import BGE_M3
from tests.retrievers import SPLADE
from tests.serving import ServiceThread, load_kind

pytestmark = pytest.mark.slow

QUERY = "river bank account"
TEXTS = ["the bank by the river", "money grows in a bank account", "a", "river river river bank", "The boat waits."]
SCORES = """
from qdrant_client import QdrantClient
from qdrant_client.models import (
    Distance, MultiVectorComparator, MultiVectorConfig, PointStruct, SparseVector, SparseVectorParams, VectorParams
)

def to_vectors(vectors):
    return {name: SparseVector(**value) if isinstance(value, dict) else value for name, value in vectors.items()}

query, *documents = map(to_vectors, arguments["vectors"])
dense, late = len(query["cosine"]), len(query["late"][0])
max_sim = MultiVectorConfig(comparator=MultiVectorComparator.MAX_SIM)
client = QdrantClient(":memory:")
client.create_collection(
    "texts",
    vectors_config={
        "cosine": VectorParams(size=dense, distance=Distance.COSINE),
        "dot": VectorParams(size=dense, distance=Distance.DOT),
        "late": VectorParams(size=late, distance=Distance.DOT, multivector_config=max_sim),
    },
    sparse_vectors_config={"bge": SparseVectorParams(), "splade": SparseVectorParams()},
)
client.upsert("texts", [PointStruct(id=index, vector=vectors) for index, vectors in enumerate(documents)])
results = {}
for name, vector in query.items():
    points = client.query_points("texts", query=vector, using=name, limit=len(documents)).points
    results[name] = [(point.id, point.score) for point in points]
send(results)
"""
RECIPE = """
import contextlib, io, os
os.chdir(arguments["directory"])
with contextlib.redirect_stdout(io.StringIO()) as printed:
    exec(arguments["script"])
send(printed.getvalue().splitlines())
"""


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceThread]:
    """A server of BGE-M3, the default model, and a SPLADE model."""
    models = (load_kind(kind) for kind in (BGE_M3, SPLADE))
    with ServiceThread(*models, models=f"{BGE_M3}=a,{SPLADE}=b") as running:
        yield running


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> ClientEnvironment:
    return ClientEnvironment.create("vector_databases", tmp_path_factory.mktemp("environment") / "vector_databases")


def encode(service: ServiceThread) -> list[dict[str, Any]]:
    """Return the named vectors of the query and the documents, as Qdrant stores them."""
    with Client(f"grpc://{service.grpc}") as client:
        hybrid = client.encode([QUERY, *TEXTS], outputs=["pooled", "sparse", "multi_vector"]).results
        expanded = client.encode([QUERY, *TEXTS], outputs=["sparse"], model=SPLADE).results
    vectors = []
    for result, other in zip(hybrid, expanded, strict=True):
        assert result.pooled is not None
        assert result.multi_vector is not None
        dense = result.pooled.tolist()
        vectors.append(
            {
                "cosine": dense,
                "dot": dense,
                "late": result.multi_vector.tolist(),
                "bge": to_qdrant(result.sparse),
                "splade": to_qdrant(other.sparse),
            }
        )
    return vectors


def to_qdrant(sparse: SparseVector | None) -> dict[str, list[Any]]:
    assert sparse is not None
    return {"indices": sparse.token_ids.tolist(), "values": sparse.weights.tolist()}


def server_scores(service: ServiceThread, query_vectors: int) -> dict[str, list[float]]:
    """Return the server's scores of the documents; Qdrant adds up the terms of late interaction."""
    with Client(f"grpc://{service.grpc}") as client:
        scores: dict[str, Any] = {
            "cosine": client.similarity(QUERY, TEXTS, similarity="cosine"),
            "dot": client.similarity(QUERY, TEXTS, similarity="dot"),
            "bge": client.similarity(QUERY, TEXTS, similarity="sparse"),
            "splade": client.similarity(QUERY, TEXTS, similarity="sparse", model=SPLADE),
        }
    late = np.array(rerank(service, QUERY, TEXTS)) * query_vectors
    return {name: response.scores[0].tolist() for name, response in scores.items()} | {"late": late.tolist()}


def rerank(service: ServiceThread, query: str, documents: list[str]) -> list[float]:
    """Return BGE-M3's scores of the documents, in request order."""
    response = httpx.post(f"{service.rest}/v1/rerank", json={"query": query, "documents": documents})
    results = sorted(response.raise_for_status().json()["results"], key=lambda result: result["index"])
    return [result["relevance_score"] for result in results]


def test_qdrant_scores_match_the_server(environment: ClientEnvironment, service: ServiceThread) -> None:
    vectors = encode(service)
    expected = server_scores(service, query_vectors=len(vectors[0]["late"]))
    results = environment.call(SCORES, rest=service.rest, grpc=service.grpc, vectors=vectors)
    assert results.keys() == expected.keys()
    for name, hits in results.items():
        scores = np.zeros(len(TEXTS))
        for index, score in hits:  # Qdrant omits documents that share no entry with a sparse query
            scores[index] = score
        np.testing.assert_allclose(scores, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
        assert len(set(scores)) > 1, name


def test_recipe_prints_the_scores_of_rerank(
    environment: ClientEnvironment, service: ServiceThread, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "vector-databases.md").read_text()
    (script,) = re.findall(
        r"^### Dense, sparse and token vectors\n.*?^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    (query,) = re.findall(r'^query = "(.*)"$', script, re.MULTILINE)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    printed = environment.call(
        RECIPE,
        rest=service.rest,
        grpc=service.grpc,
        texts=[],
        directory=str(tmp_path),
        script=script.replace("http://127.0.0.1:8080", service.rest),
    )
    ranked = sorted(zip(rerank(service, query, TEXTS), TEXTS, strict=True), reverse=True)
    for line, (score, text) in zip(printed, ranked[:2], strict=True):
        assert line.split(" ", 1)[1] == text
        assert float(line.split()[0]) == pytest.approx(score, abs=0.001)
