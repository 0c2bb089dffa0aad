"""ColBERT models through the REST API, compared with `MultiVectorEncoder` of sentence-transformers."""

from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder

from tests.model.colbert_cases import COLBERT_CASES
from tests.retrievers import publish_retriever
from tests.service.conftest import ServiceHarness, open_harness
from tests.serving import load_retriever

TEXTS = [
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
    body = await post(harness, "/v1/encode", inputs=TEXTS, outputs=["multi_vector"], role=role, truncation="right")
    for text, result in zip(TEXTS, body["results"], strict=True):
        (expected,) = encode([text])
        found = np.array(result["multi_vector"])
        assert found.shape == tuple(expected.shape)
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=2e-5)
        assert len(result["multi_vector_tokens"]) == len(found)
        for token in result["multi_vector_tokens"]:
            assert token["special"] or token["text"] == text[token["start"] : token["end"]]


async def test_scores_equal_sentence_transformers(colbert: tuple[ServiceHarness, MultiVectorEncoder]) -> None:
    harness, oracle = colbert
    query, documents = TEXTS[0], TEXTS[1:]
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
    assert vectors["dimensions"] == oracle.encode_query([TEXTS[0]])[0].shape[1]
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
async def test_invalid_requests(
    stanford: ServiceHarness, changes: dict[str, Any], field: str, reason: str, actual: Any
) -> None:
    body = {"inputs": ["bank " * 23], "outputs": ["multi_vector"], **changes}
    error = (await stanford.post("/v1/encode", body)).json()["error"]
    assert (error["field"], error["reason"], error["actual"]) == (field, reason, actual)
    if reason == "TOO_LONG":
        assert error["maximum"] == (13 if "role" in changes else 19)
