"""/v1/similarity: pairs, errors, limits, and how much work a request triggers."""

from typing import Any

import httpx
import numpy as np
import pytest

from service.engine.model_loader import LoadedModel
from service.operations.inputs import MAX_OCCLUDED_SEQUENCES
from service.operations.similarity import MAX_EXPLAINED_PAIRS
from tests.service.conftest import ServiceHarness, open_harness

QUERY = "how to open a bank account"
DOCUMENTS = ["Opening an account takes ten minutes.", "The bank of the river is muddy."]


async def post(harness: ServiceHarness, **fields: Any) -> httpx.Response:
    return await harness.post("/v1/similarity", {"queries": QUERY, "documents": DOCUMENTS} | fields)


async def similarity(harness: ServiceHarness, **fields: Any) -> Any:
    response = await post(harness, **fields)
    assert response.status_code == 200, response.text
    return response.json()


async def error(harness: ServiceHarness, **fields: Any) -> dict[str, Any]:
    response = await post(harness, **fields)
    assert response.status_code in (413, 422), response.text
    problem: dict[str, Any] = response.json()["error"]
    return problem


async def test_zipped_pairs_are_the_diagonal(harness: ServiceHarness) -> None:
    everything = await similarity(harness, queries=DOCUMENTS, explain=True)
    zipped = await similarity(harness, queries=DOCUMENTS, explain=True, pairs="zip")
    np.testing.assert_allclose(zipped["scores"], np.diag(everything["scores"]), atol=1e-4)
    assert [(pair["query"], pair["document"]) for pair in zipped["pairs"]] == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"documents": ["a", " "]}, "documents[1]", "EMPTY"),
        ({"documents": ["word " * 300]}, "documents[0]", "TOO_LONG"),
        ({"queries": ["x" * 20_000]}, "queries[0]", "TOO_LONG"),
        ({"queries": ["a"] * 257}, "queries", "TOO_MANY"),
        ({"queries": ["a"] * 128, "documents": ["a"] * 129}, "documents", "TOO_MANY"),
        ({"pairs": "zip"}, "documents", "WRONG_SHAPE"),
        ({"dimensions": 385}, "dimensions", "OUT_OF_RANGE"),
        ({"query_prompt_name": "query"}, "query_prompt_name", "PROMPT_NOT_FOUND"),
        ({"document_prompt": "a", "document_prompt_name": "b"}, "document_prompt_name", "CONFLICTING_FIELDS"),
        ({"document_prompt": "x" * 20_000}, "document_prompt", "TOO_LONG"),
        ({"query_prompt": "word " * 300}, "query_prompt", "TOO_LONG"),
        ({"unit": "word"}, "unit", "CONFLICTING_FIELDS"),
        ({"top_k": 3}, "top_k", "CONFLICTING_FIELDS"),
        ({"effect": "occlusion"}, "effect", "CONFLICTING_FIELDS"),
        ({"explain": True, "top_k": 0}, "top_k", "OUT_OF_RANGE"),
        ({"explain": True, "unit": "span"}, "unit", "UNKNOWN_VALUE"),
        ({"queries": ["a"] * 17, "documents": ["a"] * 16, "explain": True}, "explain", "TOO_MANY"),
    ],
)
async def test_invalid_request_names_field_and_reason(
    harness: ServiceHarness, fields: dict[str, Any], field: str, reason: str
) -> None:
    response = await post(harness, **fields)
    assert response.status_code in (404, 413, 422), response.text
    problem = response.json()["error"]
    assert (problem["field"], problem["reason"]) == (field, reason)
    assert problem["message"].startswith(f"{field}: ")
    assert problem["message"].endswith((".", "?"))


async def test_largest_number_of_pairs_is_explained(harness: ServiceHarness) -> None:
    body = await similarity(harness, queries=["a"] * 16, documents=["b"] * 16, explain=True, effect="leave_one_out")
    assert len(body["pairs"]) == MAX_EXPLAINED_PAIRS


async def test_scores_and_explanations_run_on_the_fast_lane(harness: ServiceHarness) -> None:
    """Expects one sequence per text, plus one per unit with occlusion."""
    words = len(QUERY.split())
    for fields, sequences in (
        ({}, 3),
        ({"explain": True, "effect": "leave_one_out"}, 3),
        ({"documents": ["money"], "explain": True, "effect": "occlusion"}, 2 + words + 1),
    ):
        before = harness.sample("attendant_batch_size_sum", lane="fast")
        await similarity(harness, **fields)
        assert harness.sample("attendant_batch_size_sum", lane="fast") - before == sequences
    assert harness.sample("attendant_batch_size_sum", lane="explain") == 0


async def test_too_many_occluded_sequences_are_rejected(model: LoadedModel) -> None:
    fields = {
        "queries": ["a b c d e f g h i j"] * 128,
        "documents": [" ".join("abcdefghijklmnopqrstuvwx")] * 128,
    }
    long = "word " * 250
    async with open_harness(model, max_timeout_ms=3_600_000) as harness:  # a slow machine rejects them by the deadline
        problem = await error(harness, **fields, pairs="zip", explain=True, effect="occlusion")
        assert (problem["field"], problem["reason"]) == ("effect", "REQUEST_TOO_LARGE")
        assert problem["actual"] == 128 * 34 > problem["maximum"] == MAX_OCCLUDED_SEQUENCES
        problem = await error(harness, queries=[long], documents=[long] * 4, explain=True, effect="occlusion")
        assert (problem["field"], problem["maximum"]) == ("effect", harness.settings.max_queue_tokens)
        assert harness.sample("attendant_batch_size_sum", lane="fast") == 0


async def test_explanation_over_the_memory_limit_is_rejected(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=200_000) as harness:
        problem = await error(harness, queries="word " * 75, documents="word", explain=True, top_k=1)
        assert (problem["field"], problem["reason"]) == ("explain", "REQUEST_TOO_LARGE")
        assert problem["actual"] > problem["maximum"] == 200_000
        await similarity(harness, queries="word " * 50, documents="word", explain=True, top_k=1)


async def test_response_over_the_limit_is_rejected_with_a_remedy(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=3_200_000) as harness:
        fields: dict[str, Any] = {"queries": ["word " * 60] * 8, "documents": ["word " * 60] * 8, "explain": True}
        problem = await error(harness, **fields)
        assert problem["reason"] == "RESPONSE_TOO_LARGE"
        assert "top_k" in problem["message"]
        await similarity(harness, **fields, top_k=10)


async def test_all_texts_count_in_usage_and_metrics(harness: ServiceHarness) -> None:
    body = await similarity(harness, documents=["word " * 300, "a"], truncation="right")
    assert [text["truncated"] for text in body["documents"]] == [True, False]
    assert body["usage"] == {"tokens": 8 + 256 + 3, "truncated_inputs": 1}
    assert harness.sample("attendant_request_tokens_sum") == 8 + 256 + 3
    assert harness.sample("attendant_truncated_inputs_total") == 1
