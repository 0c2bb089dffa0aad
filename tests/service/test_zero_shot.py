"""Zero-shot labels with an entailment model, compared with the pipeline of transformers."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import transformers

from tests.labels import CLASSIFIER, ENTAILMENT, MAX_INPUT_TOKENS, publish_classifier
from tests.service.conftest import ServiceHarness, open_harness
from tests.serving import load_kind

TEXTS = ["The river bank flows past the old mill.", "Money in the bank grows slowly", "déjà vu à la façade"]
LABELS = ["river", "money and banks", "wind"]
TEMPLATE = "It counts {} boats {{in}} {{}}!"


@pytest.fixture
async def model() -> AsyncIterator[ServiceHarness]:
    async with open_harness(load_kind(ENTAILMENT)) as opened:
        yield opened


async def classify(harness: ServiceHarness, **body: Any) -> list[Any]:
    response = await harness.post("/v1/classify", {"inputs": TEXTS, **body})
    assert response.status_code == 200, response.text
    results: list[Any] = response.json()["results"]
    return results


@pytest.mark.parametrize("labels", [LABELS, LABELS[1:2]])
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("template", [None, TEMPLATE])
async def test_scores_equal_transformers(
    model: ServiceHarness, labels: list[str], multi_label: bool, template: str | None
) -> None:
    pipeline = transformers.pipeline("zero-shot-classification", str(publish_classifier(ENTAILMENT)), device="cpu")
    options = {} if template is None else {"hypothesis_template": template}
    expected = [pipeline(text, labels, multi_label=multi_label, **options) for text in TEXTS]
    results = await classify(model, labels=labels, multi_label=multi_label, template=template)
    for result, oracle in zip(results, expected, strict=True):
        scores = {item["label"]: item["score"] for item in result["labels"]}
        assert scores == pytest.approx(dict(zip(oracle["labels"], oracle["scores"], strict=True)), abs=1e-5)
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
    (best, *_) = await classify(model, labels=labels, multi_label=multi_label, template=template, top_k=1)
    assert best["labels"] == results[0]["labels"][:1]


async def test_truncation_keeps_the_label(model: ServiceHarness) -> None:
    pipeline = transformers.pipeline("zero-shot-classification", str(publish_classifier(ENTAILMENT)), device="cpu")
    text, labels = "The river bank flows past the old mill. " * 5, ["wind and " * 6 + "rain", "wind and " * 6 + "sun"]
    oracle: Any = pipeline(text, labels)
    (result,) = await classify(model, inputs=[text], labels=labels, truncation="right")
    scores = {item["label"]: item["score"] for item in result["labels"]}
    assert result["truncated"]
    assert scores == pytest.approx(dict(zip(oracle["labels"], oracle["scores"], strict=True)), abs=1e-6)
    body = {"inputs": [text], "labels": ["sun", "wind " * MAX_INPUT_TOKENS], "truncation": "right"}
    error = (await model.post("/v1/classify", body)).json()["error"]
    assert (error["field"], error["maximum"]) == ("labels[1]", MAX_INPUT_TOKENS - 1)


@pytest.mark.parametrize("raw_scores", [False, True])
@pytest.mark.parametrize("multi_label", [False, True])
async def test_effects_are_differences_without_a_word(
    model: ServiceHarness, raw_scores: bool, multi_label: bool
) -> None:
    """The tiny tokenizer gives a word the same tokens in a text without another word."""
    options = {"labels": LABELS, "raw_scores": raw_scores, "multi_label": multi_label}
    (result,) = await classify(model, inputs=TEXTS[:1], effect="occlusion", **options)
    assert [unit["text"] for unit in result["units"]] == TEXTS[0].replace(".", " .").split()
    scores = {item["label"]: item["score"] for item in result["labels"]}
    for place, unit in enumerate(result["units"]):
        text = TEXTS[0][: unit["start"]] + TEXTS[0][unit["end"] :]
        (without,) = await classify(model, inputs=[text], **options)
        changed = {item["label"]: item["score"] for item in without["labels"]}
        for item in result["labels"]:
            expected = scores[item["label"]] - changed[item["label"]]
            np.testing.assert_allclose(item["effects"][place], expected, atol=2e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": []}, "labels: empty. Send at least one item."),
        ({"labels": ["a", "a"]}, "labels: contains the same item twice. Remove one."),
        ({"labels": ["a", " "]}, "labels[1]: empty or blank. Send text."),
        ({"labels": ["a"], "template": "b"}, "template: does not contain {} once. Put {} in place of the label."),
        ({"template": "{}"}, "template: requires labels. Set labels, or leave it out."),
        ({"multi_label": True}, "multi_label: requires labels. Set labels, or leave it out."),
        (
            {"inputs": [{"text": "a", "pair": "b"}], "labels": ["a"]},
            "inputs[0].pair: not supported with labels. Send a text.",
        ),
        (
            {"inputs": ["a"] * 101, "labels": [str(number) for number in range(10)]},
            "labels: too many pairs of an input and a label (1010, limit 1000). Send fewer inputs or labels.",
        ),
    ],
)
async def test_invalid_requests_are_rejected(model: ServiceHarness, fields: dict[str, Any], message: str) -> None:
    response = await model.post("/v1/classify", {"inputs": TEXTS, **fields})
    assert (response.status_code, response.json()["error"]["message"]) == (422, message)


async def test_copies_of_a_long_template_are_limited(model: ServiceHarness) -> None:
    body = {"inputs": ["a"] * 10, "labels": [f"{number:0300}" for number in range(100)], "template": "x" * 4000 + "{}"}
    response = await model.post("/v1/classify", body)
    error = response.json()["error"]
    assert (error["reason"], error["actual"], error["maximum"]) == ("REQUEST_TOO_LARGE", 4_300_000, 2**21)


async def test_other_classifiers_reject_labels() -> None:
    async with open_harness(load_kind(CLASSIFIER)) as harness:
        response = await harness.post("/v1/classify", {"inputs": TEXTS, "labels": LABELS})
    error = response.json()["error"]
    assert (error["reason"], error["field"]) == ("UNSUPPORTED_BY_MODEL", "labels")
