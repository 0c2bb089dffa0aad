"""attendant-client's sparse and multi-vector outputs, with tiny models: SPLADE, BGE-M3 and ColBERT."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from attendant_client import (
    AttendantError,
    Client,
    Input,
    MultiVectorInfo,
    MultiVectorSide,
    QueryExpansion,
    SimilarityPair,
    SimilarityResponse,
)

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.client.clients import KINDS, service_url
from tests.client.results import assert_equal
from tests.conftest import ROOT
from tests.model.retriever_cases import BGE_M3, MULTI_VECTOR_SIZE
from tests.retrievers import SPLADE, export_retriever
from tests.serving import ServiceThread

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


def test_vectors_match_the_rest_response(client: Client, service: ServiceThread) -> None:
    body = {"inputs": TEXTS, "outputs": ["sparse", "multi_vector"]}
    expected = httpx.post(f"{service.rest}/v1/encode", json=body).raise_for_status().json()["results"]
    assert any(result["sparse"]["token_ids"] for result in expected)
    for result, other in zip(client.encode(TEXTS, outputs=["sparse", "multi_vector"]).results, expected, strict=True):
        assert result.sparse is not None
        assert result.sparse.token_ids.dtype == np.int32
        assert result.sparse.weights.dtype == np.float32
        assert result.sparse.token_ids.tolist() == other["sparse"]["token_ids"]
        assert result.sparse.tokens == other["sparse"]["tokens"]
        np.testing.assert_allclose(result.sparse.weights, other["sparse"]["weights"], rtol=0, atol=1e-5)
        assert result.multi_vector is not None
        assert result.multi_vector.dtype == np.float32
        np.testing.assert_allclose(result.multi_vector, other["multi_vector"], rtol=0, atol=1e-5)
        assert result.multi_vector_tokens is not None
        assert [token.id for token in result.multi_vector_tokens] == [
            token["id"] for token in other["multi_vector_tokens"]
        ]


def test_multi_vector_has_one_unit_vector_per_token(client: Client) -> None:
    for result in client.encode(TEXTS, outputs=["tokens", "multi_vector"]).results:
        assert result.tokens is not None
        assert result.multi_vector_tokens == result.tokens[1:]
        assert result.multi_vector is not None
        assert result.multi_vector.shape == (len(result.tokens) - 1, MULTI_VECTOR_SIZE)
        np.testing.assert_allclose(np.linalg.norm(result.multi_vector, axis=1), 1, rtol=0, atol=1e-5)


def test_float16_applies_to_weights_and_vectors(client: Client) -> None:
    result = client.encode(TEXTS[0], outputs=["sparse", "multi_vector"], dtype="float16").results[0]
    assert result.sparse is not None
    assert result.multi_vector is not None
    assert result.sparse.weights.dtype == np.float16
    assert result.multi_vector.dtype == np.float16


def test_sparse_vector_may_be_empty(client: Client) -> None:
    sparse = client.encode(SPECIAL_TOKENS_ONLY, outputs=["sparse"]).results[0].sparse
    assert sparse is not None
    assert (sparse.token_ids.shape, sparse.tokens, sparse.weights.shape) == ((0,), [], (0,))


@pytest.mark.parametrize(("similarity", "model"), SIMILARITIES)
def test_similarity_of_heads_has_the_terms_of_each_score(client: Client, similarity: Any, model: str) -> None:
    for top_k in (1000, 2):
        response = client.similarity(TEXTS[:2], TEXTS, similarity=similarity, model=model, explain=True, top_k=top_k)
        for pair in explained(response):
            terms = pair.matches if similarity == "maxsim" else pair.products
            assert terms is not None
            assert (pair.matches is None) == (similarity != "maxsim")
            assert (pair.products is None) == (similarity != "sparse")
            assert pair.rest is not None
            assert len(terms) <= top_k
            assert sum(term.value for term in terms) + pair.rest.dropped == pytest.approx(pair.score, abs=1e-5)
            assert response.scores[pair.query, pair.document] == pytest.approx(pair.score, abs=1e-5)
            assert (pair.matrix, pair.top) == (None, None)
    (plain,) = explained(client.similarity("a", "a", explain=True))
    assert (plain.matches, plain.products) == (None, None)


def test_terms_name_tokens(client: Client) -> None:
    late, sparse = (
        client.similarity(TEXTS[0], TEXTS[1], similarity=name, explain=True) for name in ("maxsim", "sparse")
    )
    (late_pair,), (sparse_pair,) = explained(late), explained(sparse)
    units = late.queries[0].units
    assert units is not None
    assert sorted(match.query_unit for match in late_pair.matches or ()) == list(range(len(units)))
    encoded = client.encode(TEXTS[:2], outputs=["sparse"]).results
    assert sparse_pair.products
    for entry in sparse_pair.products:
        for result in encoded:
            assert result.sparse is not None
            assert result.sparse.tokens[result.sparse.token_ids.tolist().index(entry.token_id)] == entry.token


def explained(response: SimilarityResponse) -> list[SimilarityPair]:
    assert response.pairs is not None
    return response.pairs


def test_unrequested_outputs_are_none(client: Client) -> None:
    sparse, late, dense = (
        client.encode("a", outputs=[name]).results[0] for name in ("sparse", "multi_vector", "pooled")
    )
    assert (sparse.pooled, sparse.multi_vector, sparse.multi_vector_tokens) == (None, None, None)
    assert (late.sparse, late.tokens) == (None, None)
    assert (dense.sparse, dense.multi_vector, dense.multi_vector_tokens) == (None, None, None)


def test_inputs_over_the_limit_are_encoded_in_parts(client: Client) -> None:
    response = client.encode([*["a"] * 300, TEXTS[0]], outputs=["sparse", "multi_vector"])
    assert len(response.results) == 301
    (alone,) = client.encode(TEXTS[0], outputs=["sparse", "multi_vector"]).results
    assert_equal(response.results[300], alone, tolerance=1e-5)


def test_output_without_a_head_is_an_error(client: Client) -> None:
    with pytest.raises(AttendantError) as raised:
        client.encode("a", outputs=["multi_vector"], model=SPLADE)
    assert (raised.value.reason, raised.value.field) == ("UNSUPPORTED_BY_MODEL", "outputs")


def test_model_info_has_the_outputs_of_encode(client: Client) -> None:
    common = ["pooled", "tokens", "words", "spans", "static"]
    assert client.model().outputs == [*common, "sparse", "multi_vector"]
    assert client.model(SPLADE).outputs == [*common, "sparse"]


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
