"""Effects of words on the ranks of texts without words or without tokens, with a model of each kind."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.labels import CROSS_ENCODER
from tests.retrievers import SPLADE
from tests.service.conftest import ServiceHarness, open_harness
from tests.serving import load_kind

INVISIBLE = "\u200b"
"""A character that the normalization of BERT removes."""
TEXT = "river bank"
DENSE, COLBERT = "dense", "stanford"
KINDS = (CROSS_ENCODER, COLBERT, SPLADE, DENSE)


@pytest.fixture(params=KINDS)
async def ranking(request: pytest.FixtureRequest, default_artifact: Path) -> AsyncIterator[tuple[str, ServiceHarness]]:
    kind: str = request.param
    dense = Settings(model_dir=default_artifact, precision="float32")
    async with open_harness(LoadedModel.load(dense) if kind == DENSE else load_kind(kind)) as harness:
        yield kind, harness


async def rank(harness: ServiceHarness, query: str, *documents: str, **options: Any) -> Any:
    """Return the results in the order of the documents, or the error."""
    response = await harness.post("/v1/rerank", {"query": query, "documents": documents, **options})
    body = response.json()
    return body["error"] if "error" in body else sorted(body["results"], key=lambda result: result["index"])


@pytest.mark.parametrize("unit", ["word", "token"])
async def test_punctuation_marks_have_effects(ranking: tuple[str, ServiceHarness], unit: str) -> None:
    _, harness = ranking
    results = await rank(harness, "?", "...", TEXT, effect="occlusion", unit=unit)
    for result, texts in zip(results, (["."] * 3, TEXT.split()), strict=True):
        explanation = result["explanation"]
        assert [item["text"] for item in explanation["query_units"]] == ["?"]
        assert [item["text"] for item in explanation["document_units"]] == texts
        assert len(explanation["query_effects"]) == 1
        assert len(explanation["document_effects"]) == len(texts)
        assert np.isfinite(explanation["query_effects"] + explanation["document_effects"]).all()
    (shorter,) = await rank(harness, "?", "..")
    expected = results[0]["relevance_score"] - shorter["relevance_score"]
    assert results[0]["explanation"]["document_effects"] == pytest.approx([expected] * 3, abs=1e-4)


@pytest.mark.parametrize("effect", ["none", "occlusion"])
async def test_text_without_tokens(ranking: tuple[str, ServiceHarness], effect: str) -> None:
    """A cross-encoder reads the query with the document, so one of them may be empty."""
    kind, harness = ranking
    by_document = await rank(harness, TEXT, TEXT, INVISIBLE, effect=effect)
    by_query = await rank(harness, INVISIBLE, TEXT, effect=effect)
    if kind != CROSS_ENCODER:
        assert (by_document["reason"], by_document["field"]) == ("EMPTY", "documents[1]")
        assert (by_query["reason"], by_query["field"]) == ("EMPTY", "query")
    elif effect == "occlusion":
        document, query = by_document[1]["explanation"], by_query[0]["explanation"]
        for explanation, empty, other in ((document, "document", "query"), (query, "query", "document")):
            assert (explanation[f"{empty}_units"], explanation[f"{empty}_effects"]) == ([], [])
            assert [item["text"] for item in explanation[f"{other}_units"]] == TEXT.split()
            assert np.any(explanation[f"{other}_effects"])
    both = await rank(harness, INVISIBLE, INVISIBLE, effect=effect)
    assert (both["reason"], both["field"]) == ("EMPTY", "documents[0]" if kind == CROSS_ENCODER else "query")


async def test_effect_of_the_only_word_is_measured_against_no_tokens(ranking: tuple[str, ServiceHarness]) -> None:
    kind, harness = ranking
    (result,) = await rank(harness, TEXT, "?", effect="occlusion")
    (effect,) = result["explanation"]["document_effects"]
    assert np.isfinite(effect)
    if kind == CROSS_ENCODER:  # the only kind that accepts a document without tokens
        (empty,) = await rank(harness, TEXT, INVISIBLE)
        assert effect == pytest.approx(result["relevance_score"] - empty["relevance_score"], abs=1e-5)
