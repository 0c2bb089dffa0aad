"""attendant-client's sparse and multi-vector outputs, with tiny models: SPLADE, BGE-M3 and ColBERT."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from attendant_client import (
    Client,
    Input,
    MultiVectorInfo,
    MultiVectorSide,
    QueryExpansion,
)

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.client.clients import KINDS, service_url
from tests.client.results import assert_equal
from tests.conftest import ROOT
from tests.model.retriever_cases import BGE_M3, MULTI_VECTOR_SIZE
from tests.retrievers import SPLADE, export_retriever
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow  # exports three models

COLBERT = "stanford"
TEXTS = ["the bank by the river", "money grows in a bank account", "a", "river river river bank"]
SIMILARITIES: Any = (("maxsim", BGE_M3), ("sparse", BGE_M3), ("sparse", SPLADE))
SPECIAL_TOKENS_ONLY = Input(token_ids=[0, 2])
"""An input of BGE-M3 without sparse weights."""


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceThread]:
    """A server of three models; BGE-M3 is the default."""
    models = (
        LoadedModel.load(Settings(model_dir=export_retriever(kind), precision="float32"))
        for kind in (BGE_M3, SPLADE, COLBERT)
    )
    with ServiceThread(*models, models=f"{BGE_M3}=a,{SPLADE}=b,{COLBERT}=c") as running:
        yield running


def test_model_info_has_the_limits_of_queries_and_documents(client: Client) -> None:
    vectors = client.model(COLBERT).multi_vector
    assert vectors is not None
    assert (vectors.query, vectors.document) == (MultiVectorSide(13, "[unused0]"), MultiVectorSide(19, "[unused1]"))
    assert vectors.query_expansion == QueryExpansion("[MASK]", 14, attended=False)
    plain = client.model(BGE_M3)
    side = MultiVectorSide(plain.max_input_tokens, None)
    assert plain.multi_vector == MultiVectorInfo(MULTI_VECTOR_SIZE, side, side, None)
    assert client.model(SPLADE).multi_vector is None


def test_clients_return_the_same_vectors(service: ServiceThread) -> None:
    results: list[tuple[Any, ...]] = []
    for kind, protocol in KINDS.values():
        with kind(service_url(service, protocol)) as client:
            hybrid = client.encode(
                [*TEXTS, Input(TEXTS[0], pair=TEXTS[1]), SPECIAL_TOKENS_ONLY],
                outputs=["pooled", "tokens", "sparse", "multi_vector"],
            )
            half = client.encode(TEXTS, outputs=["sparse", "multi_vector"], dtype="float16")
            late = client.encode(TEXTS, outputs=["multi_vector"], truncation="right")
            expanded = client.encode(TEXTS, outputs=["sparse"], model=SPLADE)
            infos = [client.model(name) for name in (BGE_M3, SPLADE, COLBERT)]
            similar = [
                client.similarity(TEXTS[:2], TEXTS, similarity=name, model=model, explain=True, top_k=top_k)
                for name, model in SIMILARITIES
                for top_k in (None, 2)
            ]
            masked = [
                client.fill_mask("the [MASK] by the [MASK]", model=SPLADE, layers=layers, top_k=3)
                for layers in (None, "all", [0, -1])
            ]
            target = client.fill_mask("a river", model=SPLADE, position=1, targets=["bank", "river"])
            words = (*masked, target)
            plain = client.similarity(TEXTS[:2], TEXTS, similarity="maxsim")
            results.append((hybrid, half, late, expanded, infos, words, similar, plain))
    for other in results[1:]:
        assert_equal(other[:-2], results[0][:-2], tolerance=1e-6)
        assert_equal(other[-2:], results[0][-2:], tolerance=1e-5)  # float32 scores of about 100 over gRPC


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_readme_example_prints_the_texts_with_hybrid_scores(
    service: ServiceThread, protocol: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (ROOT / "client" / "README.md").read_text()
    (section,) = re.findall(r"^## Hybrid search\n(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    code, terms = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("grpc://127.0.0.1:8081", service_url(service, protocol)), names)
    lines = [line.split(" ", 1) for line in capsys.readouterr().out.splitlines()]
    assert [text for _, text in lines] == names["documents"]
    body = {"query": names["query"], "documents": names["documents"]}
    ranked = httpx.post(f"{service.rest}/v1/rerank", json=body).raise_for_status().json()["results"]
    scores = {result["index"]: result["relevance_score"] for result in ranked}
    assert names["late"] == pytest.approx(scores[len(lines) - 1], abs=1e-5)
    exec(terms.replace("grpc://127.0.0.1:8081", service_url(service, protocol)), names)
    matches = names["late"].pairs[0].matches
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(matches) + len(names["sparse"].pairs[0].products)
    assert len(matches) == len(names["queries"])
