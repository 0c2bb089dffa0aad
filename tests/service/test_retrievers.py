"""Sparse and multi-vector outputs through the REST API, compared with sentence-transformers."""

import json
import shutil
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import MultiVectorEncoder, SparseEncoder

from model.artifact.manifest import Similarity
from model.export.export import export
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.engine.vectors import DISTANCES
from service.operations import scoring
from tests.model.colbert_cases import COLBERT_CASES
from tests.model.retriever_cases import BGE_M3
from tests.retrievers import INFERENCE_FREE, SPLADE, publish_retriever
from tests.service.conftest import ServiceHarness, open_harness
from tests.serving import load_retriever

TEXTS = ["the bank by the river", "money grows in a bank account", "a", "river river river bank"]


@pytest.fixture
async def splade() -> AsyncIterator[ServiceHarness]:
    async with open_harness(load_retriever(SPLADE)) as opened:
        yield opened


@pytest.fixture
async def bge() -> AsyncIterator[ServiceHarness]:
    async with open_harness(load_retriever(BGE_M3)) as opened:
        yield opened


async def encode(harness: ServiceHarness, **body: Any) -> list[Any]:
    response = await harness.post("/v1/encode", body)
    assert response.status_code == 200, response.text
    results: list[Any] = response.json()["results"]
    return results


def to_dense(sparse: dict[str, Any], size: int) -> Any:
    dense = np.zeros(size)
    dense[sparse["token_ids"]] = sparse["weights"]
    return dense


async def test_products_of_token_vectors_that_outlast_the_deadline_are_rejected(
    bge: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BGE-M3 compares every token of a query of up to 8,192 with those of each document."""
    monkeypatch.setattr(scoring, "NUMBERS_PER_CHARACTER", 1e-6)
    bodies = {
        "/v1/rerank": {"query": TEXTS[0], "documents": TEXTS},
        "/v1/similarity": {"queries": TEXTS[0], "documents": TEXTS, "similarity": "maxsim"},
    }
    for path, body in bodies.items():
        response = await bge.post(path, body)
        assert response.status_code == 504, response.text
        assert "Request too large for the deadline" in response.json()["error"]["message"]
    assert (await bge.post("/v1/similarity", {**body, "similarity": "cosine"})).status_code == 200


async def test_splade_equals_sentence_transformers(splade: ServiceHarness) -> None:
    oracle = SparseEncoder(str(publish_retriever(SPLADE)))
    expected = oracle.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    results = await encode(splade, inputs=TEXTS, outputs=["sparse"])
    for result, row in zip(results, expected, strict=True):
        assert result["sparse"]["token_ids"] == np.flatnonzero(row).tolist()
        np.testing.assert_allclose(to_dense(result["sparse"], len(row)), row, rtol=0, atol=1e-5)
        assert result["sparse"]["tokens"] == oracle.tokenizer.convert_ids_to_tokens(result["sparse"]["token_ids"])


@pytest.mark.parametrize("function", get_args(Similarity))
@pytest.mark.parametrize("kind", [SPLADE, pytest.param(INFERENCE_FREE, marks=pytest.mark.slow)])
async def test_active_entries_and_their_function_equal_sentence_transformers(
    tmp_path: Path, kind: str, function: Similarity
) -> None:
    """The oracle keeps the entries with the largest weights of documents, and of queries with separate weights."""
    published = shutil.copytree(publish_retriever(kind), tmp_path / "model")
    settings = {"model_type": "SparseEncoder", "max_active_dims": 3, "similarity_fn_name": function}
    (published / "config_sentence_transformers.json").write_text(json.dumps(settings))
    oracle = SparseEncoder(str(published), device="cpu")
    root = tmp_path / "artifact"
    export(str(published), root, revision=None, name=None, progress=lambda step: None)
    options: dict[str, Any] = {"convert_to_sparse_tensor": False}
    rows = {"query": oracle.encode_query(TEXTS, **options), "document": oracle.encode_document(TEXTS, **options)}
    expected = oracle.similarity(rows["query"], rows["document"]).numpy()
    size = max(1.0, float(np.abs(expected).max()))
    async with open_harness(LoadedModel.load(Settings(model_dir=root, precision="float32"))) as harness:
        for role, own in rows.items():
            results = await encode(harness, inputs=TEXTS, outputs=["sparse"], role=role)
            dense = own.numpy()
            assert (dense != 0).sum(axis=1).max() <= 3
            actual = [to_dense(result["sparse"], dense.shape[1]) for result in results]
            np.testing.assert_allclose(actual, dense, rtol=0, atol=1e-5)
        body = {"queries": TEXTS, "documents": TEXTS, "similarity": "sparse", "explain": True}
        response = (await harness.post("/v1/similarity", body)).json()
        np.testing.assert_allclose(response["scores"], expected, rtol=0, atol=1e-5 * size)
        assert response["contributions_unavailable"] == ("distance" if function in DISTANCES else None)
        for pair in response["pairs"]:
            assert pair["score"] == pytest.approx(expected[pair["query"], pair["document"]], abs=1e-5 * size)
            assert (pair["rest"] is None) == ("products" not in pair) == (function in DISTANCES)
            if function not in DISTANCES:
                terms = sum(entry["value"] for entry in pair["products"])
                assert terms + pair["rest"]["dropped"] == pytest.approx(pair["score"], abs=1e-5 * size)
        body = {"query": TEXTS[1], "documents": TEXTS, "effect": "occlusion"}
        results = (await harness.post("/v1/rerank", body)).json()["results"]
        assert [result["index"] for result in results] == np.argsort(-expected[1], kind="stable").tolist()
        scores = [result["relevance_score"] for result in results]
        np.testing.assert_allclose(scores, np.sort(expected[1])[::-1], rtol=0, atol=1e-5 * size)
        assert np.isfinite(results[0]["explanation"]["query_effects"]).all()
        info = (await harness.client.get("/v1/model")).json()
        assert info["sparse"] == {"similarity": function, "max_active": 3}


@pytest.mark.slow
async def test_queries_without_inference_equal_sentence_transformers() -> None:
    """Query words use separate weights; documents are encoded as in SPLADE."""
    oracle = SparseEncoder(str(publish_retriever(INFERENCE_FREE)), device="cpu")
    queries = oracle.encode_query(TEXTS, convert_to_sparse_tensor=False).numpy()
    documents = oracle.encode_document(TEXTS, convert_to_sparse_tensor=False).numpy()
    loaded = load_retriever(INFERENCE_FREE)
    async with open_harness(loaded) as harness:
        for role, expected in (("query", queries), ("document", documents), (None, documents)):
            results = await encode(harness, inputs=TEXTS, outputs=["sparse"], role=role)
            for result, row in zip(results, expected, strict=True):
                np.testing.assert_allclose(to_dense(result["sparse"], len(row)), row, rtol=0, atol=1e-5)
        body = {"query": TEXTS[0], "documents": TEXTS}
        response = (await harness.post("/v1/rerank", body)).json()
        scores = {result["index"]: result["relevance_score"] for result in response["results"]}
        assert [scores[index] for index in range(len(TEXTS))] == pytest.approx((documents @ queries[0]).tolist(), 1e-4)
        body = {"queries": TEXTS[:1], "documents": TEXTS, "similarity": "sparse"}
        (row,) = (await harness.post("/v1/similarity", body)).json()["scores"]
        assert row == pytest.approx((documents @ queries[0]).tolist(), 1e-4)


async def test_three_outputs_of_bge_m3_from_one_pass(bge: ServiceHarness) -> None:
    directory = publish_retriever(BGE_M3)
    model = transformers.XLMRobertaModel.from_pretrained(directory).eval()  # type: ignore[no-untyped-call]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    layers = {name: torch.load(directory / f"{name}_linear.pt") for name in ("sparse", "colbert")}
    results = await encode(bge, inputs=TEXTS, outputs=["pooled", "sparse", "multi_vector"])
    assert bge.sample("attendant_batch_tokens_sum", lane="fast") == sum(result["token_count"] for result in results)
    assert any(result["sparse"]["token_ids"] for result in results)
    special = set(tokenizer.all_special_ids)
    for text, result in zip(TEXTS, results, strict=True):
        ids = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**ids).last_hidden_state[0]
            weights = torch.relu(hidden @ layers["sparse"]["weight"].T + layers["sparse"]["bias"])[:, 0]
            vectors = hidden[1:] @ layers["colbert"]["weight"].T + layers["colbert"]["bias"]
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        np.testing.assert_allclose(result["pooled"], hidden[0], rtol=0, atol=1e-4)
        expected: dict[int, float] = {}
        for number, weight in zip(ids["input_ids"][0].tolist(), weights.tolist(), strict=True):
            if number not in special and weight > 0:
                expected[number] = max(weight, expected.get(number, 0.0))
        found = dict(zip(result["sparse"]["token_ids"], result["sparse"]["weights"], strict=True))
        assert found == pytest.approx(expected, abs=1e-4)
        np.testing.assert_allclose(result["multi_vector"], vectors, rtol=0, atol=1e-4)
        assert [token["id"] for token in result["multi_vector_tokens"]] == ids["input_ids"][0].tolist()[1:]


@pytest.mark.parametrize(
    ("body", "reason", "field"),
    [
        ({"outputs": ["multi_vector"]}, "UNSUPPORTED_BY_MODEL", "outputs"),
        ({"outputs": ["sparse"], "layers": [0]}, "CONFLICTING_FIELDS", "layers"),
        ({"outputs": ["sparse"], "dtype": "int8"}, "CONFLICTING_FIELDS", "dtype"),
        ({"outputs": ["sparse"], "normalize": True}, "CONFLICTING_FIELDS", "normalize"),
    ],
)
async def test_invalid_requests(splade: ServiceHarness, body: dict[str, Any], reason: str, field: str) -> None:
    error = (await splade.post("/v1/encode", {"inputs": TEXTS, **body})).json()["error"]
    assert (error["reason"], error["field"]) == (reason, field), error


async def test_unsupported_outputs_and_similarities_name_the_supported_ones(splade: ServiceHarness) -> None:
    bodies = {
        "/v1/encode": {"inputs": TEXTS, "outputs": ["multi_vector"]},
        "/v1/similarity": {"queries": TEXTS[0], "documents": TEXTS, "similarity": "maxsim"},
    }
    messages = [(await splade.post(path, body)).json()["error"]["message"] for path, body in bodies.items()]
    assert messages == [
        'outputs: "multi_vector" is not supported for this model. Use "pooled", "tokens", "words", "spans", "static" '
        'or "sparse", or another model.',
        'similarity: "maxsim" is not supported for this model. Use "cosine", "dot", "sparse", "euclidean" or '
        '"manhattan", or another model.',
    ]


async def test_sparse_vectors_over_the_limit_are_rejected_after_inference() -> None:
    async with open_harness(load_retriever(SPLADE), max_response_bytes=10_000) as small:
        error = (await small.post("/v1/encode", {"inputs": TEXTS, "outputs": ["sparse"]})).json()["error"]
        assert error["reason"] == "RESPONSE_TOO_LARGE"
        assert error["actual"] > error["maximum"] == 10_000


QUERY = "bank account money"


def maxsim(query: Any, document: Any) -> float:
    products = np.array(document["multi_vector"]) @ np.array(query["multi_vector"]).T
    return float(products.max(axis=0).mean())


def sparse_product(query: Any, document: Any) -> float:
    own = dict(zip(query["sparse"]["token_ids"], query["sparse"]["weights"], strict=True))
    entries = zip(document["sparse"]["token_ids"], document["sparse"]["weights"], strict=True)
    return float(sum(own.get(number, 0.0) * weight for number, weight in entries))


@pytest.mark.parametrize(
    ("kind", "output", "score"), [(BGE_M3, "multi_vector", maxsim), (SPLADE, "sparse", sparse_product)]
)
async def test_rerank_uses_the_scores_of_the_heads(kind: str, output: str, score: Any) -> None:
    """Recomputes scores and effects from the outputs of encode alone."""
    async with open_harness(load_retriever(kind)) as harness:
        body = {"query": QUERY, "documents": TEXTS, "effect": "occlusion", "explain_top": 2}
        results = (await harness.post("/v1/rerank", body)).json()["results"]
        query, *documents = await encode(harness, inputs=[QUERY, *TEXTS], outputs=[output])
        expected = np.array([score(query, document) for document in documents])
        assert [result["index"] for result in results] == np.argsort(-expected, kind="stable").tolist()
        for result in results:
            assert result["relevance_score"] == pytest.approx(expected[result["index"]], rel=1e-5, abs=1e-5)
        for result in results[:2]:
            explanation, own = result["explanation"], documents[result["index"]]
            for side, text in (("query", QUERY), ("document", TEXTS[result["index"]])):
                (whole,) = await encode(harness, inputs=text, outputs=["tokens"])
                tokens = [token for token in whole["tokens"] if not token["special"]]
                for unit, effect in zip(explanation[f"{side}_units"], explanation[f"{side}_effects"], strict=True):
                    kept = [token["id"] for token in tokens if token["word_index"] != unit["word_index"]]
                    if not kept:
                        continue
                    (other,) = await encode(harness, inputs=[{"token_ids": kept}], outputs=[output])
                    without = score(other, own) if side == "query" else score(query, other)
                    assert effect == pytest.approx(expected[result["index"]] - without, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize(
    ("kind", "function", "output", "score"),
    [
        (BGE_M3, "maxsim", "multi_vector", maxsim),
        (BGE_M3, "sparse", "sparse", sparse_product),
        (SPLADE, "sparse", "sparse", sparse_product),
    ],
)
async def test_similarity_of_heads_is_the_sum_of_its_terms(
    kind: str, function: str, output: str, score: Any, top_k: int | None
) -> None:
    async with open_harness(load_retriever(kind)) as harness:
        body = {"queries": TEXTS[:2], "documents": TEXTS, "similarity": function, "explain": True, "top_k": top_k}
        response = (await harness.post("/v1/similarity", body)).json()
        assert response["similarity"] == function
        encoded = await encode(harness, inputs=TEXTS, outputs=[output])
        for pair in response["pairs"]:
            expected = score(encoded[pair["query"]], encoded[pair["document"]])
            assert pair["score"] == pytest.approx(expected, rel=1e-5, abs=1e-5)
            assert response["scores"][pair["query"]][pair["document"]] == pair["score"]
            terms = pair["matches" if function == "maxsim" else "products"]
            assert sum(term["value"] for term in terms) + pair["rest"]["dropped"] == pytest.approx(expected, abs=1e-5)
            assert top_k is None or len(terms) <= top_k
            if function == "maxsim":
                check_matches(response, pair, encoded)


def check_matches(response: Any, pair: Any, encoded: list[Any]) -> None:
    query, document = encoded[pair["query"]], encoded[pair["document"]]
    products = np.array(query["multi_vector"]) @ np.array(document["multi_vector"]).T
    for match in pair["matches"]:
        row = products[match["query_unit"]]
        assert match["value"] == pytest.approx(row.max() / len(products), abs=1e-5)
        assert row[match["document_unit"]] == pytest.approx(row.max(), abs=1e-5)
    texts = [unit["text"] for unit in response["queries"][pair["query"]]["units"]]
    assert texts == [token["text"] for token in query["multi_vector_tokens"]]


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"similarity": "maxsim"}, "similarity", "UNSUPPORTED_BY_MODEL"),
        ({"dimensions": 3}, "dimensions", "CONFLICTING_FIELDS"),
        ({"explain": True, "effect": "occlusion"}, "effect", "CONFLICTING_FIELDS"),
        ({"explain": True, "unit": "word"}, "unit", "CONFLICTING_FIELDS"),
    ],
)
async def test_invalid_similarities(splade: ServiceHarness, changes: dict[str, Any], field: str, reason: str) -> None:
    body = {"queries": TEXTS, "documents": TEXTS, "similarity": "sparse", **changes}
    error = (await splade.post("/v1/similarity", body)).json()["error"]
    assert (error["field"], error["reason"]) == (field, reason), error


# ColBERT models through the REST API, compared with `MultiVectorEncoder` of sentence-transformers.

PASSAGES = [
    "the bank by the river", "money, money grows: in a bank account!", "a", "Don't count on it (42)",
    "the river bank flows past the old mill and the miller counts his money",
]  # fmt: skip
FAST = "stanford"
KINDS = [pytest.param(kind, marks=() if kind == FAST else pytest.mark.slow) for kind in COLBERT_CASES]


@cache
def load_oracle(kind: str) -> MultiVectorEncoder:
    return MultiVectorEncoder(str(publish_retriever(kind)), device="cpu")


@pytest.fixture(params=KINDS)
async def colbert(request: pytest.FixtureRequest) -> AsyncIterator[tuple[ServiceHarness, MultiVectorEncoder]]:
    async with open_harness(load_retriever(request.param)) as opened:
        yield opened, load_oracle(request.param)


@pytest.fixture
async def stanford() -> AsyncIterator[ServiceHarness]:
    async with open_harness(load_retriever(FAST)) as opened:
        yield opened


async def post(harness: ServiceHarness, path: str, **body: Any) -> Any:
    response = await harness.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("role", ["query", "document"])
async def test_vectors_equal_sentence_transformers(
    colbert: tuple[ServiceHarness, MultiVectorEncoder], role: str
) -> None:
    harness, oracle = colbert
    encode = oracle.encode_query if role == "query" else oracle.encode_document
    body = await post(harness, "/v1/encode", inputs=PASSAGES, outputs=["multi_vector"], role=role, truncation="right")
    for text, result in zip(PASSAGES, body["results"], strict=True):
        (expected,) = encode([text])
        found = np.array(result["multi_vector"])
        assert found.shape == tuple(expected.shape)
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=2e-5)
        assert len(result["multi_vector_tokens"]) == len(found)
        for token in result["multi_vector_tokens"]:
            assert token["special"] or token["text"] == text[token["start"] : token["end"]]


async def test_scores_equal_sentence_transformers(colbert: tuple[ServiceHarness, MultiVectorEncoder]) -> None:
    harness, oracle = colbert
    query, documents = PASSAGES[0], PASSAGES[1:]
    expected = oracle.similarity(oracle.encode_query([query]), oracle.encode_document(documents))[0].tolist()
    body = await post(harness, "/v1/rerank", query=query, documents=documents, truncation="right")
    scores = {result["index"]: result["relevance_score"] for result in body["results"]}
    assert [scores[index] for index in range(len(documents))] == pytest.approx(expected, abs=1e-4)
    body = await post(
        harness, "/v1/similarity", queries=[query], documents=documents, similarity="maxsim", explain=True,
        truncation="right",
    )  # fmt: skip
    assert body["scores"][0] == pytest.approx(expected, abs=1e-4)
    for pair, score in zip(body["pairs"], body["scores"][0], strict=True):
        assert sum(match["value"] for match in pair["matches"]) == pytest.approx(score, abs=1e-5)
        for match in pair["matches"]:
            assert match["query_unit"] < len(body["queries"][0]["units"])
            assert match["document_unit"] < len(body["documents"][pair["document"]]["units"])


async def test_occlusion_equals_ranking_without_each_word(stanford: ServiceHarness) -> None:
    query, document = "the river bank", "money in a bank, by the river"
    body = await post(stanford, "/v1/rerank", query=query, documents=[document], effect="occlusion")
    (result,) = body["results"]
    explanation = result["explanation"]
    for side, text in (("query", query), ("document", document)):
        for unit, effect in zip(explanation[f"{side}_units"], explanation[f"{side}_effects"], strict=True):
            shorter = text[: unit["start"]] + text[unit["end"] :]
            changed = {"query": query, "documents": [document]} | (
                {"query": shorter} if side == "query" else {"documents": [shorter]}
            )
            score = (await post(stanford, "/v1/rerank", **changed))["results"][0]["relevance_score"]
            assert effect == pytest.approx(result["relevance_score"] - score, abs=1e-4)


async def test_text_that_spells_a_marker_is_text(stanford: ServiceHarness) -> None:
    (result,) = (await post(stanford, "/v1/encode", inputs="[unused0] bank", outputs=["multi_vector"]))["results"]
    texts = [token["text"] for token in result["multi_vector_tokens"]]
    assert texts[:2] == ["[CLS]", "[unused1]"]
    assert "[unused0]" not in texts


async def test_model_lists_limits_markers_and_expansion(colbert: tuple[ServiceHarness, MultiVectorEncoder]) -> None:
    harness, oracle = colbert
    vectors = (await harness.client.get("/v1/model")).json()["multi_vector"]
    assert vectors["dimensions"] == oracle.encode_query([PASSAGES[0]])[0].shape[1]
    options: dict[str, Any] = {"outputs": ["multi_vector"]}
    for role in ("query", "document"):
        response = await harness.post("/v1/encode", {"inputs": "bank " * 100, "role": role, **options})
        assert response.json()["error"]["maximum"] == vectors[role]["max_input_tokens"]
        (result,) = (await post(harness, "/v1/encode", inputs="a", role=role, **options))["results"]
        first = [token["text"] for token in result["multi_vector_tokens"][:2]]
        assert vectors[role]["marker"] in {None, *first}
    (short,) = (await post(harness, "/v1/encode", inputs="a", role="query", **options))["results"]
    if (expansion := vectors["query_expansion"]) is not None:
        assert len(short["multi_vector"]) == expansion["length"]
        assert short["multi_vector_tokens"][-1]["text"] == expansion["token"]


@pytest.mark.parametrize(
    ("changes", "field", "reason", "actual"),
    [
        ({"role": "query"}, "inputs[0]", "TOO_LONG", 25),
        ({}, "inputs[0]", "TOO_LONG", 25),
        ({"role": "passage"}, "role", "UNKNOWN_VALUE", "passage"),
        ({"outputs": ["multi_vector", "pooled"]}, "outputs", "CONFLICTING_FIELDS", None),
    ],
)
async def test_invalid_requests_to_a_colbert_model(
    stanford: ServiceHarness, changes: dict[str, Any], field: str, reason: str, actual: Any
) -> None:
    body = {"inputs": ["bank " * 23], "outputs": ["multi_vector"], **changes}
    error = (await stanford.post("/v1/encode", body)).json()["error"]
    assert (error["field"], error["reason"], error["actual"]) == (field, reason, actual)
    if reason == "TOO_LONG":
        assert error["maximum"] == (13 if "role" in changes else 19)
