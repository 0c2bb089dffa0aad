"""Token-classify through the REST API, compared with the pipeline of transformers."""

from collections.abc import AsyncIterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers
from attendant_client.types import Token
from hypothesis import given
from hypothesis import strategies as st

from service.operations.token_classify import find_entities as entities_of
from tests.labels import TOKEN_CLASSIFIER, publish_classifier
from tests.service.conftest import ServiceHarness, open_harness
from tests.serving import load_kind

TEXTS = ["the bank by the river", "money grows in a bank account", "Lovelace lived in London", "a"]


@pytest.fixture
async def labeling() -> AsyncIterator[ServiceHarness]:
    async with open_harness(load_kind(TOKEN_CLASSIFIER)) as opened:
        yield opened


async def find_entities(harness: ServiceHarness, **body: Any) -> list[Any]:
    response = await harness.post("/v1/token-classify", body)
    assert response.status_code == 200, response.text
    return [result["entities"] for result in response.json()["results"]]


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
async def test_entities_equal_the_pipeline(labeling: ServiceHarness, aggregation: str) -> None:
    """WordPiece marks the tokens that continue a word, so the pipeline has the same words."""
    directory = publish_classifier(TOKEN_CLASSIFIER)
    oracle = transformers.pipeline(
        "token-classification", model=str(directory), tokenizer=str(directory), aggregation_strategy=aggregation
    )
    for text, found in zip(TEXTS, await find_entities(labeling, inputs=TEXTS, aggregation=aggregation), strict=True):
        expected = oracle(text)
        name = "entity" if aggregation == "none" else "entity_group"
        assert [(item["label"], item["start"], item["end"]) for item in found] == [
            (item[name], item["start"], item["end"]) for item in expected
        ]
        for item, other in zip(found, expected, strict=True):
            assert item["score"] == pytest.approx(float(other["score"]), abs=1e-5)
            assert item["text"] == text[item["start"] : item["end"]]
        path, parameters = f"/models/{labeling.engine.name}/pipeline/token-classification", {}
        if aggregation != "simple":
            parameters = {"aggregation_strategy": aggregation}
        response = await labeling.post(path, {"inputs": text, "parameters": parameters})
        assert response.json() == [
            {
                name: item["label"],
                "score": item["score"],
                "word": item["text"],
                "start": item["start"],
                "end": item["end"],
            }
            for item in found
        ]


@given(
    names=st.lists(st.sampled_from(["O", *map("-".join, product("BIESL", ["PER", "LOC"])), "PER", "COVID-19", "O-B"]),
                   min_size=1, max_size=5, unique=True),
    best=st.lists(st.integers(0, 4), min_size=1, max_size=8),
)  # fmt: skip
def test_names_and_joins_equal_the_pipeline(names: list[str], best: list[int]) -> None:
    """For any scheme of labels."""
    labels = [names[number % len(names)] for number in best]
    pipeline = object.__new__(transformers.TokenClassificationPipeline)
    pipeline.tokenizer = SimpleNamespace(convert_tokens_to_string="".join)  # type: ignore[assignment]
    joined = pipeline.group_entities(
        [{"entity": label, "score": 0.5, "word": "a", "start": n, "end": n + 1} for n, label in enumerate(labels)]
    )
    tokens = [Token(0, "a", n, n + 1, n, 0, False) for n in range(len(labels))]
    logits = np.array([[5.0 * (name == label) for name in names] for label in labels])
    found = entities_of(tokens, logits, names, ("a" * len(labels), ""), "simple")
    expected = [(item["entity_group"], item["start"], item["end"]) for item in joined]
    assert [(item.label, item.start, item.end) for item in found] == [
        item for item in expected if labels[item[1]] != "O"
    ]


async def test_entities_of_a_pair_stay_in_their_segment(labeling: ServiceHarness) -> None:
    pair = {"text": TEXTS[0], "pair": TEXTS[1]}
    (found,) = await find_entities(labeling, inputs=[pair])
    assert {item["segment"] for item in found} == {0, 1}
    for item in found:
        assert item["text"] == TEXTS[item["segment"]][item["start"] : item["end"]]


async def test_token_ids_have_entities_of_tokens(labeling: ServiceHarness) -> None:
    (whole,) = (await labeling.post("/v1/encode", {"inputs": TEXTS[0], "outputs": ["tokens"]})).json()["results"]
    ids = [token["id"] for token in whole["tokens"] if not token["special"]]
    by_ids, by_text = await find_entities(labeling, inputs=[{"token_ids": ids}, TEXTS[0]], aggregation="none")
    assert [item["label"] for item in by_ids] == [item["label"] for item in by_text]
    assert all(item["text"] for item in by_ids)


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"aggregation": "word"}, "aggregation", "UNKNOWN_VALUE"),
        ({"aggregation": "max", "inputs": [{"token_ids": [7]}]}, "aggregation", "CONFLICTING_FIELDS"),
        ({"inputs": ["bank " * 70]}, "inputs[0]", "TOO_LONG"),
    ],
)
async def test_invalid_requests(labeling: ServiceHarness, changes: dict[str, Any], field: str, reason: str) -> None:
    error = (await labeling.post("/v1/token-classify", {"inputs": TEXTS, **changes})).json()["error"]
    assert (error["field"], error["reason"]) == (field, reason)


async def test_the_model_lists_its_token_labels(labeling: ServiceHarness, harness: ServiceHarness) -> None:
    info = (await labeling.client.get("/v1/model")).json()
    assert info["token_labels"] == ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    assert "token_classify" in info["operations"]
    error = (await harness.post("/v1/token-classify", {"inputs": TEXTS})).json()["error"]
    assert (error["reason"], error["actual"]) == ("UNSUPPORTED_BY_MODEL", "token_classify")
    assert error["message"] == (
        'Operation "token_classify" is not supported for this model. It supports "encode", "attend", "compare", '
        '"similarity", "rerank" and "tokenize". Use a token classifier.'
    )
