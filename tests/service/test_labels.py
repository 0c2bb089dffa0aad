"""Classify and rerank through the REST API, zero-shot labels included, compared with the libraries."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from attendant_client import Client, Input
from sentence_transformers import CrossEncoder

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.labels import CLASSIFIER, CROSS_ENCODER, ENTAILMENT, MAX_INPUT_TOKENS, export_classifier, publish_classifier
from tests.model.model_files import copy_artifact, rewrite_manifest
from tests.service.conftest import ServiceHarness, open_harness
from tests.serving import ServiceThread, load_kind

QUERY = "how do I open a bank account"
DOCUMENTS = [
    "The river bank is closed.", "Opening an account at a bank takes money and time.", "money", "grows " * 20,
    "A cat sat by the river.",
]  # fmt: skip
TEXTS = ["the bank by the river", "money grows in a bank", "a"]
IDENTITY = torch.nn.Identity()


@pytest.fixture
async def ranking() -> AsyncIterator[ServiceHarness]:
    async with open_harness(load_kind(CROSS_ENCODER)) as opened:
        yield opened


@pytest.fixture
async def labeling() -> AsyncIterator[ServiceHarness]:
    async with open_harness(load_kind(CLASSIFIER)) as opened:
        yield opened


async def post(harness: ServiceHarness, path: str, **body: Any) -> Any:
    response = await harness.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


async def error(harness: ServiceHarness, path: str, **body: Any) -> Any:
    response = await harness.post(path, body)
    assert response.status_code >= 400, response.text
    return response.json()["error"]


PROMPT = "find money in: "


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceThread, CrossEncoder]]:
    """A service of a cross-encoder with a default prompt, and its oracle."""
    root = copy_artifact(export_classifier(CROSS_ENCODER), tmp_path_factory.mktemp("prompted"))
    changes = {"prompts": {"rank": PROMPT, "query": "not this: "}, "default_prompt_name": "rank"}
    rewrite_manifest(root, lambda manifest: manifest.update(changes))
    oracle = CrossEncoder(
        str(publish_classifier(CROSS_ENCODER)), device="cpu", prompts=changes["prompts"], default_prompt_name="rank"
    )
    with ServiceThread(LoadedModel.load(Settings(model_dir=root, precision="float32"))) as service:
        yield service, oracle


@pytest.mark.parametrize("documents", [DOCUMENTS, ["river " * 100, "bank " * 49, "bank " * 48, "bank " * 47]])
@pytest.mark.parametrize("query", [QUERY, "bank money river " * 9])
def test_prompt_of_a_cross_encoder_precedes_the_query(
    prompted: tuple[ServiceThread, CrossEncoder], query: str, documents: list[str]
) -> None:
    """Over the limit of tokens, the prompt counts as a part of the query."""
    service, oracle = prompted
    pairs = [(query, document) for document in documents]
    expected, plain = oracle.predict(pairs), oracle.predict(pairs, prompt="")
    assert np.abs(expected - plain).max() > 1e-4
    actual: dict[str, Any] = {}
    for url in (service.rest, f"grpc://{service.grpc}"):
        with Client(url) as client:
            ranked = client.rerank(query, documents, truncation="auto", effect="occlusion").results
            actual[url] = [result.relevance_score for result in sorted(ranked, key=lambda result: result.index)]
            assert ranked[0].explanation is not None
            assert "".join(unit.text for unit in ranked[0].explanation.query_units).startswith(
                query.split(maxsplit=1)[0]
            )
            labeled = client.classify([Input(*pair) for pair in pairs], truncation="auto").results
            actual[f"{url} classify"] = [result.labels[0].score for result in labeled]
    post = partial(httpx.post, timeout=60)
    answer = post(service.rest + "/predict", json={"inputs": [[*pair] for pair in pairs]}).json()
    actual["/predict"] = [labels[0]["score"] for labels in answer]
    for first in (query, [query] * len(documents)):
        body = {"text_1": first, "text_2": documents, "truncate_prompt_tokens": -1}
        answer = post(service.rest + "/score", json=body).json()
        actual[f"/score {type(first)}"] = [item["score"] for item in answer["data"]]
    answer = post(service.rest + "/rerank", json={"query": query, "texts": documents}).json()
    actual["/rerank"] = [item["score"] for item in sorted(answer, key=lambda item: item["index"])]
    for name, scores in actual.items():
        np.testing.assert_allclose(scores, expected, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("raw_scores", [False, True])
@pytest.mark.parametrize("documents", [DOCUMENTS, ["river " * 100, "bank " * 61, "money " * 50]], ids=["short", "long"])
async def test_scores_equal_those_of_cross_encoder(
    ranking: ServiceHarness, documents: list[str], raw_scores: bool
) -> None:
    oracle = CrossEncoder(str(publish_classifier(CROSS_ENCODER)))
    activation = IDENTITY if raw_scores else None
    expected = oracle.predict([(QUERY, document) for document in documents], activation_fn=activation)
    body = await post(
        ranking, "/v1/rerank", query=QUERY, documents=documents, raw_scores=raw_scores, truncation="right"
    )
    results = body["results"]
    assert [result["index"] for result in results] == np.argsort(-expected, kind="stable").tolist()
    for result in results:
        assert result["relevance_score"] == pytest.approx(expected[result["index"]], abs=1e-5)


async def test_order_does_not_saturate_with_the_scores(ranking: ServiceHarness) -> None:
    """Documents are sorted by their logits: a score may round to 1 for several of them."""
    raw = await post(ranking, "/v1/rerank", query=QUERY, documents=DOCUMENTS, raw_scores=True)
    body = await post(ranking, "/v1/rerank", query=QUERY, documents=DOCUMENTS)
    assert [result["index"] for result in raw["results"]] == [result["index"] for result in body["results"]]


async def test_rank_fields_are_joined(ranking: ServiceHarness) -> None:
    documents = [{"title": text, "id": 7, "body": other} for text, other in zip(DOCUMENTS, TEXTS, strict=False)]
    joined = [f"{other}\n{text}" for text, other in zip(DOCUMENTS, TEXTS, strict=False)]
    expected = await post(ranking, "/v1/rerank", query=QUERY, documents=joined)
    body = await post(
        ranking, "/v1/rerank", query=QUERY, documents=documents, rank_fields=["body", "title"], return_documents=True
    )
    assert [result["relevance_score"] for result in body["results"]] == [
        pytest.approx(result["relevance_score"], abs=1e-5) for result in expected["results"]
    ]
    assert all(result["document"] == documents[result["index"]] for result in body["results"])


@pytest.mark.parametrize("raw_scores", [False, True])
async def test_labels_equal_transformers(labeling: ServiceHarness, raw_scores: bool) -> None:
    """A text, or a pair of texts, is one input."""
    directory = publish_classifier(CLASSIFIER)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    inputs = [*TEXTS, {"text": TEXTS[0], "pair": TEXTS[1]}]
    body = await post(labeling, "/v1/classify", inputs=inputs, raw_scores=raw_scores)
    for texts, result in zip([*((text,) for text in TEXTS), TEXTS[:2]], body["results"], strict=True):
        with torch.inference_mode():
            logits = model(**tokenizer(*texts, return_tensors="pt")).logits[0]
        expected = logits if raw_scores else logits.softmax(dim=0)
        scores = {label["label"]: label["score"] for label in result["labels"]}
        assert scores == pytest.approx(
            {model.config.id2label[index]: float(value) for index, value in enumerate(expected)}, abs=1e-5
        )
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
    best = await post(labeling, "/v1/classify", inputs=inputs, raw_scores=raw_scores, top_k=1)
    assert [result["labels"] for result in best["results"]] == [result["labels"][:1] for result in body["results"]]


def without(text: str, unit: dict[str, Any]) -> str:
    return text[: unit["start"]] + text[unit["end"] :]


@pytest.mark.parametrize("raw_scores", [False, True])
async def test_effects_of_words_are_recomputed_through_the_api(ranking: ServiceHarness, raw_scores: bool) -> None:
    """A word of these texts is one or more whole tokens, so leaving out its characters leaves out its tokens."""
    body = await post(
        ranking, "/v1/rerank", query=QUERY, documents=DOCUMENTS, effect="occlusion", explain_top=2,
        raw_scores=raw_scores,
    )  # fmt: skip
    explained = [result for result in body["results"] if "explanation" in result]
    assert explained == body["results"][:2]
    for result in explained:
        document, explanation = DOCUMENTS[result["index"]], result["explanation"]
        for unit, effect in zip(explanation["query_units"], explanation["query_effects"], strict=True):
            (other,) = (
                await post(
                    ranking, "/v1/rerank", query=without(QUERY, unit), documents=[document], raw_scores=raw_scores
                )
            )["results"]
            assert effect == pytest.approx(result["relevance_score"] - other["relevance_score"], abs=2e-5)
        for unit, effect in zip(explanation["document_units"], explanation["document_effects"], strict=True):
            shorter = without(document, unit)
            if not shorter.strip():
                continue
            (other,) = (await post(ranking, "/v1/rerank", query=QUERY, documents=[shorter], raw_scores=raw_scores))[
                "results"
            ]
            assert effect == pytest.approx(result["relevance_score"] - other["relevance_score"], abs=2e-5)


async def test_effects_on_labels_are_recomputed_through_the_api(labeling: ServiceHarness) -> None:
    (result,) = (await post(labeling, "/v1/classify", inputs=TEXTS[:1], effect="occlusion"))["results"]
    assert [unit["text"] for unit in result["units"]] == TEXTS[0].split()
    for place, unit in enumerate(result["units"]):
        (other,) = (await post(labeling, "/v1/classify", inputs=[without(TEXTS[0], unit)]))["results"]
        scores = {label["label"]: label["score"] for label in other["labels"]}
        for label in result["labels"]:
            assert label["effects"][place] == pytest.approx(label["score"] - scores[label["label"]], abs=2e-5)


async def test_unsupported_operations_name_the_supported_ones(
    harness: ServiceHarness, labeling: ServiceHarness
) -> None:
    found = await error(harness, "/v1/classify", inputs=TEXTS)
    assert (found["reason"], found["actual"]) == ("UNSUPPORTED_BY_MODEL", "classify")
    assert 'It supports "encode", "attend", "compare", "similarity", "rerank" and "tokenize".' in found["message"]
    found = await error(labeling, "/v1/rerank", query=QUERY, documents=DOCUMENTS)
    assert (found["reason"], found["actual"]) == ("UNSUPPORTED_BY_MODEL", "rerank")
    for served, labels in ((harness, []), (labeling, ["billing", "delivery", "other"])):
        info = (await served.client.get("/v1/model")).json()
        assert info["labels"] == labels
        assert ("classify" in info["operations"]) == bool(labels)


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"query": " "}, "query", "EMPTY"),
        ({"documents": []}, "documents", "EMPTY"),
        ({"documents": ["a", ""]}, "documents[1]", "EMPTY"),
        ({"documents": ["a"] * 1001}, "documents", "TOO_MANY"),
        ({"documents": ["bank " * 70]}, "documents[0]", "TOO_LONG"),
        ({"query": "bank " * 70}, "query", "TOO_LONG"),
        ({"documents": ["b" * 5000]}, "documents[0]", "TOO_LONG"),
        ({"documents": [{"txt": "a"}]}, "documents[0].text", "MISSING_FIELD"),
        ({"documents": [{"text": 3}]}, "documents[0].text", "WRONG_TYPE"),
        ({"documents": [{"title": "a"}, "b"], "rank_fields": ["title"]}, "documents[1]", "CONFLICTING_FIELDS"),
        ({"documents": [{"title": "a"}], "rank_fields": ["title", "text"]}, "documents[0]", "MISSING_FIELD"),
        ({"documents": [{"title": ["a"]}], "rank_fields": ["title"]}, "documents[0]", "WRONG_TYPE"),
        ({"rank_fields": []}, "rank_fields", "EMPTY"),
        ({"documents": ["bank " * 70], "max_tokens_per_doc": 9, "truncation": "error"}, "documents[0]", "TOO_LONG"),
        ({"documents": [3]}, "documents[0]", "WRONG_TYPE"),
        ({"top_n": 0}, "top_n", "OUT_OF_RANGE"),
        ({"explain_top": 2}, "explain_top", "CONFLICTING_FIELDS"),
        ({"unit": "word"}, "unit", "CONFLICTING_FIELDS"),
        ({"explain_top": 0, "effect": "occlusion"}, "explain_top", "OUT_OF_RANGE"),
        ({"effect": "leave_one_out"}, "effect", "UNKNOWN_VALUE"),
        (
            {"documents": ["bank " * 40] * 150, "effect": "occlusion", "unit": "token", "explain_top": 150},
            "effect",
            "REQUEST_TOO_LARGE",
        ),
    ],
)
async def test_invalid_rankings(ranking: ServiceHarness, changes: dict[str, Any], field: str, reason: str) -> None:
    found = await error(ranking, "/v1/rerank", **({"query": QUERY, "documents": DOCUMENTS} | changes))
    assert (found["field"], found["reason"]) == (field, reason)


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"inputs": []}, "inputs", "EMPTY"),
        ({"inputs": [{"text": "a", "spans": [[0, 1]]}]}, "inputs[0].spans", "UNKNOWN_FIELD"),
        ({"top_k": 0}, "top_k", "OUT_OF_RANGE"),
        ({"inputs": [{"token_ids": [7]}], "effect": "occlusion"}, "unit", "CONFLICTING_FIELDS"),
        ({"unit": "token"}, "unit", "CONFLICTING_FIELDS"),
        ({"inputs": ["bank " * 70]}, "inputs[0]", "TOO_LONG"),
    ],
)
async def test_invalid_classifications(
    labeling: ServiceHarness, changes: dict[str, Any], field: str, reason: str
) -> None:
    found = await error(labeling, "/v1/classify", **({"inputs": TEXTS} | changes))
    assert (found["field"], found["reason"]) == (field, reason)


# Zero-shot labels with an entailment model, compared with the pipeline of transformers.

PREMISES = ["The river bank flows past the old mill.", "Money in the bank grows slowly", "déjà vu à la façade"]
LABELS = ["river", "money and banks", "wind"]
TEMPLATE = "It counts {} boats {{in}} {{}}!"


@pytest.fixture
async def entailment() -> AsyncIterator[ServiceHarness]:
    async with open_harness(load_kind(ENTAILMENT)) as opened:
        yield opened


async def classify(harness: ServiceHarness, **body: Any) -> list[Any]:
    response = await harness.post("/v1/classify", {"inputs": PREMISES, **body})
    assert response.status_code == 200, response.text
    results: list[Any] = response.json()["results"]
    return results


@pytest.mark.parametrize("labels", [LABELS, LABELS[1:2]])
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("template", [None, TEMPLATE])
async def test_scores_equal_transformers(
    entailment: ServiceHarness, labels: list[str], multi_label: bool, template: str | None
) -> None:
    pipeline = transformers.pipeline("zero-shot-classification", str(publish_classifier(ENTAILMENT)), device="cpu")
    options = {} if template is None else {"hypothesis_template": template}
    expected = [pipeline(text, labels, multi_label=multi_label, **options) for text in PREMISES]
    results = await classify(entailment, labels=labels, multi_label=multi_label, template=template)
    for result, oracle in zip(results, expected, strict=True):
        scores = {item["label"]: item["score"] for item in result["labels"]}
        assert scores == pytest.approx(dict(zip(oracle["labels"], oracle["scores"], strict=True)), abs=1e-5)
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
    (best, *_) = await classify(entailment, labels=labels, multi_label=multi_label, template=template, top_k=1)
    assert best["labels"] == results[0]["labels"][:1]


async def test_truncation_keeps_the_label(entailment: ServiceHarness) -> None:
    pipeline = transformers.pipeline("zero-shot-classification", str(publish_classifier(ENTAILMENT)), device="cpu")
    text, labels = "The river bank flows past the old mill. " * 5, ["wind and " * 6 + "rain", "wind and " * 6 + "sun"]
    oracle: Any = pipeline(text, labels)
    (result,) = await classify(entailment, inputs=[text], labels=labels, truncation="right")
    scores = {item["label"]: item["score"] for item in result["labels"]}
    assert result["truncated"]
    assert scores == pytest.approx(dict(zip(oracle["labels"], oracle["scores"], strict=True)), abs=1e-6)
    body = {"inputs": [text], "labels": ["sun", "wind " * MAX_INPUT_TOKENS], "truncation": "right"}
    error = (await entailment.post("/v1/classify", body)).json()["error"]
    assert (error["field"], error["maximum"]) == ("labels[1]", MAX_INPUT_TOKENS - 1)


@pytest.mark.parametrize("raw_scores", [False, True])
@pytest.mark.parametrize("multi_label", [False, True])
async def test_effects_are_differences_without_a_word(
    entailment: ServiceHarness, raw_scores: bool, multi_label: bool
) -> None:
    """The tiny tokenizer gives a word the same tokens in a text without another word."""
    options = {"labels": LABELS, "raw_scores": raw_scores, "multi_label": multi_label}
    (result,) = await classify(entailment, inputs=PREMISES[:1], effect="occlusion", **options)
    assert [unit["text"] for unit in result["units"]] == PREMISES[0].replace(".", " .").split()
    scores = {item["label"]: item["score"] for item in result["labels"]}
    for place, unit in enumerate(result["units"]):
        text = PREMISES[0][: unit["start"]] + PREMISES[0][unit["end"] :]
        (without,) = await classify(entailment, inputs=[text], **options)
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
async def test_invalid_requests_are_rejected(entailment: ServiceHarness, fields: dict[str, Any], message: str) -> None:
    response = await entailment.post("/v1/classify", {"inputs": PREMISES, **fields})
    assert (response.status_code, response.json()["error"]["message"]) == (422, message)


async def test_copies_of_a_long_template_are_limited(entailment: ServiceHarness) -> None:
    body = {"inputs": ["a"] * 10, "labels": [f"{number:0300}" for number in range(100)], "template": "x" * 4000 + "{}"}
    response = await entailment.post("/v1/classify", body)
    error = response.json()["error"]
    assert (error["reason"], error["actual"], error["maximum"]) == ("REQUEST_TOO_LARGE", 4_300_000, 2**21)


async def test_other_classifiers_reject_labels() -> None:
    async with open_harness(load_kind(CLASSIFIER)) as harness:
        response = await harness.post("/v1/classify", {"inputs": PREMISES, "labels": LABELS})
    error = response.json()["error"]
    assert (error["reason"], error["field"]) == ("UNSUPPORTED_BY_MODEL", "labels")
