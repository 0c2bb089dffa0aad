"""Similarity for each pooling, dense layers and prompts, compared with sentence-transformers and with the
definitions.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer, SimilarityFunction
from torch import nn

from model.artifact.tokenizer import TokenizerInput
from service.engine.model_loader import LoadedModel
from service.operations.units import token_words, words_of
from tests.e2e.similarity_models import MAX_TOKENS, PROMPTS, VARIANTS, Variant, build
from tests.service.conftest import ServiceHarness, open_harness

Floats = NDArray[Any]
SIDES = (("queries", "query"), ("documents", "document"))

QUERIES = ["the river bank", "Money!"]
DOCUMENTS = ["He cashed a cheque at the bank.", "money in the bank grows", "rain, and more rain"]
TEXTS = {"query": QUERIES, "document": DOCUMENTS}
FUNCTIONS = ("cosine", "dot", "euclidean", "manhattan")


@dataclass(frozen=True)
class Case:
    """A served model, its oracle, and the variant behind both."""

    harness: ServiceHarness
    model: LoadedModel
    oracle: SentenceTransformer
    variant: Variant

    async def similarity(self, **fields: Any) -> Any:
        body = {"queries": QUERIES, "documents": DOCUMENTS} | fields
        response = await self.harness.post("/v1/similarity", body)
        assert response.status_code == 200, response.text
        return response.json()


FAST = ("max", "excluded prompts", "cls and a dense layer", "euclidean", "manhattan", "truncated")
"""Variants that together cover every pooling, prompts, a bias, every function, and a model without contributions."""


def params(condition: Callable[[Variant], bool] = lambda _: True) -> list[Any]:
    """Return the matching variants; most are slow, because each one needs an export."""
    return [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name, variant in VARIANTS.items()
        if condition(variant)
    ]


def variants(condition: Callable[[Variant], bool]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("built", params(condition), indirect=True)


def is_available(variant: Variant) -> bool:
    return unavailable(variant) is None


def unavailable(variant: Variant) -> str | None:
    """Return why a model has no contributions."""
    if own_function(variant) in ("euclidean", "manhattan"):
        return "distance"
    if variant.pooling == "max":
        return "max_pooling"
    return None if all(activation is nn.Identity for _, _, activation in variant.dense) else "nonlinear_dense_layers"


def own_function(variant: Variant) -> str:
    function: str = variant.options.get("similarity_fn_name", "cosine")
    return function


def is_bare(variant: Variant) -> bool:
    """Return whether the embedding is just the text's pooled vector."""
    return not variant.dense and not variant.options.get("prompts") and "truncate_dim" not in variant.options


@pytest.fixture(scope="module", params=params())
def built(
    request: pytest.FixtureRequest, publish: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedModel, SentenceTransformer, Variant]:
    variant = VARIANTS[request.param]
    return *build(variant, publish, tmp_path_factory.mktemp("similarity")), variant


@pytest.fixture
async def case(built: tuple[LoadedModel, SentenceTransformer, Variant]) -> AsyncIterator[Case]:
    model, oracle, variant = built
    async with open_harness(model) as harness:
        yield Case(harness, model, oracle, variant)


def oracle_scores(case: Case, dimensions: int | None) -> Floats:
    """Return the scores of the oracle. With `dimensions`, Attendant normalizes the vectors of such a model again."""
    oracle: Any = case.oracle
    options: dict[str, Any] = {"show_progress_bar": False}
    if dimensions is not None:
        options |= {"truncate_dim": dimensions, "normalize_embeddings": case.variant.normalize}
    queries = oracle.encode_query(QUERIES, **options)
    scores: Floats = oracle.similarity(queries, oracle.encode_document(DOCUMENTS, **options)).numpy()
    return scores


def assert_close(actual: Any, expected: Any, scale: float = 1.0) -> None:
    np.testing.assert_allclose(actual, expected, atol=2e-5 * max(1.0, scale))


@pytest.mark.parametrize("dimensions", [None, 7])
async def test_scores_equal_sentence_transformers(case: Case, dimensions: int | None) -> None:
    fields = {} if dimensions is None else {"dimensions": dimensions}
    response = await case.similarity(**fields)
    expected = oracle_scores(case, dimensions)
    assert_close(response["scores"], expected, np.abs(expected).max())
    explained = await case.similarity(explain=True, **fields)
    assert_close(explained["scores"], expected, np.abs(expected).max())
    zipped = await case.similarity(queries=QUERIES[:2], documents=DOCUMENTS[:2], pairs="zip", **fields)
    assert_close(zipped["scores"], np.diag(expected), np.abs(expected).max())


@pytest.mark.parametrize("dimensions", [None, 7])
@pytest.mark.parametrize("unit", ["token", "word"])
async def test_contributions_and_rest_sum_to_the_score(case: Case, unit: str, dimensions: int | None) -> None:
    fields = {} if dimensions is None else {"dimensions": dimensions}
    response = await case.similarity(explain=True, unit=unit, **fields)
    reason = unavailable(case.variant)
    assert response["contributions_unavailable"] == reason
    assert len(response["pairs"]) == 6
    for pair in response["pairs"]:
        score = response["scores"][pair["query"]][pair["document"]]
        assert_close(pair["score"], score, abs(score))
        if reason is not None:
            assert (pair["contributions"], pair["rest"]) == (None, None)
            continue
        shape = tuple(len(response[side][pair[name]]["units"]) for side, name in SIDES)
        assert np.shape(pair["contributions"]) == shape
        assert_sum(np.sum(pair["contributions"]), pair["rest"], score)
        assert pair["rest"]["dropped"] == 0
        has_bias = any(bias for _, bias, _ in case.variant.dense)
        assert (abs(pair["rest"]["bias"]) > 1e-4) == has_bias
        has_prompt = bool(response["query_prompt"]) and case.variant.include_prompt
        assert (abs(pair["rest"]["prompt"]) > 1e-6) == has_prompt


def assert_sum(contributions: float, rest: dict[str, float], score: float) -> None:
    assert abs(contributions + sum(rest.values()) - score) <= 1e-5 * max(1, abs(score))


@variants(lambda variant: is_available(variant) and is_bare(variant))
async def test_contributions_equal_the_double_sum_over_tokens(case: Case) -> None:
    """The reference follows the definition, using token vectors from /v1/encode."""
    response = await case.similarity(explain=True)
    vectors = {side: await token_vectors(case, texts) for side, texts in (("query", QUERIES), ("document", DOCUMENTS))}
    for pair in response["pairs"]:
        query, document = (vectors[name][pair[name]] for name in ("query", "document"))
        if case.variant.pooling == "cls":
            assert_close(pair["contributions"], np.zeros_like(pair["contributions"]))
            assert_close(pair["rest"]["special_tokens"], pair["score"])
            continue
        length = np.linalg.norm(query.mean(axis=0)) * np.linalg.norm(document.mean(axis=0))
        whole = query @ document.T / (len(query) * len(document) * length)
        assert_close(pair["contributions"], whole[1:-1, 1:-1])
        assert_close(pair["rest"]["special_tokens"], whole.sum() - whole[1:-1, 1:-1].sum())


@variants(lambda variant: isinstance(variant.pooling, tuple))
async def test_combined_poolings_are_described_and_not_replaced(case: Case) -> None:
    """Dense layers read the vectors of all of them."""
    info = (await case.harness.client.get("/v1/model")).json()
    assert (info["pooling"], info["poolings"]) == (None, ["mean", "mean_sqrt_len"])
    assert (await case.harness.client.get("/info")).json()["model_type"] == {
        "embedding": {"pooling": "mean+mean_sqrt_len"}
    }
    response = await case.harness.post("/v1/encode", {"inputs": "a", "pooling": "mean"})
    assert (response.status_code, response.json()["error"]["reason"]) == (422, "UNSUPPORTED_BY_MODEL")
    response = await case.harness.post("/v1/encode", {"inputs": "a", "chunks": {"mode": "late"}})
    assert response.json()["error"]["message"] == (
        'chunks.mode: "late" takes means of tokens, and the pooling is "mean" and "mean_sqrt_len". Use "separate".'
    )
    layers = (await case.harness.post("/v1/encode", {"inputs": "a", "layers": [0, -1]})).raise_for_status().json()
    assert len(layers["results"][0]["pooled"]) == 2 * 2 * info["hidden_size"]


async def token_vectors(case: Case, texts: list[str]) -> list[Floats]:
    body = {"inputs": texts, "outputs": ["tokens"], "prompt": ""}
    results = (await case.harness.post("/v1/encode", body)).json()["results"]
    return [np.array(result["token_vectors"]) for result in results]


@variants(is_available)
@pytest.mark.parametrize("unit", ["token", "word"])
async def test_top_k_keeps_the_largest_contributions(case: Case, unit: str) -> None:
    whole = await case.similarity(explain=True, unit=unit)
    for top_k in (1, 3, 1000):
        response = await case.similarity(explain=True, unit=unit, top_k=top_k)
        for pair, expected in zip(response["pairs"], whole["pairs"], strict=True):
            matrix, top = np.array(expected["contributions"]), pair["contributions"]
            kept = np.sort(np.abs(matrix.ravel()))[::-1][:top_k]
            assert_close(np.abs(top["values"]), kept)
            assert_close(top["values"], matrix[top["query_units"], top["document_units"]])
            assert_sum(sum(top["values"]), pair["rest"], pair["score"])
            assert_close(pair["rest"]["dropped"], matrix.sum() - sum(top["values"]), abs(pair["score"]))


@variants(lambda variant: variant.pooling == "cls")
async def test_leave_one_out_is_rejected_with_cls_pooling(case: Case) -> None:
    body = {"queries": "a", "documents": "b", "explain": True, "effect": "leave_one_out"}
    response = await case.harness.post("/v1/similarity", body)
    assert (response.status_code, response.json()["error"]["field"]) == (422, "effect")


@variants(lambda variant: variant.pooling != "cls")
@pytest.mark.parametrize("unit", ["token", "word"])
async def test_leave_one_out_pools_without_the_unit(case: Case, unit: str) -> None:
    """The reference follows the definition: token vectors of the whole text, pooled without the unit's tokens."""
    fields = {"explain": True, "unit": unit, "effect": "leave_one_out", "query_prompt": "", "document_prompt": ""}
    response = await case.similarity(**fields)
    vectors = {side: await token_vectors(case, texts) for side, texts in (("query", QUERIES), ("document", DOCUMENTS))}
    for pair in response["pairs"]:
        whole = {name: embed(case, vectors[name][pair[name]]) for _, name in SIDES}
        for side, name in SIDES:
            other = whole["document" if name == "query" else "query"]
            text = (QUERIES if name == "query" else DOCUMENTS)[pair[name]]
            units = response[side][pair[name]]["units"]
            owners = unit_indices(case, text, unit)
            expected = []
            for index in range(len(units)):
                rest = vectors[name][pair[name]][owners != index]
                expected.append(pair["score"] - compare(case, embed(case, rest), other))
            assert_close(pair[f"{name}_effects"], expected, abs(pair["score"]))


def embed(case: Case, hidden: Floats) -> Floats:
    """Apply the modules after the encoder to token vectors (T, D)."""
    pooled = hidden.max(axis=0) if case.variant.pooling == "max" else hidden.mean(axis=0)
    if isinstance(case.variant.pooling, tuple):
        pooled = np.concatenate([pooled, pooled * len(hidden) ** 0.5])
    embedding: Floats = case.model.dense_layers(pooled[None])[0]
    if case.variant.normalize:
        embedding = embedding / np.linalg.norm(embedding)
    return embedding[: case.variant.options.get("truncate_dim")]


def compare(case: Case, query: Floats, document: Floats) -> float:
    """Return the similarity of two embeddings by sentence-transformers."""
    return float(case.oracle.similarity(query.astype(np.float64), document.astype(np.float64)))


def unit_indices(case: Case, text: str, unit: str) -> NDArray[np.intp]:
    """Return the unit of each token in a text without a prompt, or -1 for special tokens."""
    (tokens,) = case.model.tokenizer.encode([TokenizerInput(text)])
    if unit == "word":
        words = [-1 if word is None else word for word in token_words(tokens, words_of(tokens))]
        present = sorted(set(words) - {-1})
        return np.array([-1 if word < 0 else present.index(word) for word in words])
    content = ~np.array(tokens.special_tokens_mask)
    return np.where(content, np.cumsum(content) - 1, -1)


@pytest.mark.parametrize("unit", ["token", "word"])
async def test_occlusion_encodes_the_text_without_the_unit(case: Case, unit: str) -> None:
    """The reference follows the definition: /v1/encode of the remaining token ids."""
    fields = {"explain": True, "unit": unit, "effect": "occlusion", "query_prompt": "", "document_prompt": ""}
    response = await case.similarity(**fields)
    for pair in response["pairs"]:
        for name, text, other in (
            ("query", QUERIES[pair["query"]], DOCUMENTS[pair["document"]]),
            ("document", DOCUMENTS[pair["document"]], QUERIES[pair["query"]]),
        ):
            (tokens,) = case.model.tokenizer.encode([TokenizerInput(text)])
            ids = np.array(tokens.input_ids)
            owners, special = unit_indices(case, text, unit), np.array(tokens.special_tokens_mask)
            effects = pair[f"{name}_effects"]
            assert len(effects) == owners.max() + 1
            for index, effect in enumerate(effects):
                rest = ids[(owners != index) & ~special].tolist()
                if not rest:
                    continue
                without = await pooled(case, {"token_ids": rest})
                rest_score = compare(case, without, await pooled(case, {"text": other}))
                assert_close(effect, pair["score"] - rest_score, abs(pair["score"]))


async def pooled(case: Case, item: dict[str, Any]) -> Floats:
    body = {"inputs": [item]} | ({"prompt": ""} if "text" in item else {})
    (result,) = (await case.harness.post("/v1/encode", body)).json()["results"]
    return np.array(result["pooled"])


@variants(lambda variant: variant.options.get("prompts") == PROMPTS)
async def test_occlusion_keeps_the_prompt(case: Case) -> None:
    fields = {"explain": True, "unit": "word", "effect": "occlusion"}
    response = await case.similarity(**fields)
    plain = await case.similarity(query_prompt="", document_prompt="", **fields)
    assert response["queries"] != plain["queries"]
    assert [text["units"] for text in response["queries"]] == [text["units"] for text in plain["queries"]]
    assert (response["query_prompt"], plain["query_prompt"]) == ("find: ", None)
    without = await case.similarity(queries=["the bank"])
    scores = [response["scores"][0], without["scores"][0]]
    effects = [pair["query_effects"][1] for pair in response["pairs"][: len(DOCUMENTS)]]
    assert_close(effects, np.subtract(*scores))


async def test_truncated_texts_are_explained_as_far_as_they_are_read(case: Case) -> None:
    response = await case.similarity(
        queries=["bank " * 60], documents=["money"], truncation="right", explain=True, unit="word", effect="occlusion"
    )
    (query,) = response["queries"]
    assert (query["token_count"], query["truncated"]) == (MAX_TOKENS, True)
    assert 1 < len(query["units"]) < MAX_TOKENS
    (pair,) = response["pairs"]
    assert len(pair["query_effects"]) == len(query["units"])
    if is_available(case.variant):
        assert_sum(np.sum(pair["contributions"]), pair["rest"], pair["score"])


@pytest.mark.parametrize("function", FUNCTIONS)
async def test_every_function_equals_sentence_transformers(case: Case, function: str) -> None:
    response = await case.similarity(similarity=function, explain=True, effect="occlusion")
    queries, documents = (
        torch.from_numpy(encode(TEXTS[side])).double()
        for encode, side in ((case.oracle.encode_query, "query"), (case.oracle.encode_document, "document"))
    )
    expected = SimilarityFunction.to_similarity_fn(function)(queries, documents).numpy()
    assert response["similarity"] == function
    assert_close(response["scores"], expected, np.abs(expected).max())
    assert (response["contributions_unavailable"] == "distance") == (function in ("euclidean", "manhattan"))
    for pair in response["pairs"]:
        assert_close(pair["score"], expected[pair["query"], pair["document"]], np.abs(expected).max())
        assert np.abs(pair["query_effects"]).max() > 0


async def test_rerank_uses_the_function_of_the_model(case: Case) -> None:
    expected = oracle_scores(case, None)[0]
    body = {"query": QUERIES[0], "documents": DOCUMENTS, "effect": "occlusion", "unit": "token"}
    results = (await case.harness.post("/v1/rerank", body)).json()["results"]
    assert [result["index"] for result in results] == np.argsort(-expected, kind="stable").tolist()
    assert_close([result["relevance_score"] for result in results], np.sort(expected)[::-1], np.abs(expected).max())
    explained = await case.similarity(queries=QUERIES[:1], explain=True, effect="occlusion")
    for result in results:
        pair = explained["pairs"][result["index"]]
        for name in ("query_effects", "document_effects"):
            assert_close(result["explanation"][name], pair[name], np.abs(expected).max())


@pytest.mark.parametrize("normalize", [None, True, False])
@pytest.mark.parametrize("dimensions", [None, 7])
async def test_embeddings_equal_sentence_transformers(
    case: Case, dimensions: int | None, normalize: bool | None
) -> None:
    fields = {"dimensions": dimensions, "normalize": normalize}
    body = {"inputs": DOCUMENTS, "role": "document"} | {k: v for k, v in fields.items() if v is not None}
    results = (await case.harness.post("/v1/encode", body)).json()["results"]
    options: dict[str, Any] = {"show_progress_bar": False}
    if dimensions is not None or normalize is not None:
        options |= {"truncate_dim": dimensions, "normalize_embeddings": case.variant.normalize or bool(normalize)}
    expected = case.oracle.encode_document(DOCUMENTS, **options)
    actual = np.array([result["pooled"] for result in results])
    assert actual.shape == expected.shape
    if normalize is False and case.variant.normalize:  # sentence-transformers cannot leave out the module
        expected, actual = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (expected, actual))
    assert_close(actual, expected, np.abs(expected).max())
    assert (await case.harness.client.get("/v1/model")).json()["dimensions"] == len(case.oracle.encode("a"))
