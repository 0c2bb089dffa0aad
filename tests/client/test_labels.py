"""attendant-client's rerank, classify and token-classify, with models of each kind and the default embedding model."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from attendant_client import AttendantError, Client, Entity, Input, Label
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.responses import decode_json, decode_messages

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.client.clients import KINDS, service_url
from tests.client.results import assert_equal
from tests.labels import CLASSIFIER, CROSS_ENCODER, TOKEN_CLASSIFIER, export_classifier
from tests.serving import ServiceThread

QUERY = "how do I open a bank account"
DOCUMENTS = [
    "The river bank is closed.",
    "Opening an account takes money and time.",
    "money",
    "A cat sat by the river.",
]
TEXTS = ["the bank by the river", "money grows in a bank", "a"]
LABELS = ["billing", "delivery", "other"]
LONG = "bank " * 70


@pytest.fixture(scope="module")
def service(model: LoadedModel) -> Iterator[ServiceThread]:
    """A server of four models; the embedding model is the default."""
    ranker, labeler, tagger = (
        LoadedModel.load(Settings(model_dir=export_classifier(kind), precision="float32"))
        for kind in (CROSS_ENCODER, CLASSIFIER, TOKEN_CLASSIFIER)
    )
    with ServiceThread(model, ranker, labeler, tagger, models="embedder=a,ranker=b,labeler=c,tagger=d") as running:
        yield running


def test_clients_return_the_same_ranks_and_labels(service: ServiceThread) -> None:
    results: list[tuple[Any, ...]] = []
    for kind, protocol in KINDS.values():
        with kind(service_url(service, protocol)) as client:
            ranked = client.rerank(QUERY, DOCUMENTS, model="ranker")
            raw = client.rerank(QUERY, [*DOCUMENTS, LONG], model="ranker", top_n=2, raw_scores=True, truncation="right")
            explained = client.rerank(QUERY, DOCUMENTS, model="ranker", effect="occlusion", unit="token", explain_top=2)
            classified = client.classify([*TEXTS, Input(TEXTS[0], pair=TEXTS[1])], model="labeler")
            best = client.classify(LONG, model="labeler", top_k=1, raw_scores=True, truncation="left")
            words = client.classify(TEXTS, model="labeler", effect="occlusion")
            tokens = client.classify(Input(token_ids=[7, 8]), model="labeler", effect="occlusion", unit="token")
            models = [client.model(name) for name in ("embedder", "ranker", "labeler", "tagger")]
            tagged = [
                client.token_classify([*TEXTS, Input(TEXTS[0], pair=TEXTS[1])], model="tagger", aggregation=aggregation)
                for aggregation in (None, "none", "first", "average", "max")
            ]
            cut = client.token_classify([LONG, "a"], model="tagger", truncation="right")
            results.append((ranked, raw, explained, classified, best, words, tokens, models, tagged, cut))
    for other in results[1:]:
        assert_equal(other, results[0], tolerance=1e-5)


@pytest.mark.parametrize("name", ["ranker", "embedder"])
def test_rerank_returns_the_best_documents_and_explains_the_first(client: Client, name: str) -> None:
    ranked = client.rerank(QUERY, DOCUMENTS, model=name)
    assert sorted(result.index for result in ranked.results) == list(range(len(DOCUMENTS)))
    assert [result.explanation for result in ranked.results] == [None] * len(DOCUMENTS)
    response = client.rerank(QUERY, DOCUMENTS, model=name, top_n=3, effect="occlusion", explain_top=1)
    assert [result.index for result in response.results] == [result.index for result in ranked.results[:3]]
    best, *others = response.results
    assert [result.explanation for result in others] == [None, None]
    explanation = best.explanation
    assert explanation is not None
    text = DOCUMENTS[best.index]
    for side, units, effects in (
        (QUERY, explanation.query_units, explanation.query_effects),
        (text, explanation.document_units, explanation.document_effects),
    ):
        words = client.tokenize(side, model=name).results[0].words
        assert [unit.text for unit in units] == [word.text for word in words]
        assert [side[unit.start : unit.end] for unit in units] == [word.text for word in words]
        assert effects.dtype == np.float32
        assert effects.shape == (len(words),)
        assert np.any(effects)


def test_raw_scores_are_logits(client: Client) -> None:
    scores, logits = (
        {result.index: result.relevance_score for result in response.results}
        for response in (
            client.rerank(QUERY, DOCUMENTS, model="ranker"),
            client.rerank(QUERY, DOCUMENTS, model="ranker", raw_scores=True),
        )
    )
    assert scores == pytest.approx({index: 1 / (1 + np.exp(-logit)) for index, logit in logits.items()}, abs=1e-5)


def test_embedding_model_ranks_by_similarity(client: Client) -> None:
    similarities = client.similarity(QUERY, DOCUMENTS).scores[0]
    results = client.rerank(QUERY, DOCUMENTS).results
    assert [result.index for result in results] == np.argsort(-similarities, kind="stable").tolist()
    assert [result.relevance_score for result in results] == pytest.approx(sorted(similarities, reverse=True), abs=1e-6)


def test_long_texts_are_truncated_on_request(client: Client) -> None:
    ranked = client.rerank(QUERY, ["a", LONG], model="ranker", truncation="right")
    classified = client.classify(["a", LONG], model="labeler", truncation="left")
    assert (ranked.truncated_inputs, classified.truncated_inputs) == (1, 1)
    assert [result.truncated for result in classified.results] == [False, True]


def test_classify_returns_labels_with_the_effect_of_each_word(client: Client) -> None:
    without = client.classify(TEXTS, model="labeler").results
    assert [result.units for result in without] == [None] * len(TEXTS)
    results = client.classify(TEXTS, model="labeler", top_k=2, effect="occlusion").results
    for text, result, all_labels in zip(TEXTS, results, without, strict=True):
        assert result.units is not None
        assert [unit.text for unit in result.units] == text.split()
        assert sorted(label.label for label in all_labels.labels) == LABELS
        assert sum(label.score for label in all_labels.labels) == pytest.approx(1, abs=1e-5)
        for label, other in zip(result.labels, all_labels.labels[:2], strict=True):
            assert other.effects is None
            assert label.label == other.label
            assert label.score == pytest.approx(other.score, abs=1e-5)
            assert label.effects is not None
            assert label.effects.dtype == np.float32
            assert label.effects.shape == (len(result.units),)


def test_inputs_over_the_limit_are_classified_in_parts(client: Client) -> None:
    response = client.classify([*["a"] * 300, TEXTS[0]], model="labeler")
    assert len(response.results) == 301
    assert response.token_count == sum(result.token_count for result in response.results)
    (alone,) = client.classify(TEXTS[0], model="labeler").results
    assert_equal(response.results[300], alone, tolerance=1e-5)
    with pytest.raises(AttendantError) as raised:
        client.classify([*["a"] * 300, " "], model="labeler")
    assert raised.value.field == "inputs[300]"


def test_entities_match_the_rest_response(client: Client, service: ServiceThread) -> None:
    body = {"inputs": TEXTS, "model": "tagger", "aggregation": "none"}
    expected = httpx.post(f"{service.rest}/v1/token-classify", json=body).raise_for_status().json()["results"]
    response = client.token_classify(TEXTS, model="tagger", aggregation="none")
    assert any(result["entities"] for result in expected)
    for text, result, other in zip(TEXTS, response.results, expected, strict=True):
        assert (result.token_count, result.truncated) == (other["token_count"], other["truncated"])
        assert_equal(result.entities, [Entity(**entity) for entity in other["entities"]], tolerance=1e-5)
        assert [text[entity.start : entity.end] for entity in result.entities] == [
            entity.text for entity in result.entities
        ]
    labels = client.model("tagger").token_labels
    assert {entity.label for result in response.results for entity in result.entities} <= set(labels)


@pytest.mark.parametrize(
    ("call", "reason", "field", "actual"),
    [
        (lambda client: client.classify("a"), "UNSUPPORTED_BY_MODEL", None, "classify"),
        (lambda client: client.rerank("a", ["b"], model="labeler"), "UNSUPPORTED_BY_MODEL", None, "rerank"),
        (lambda client: client.token_classify("a"), "UNSUPPORTED_BY_MODEL", None, "token_classify"),
        (
            lambda client: client.token_classify("a", model="tagger", aggregation="x"),
            "UNKNOWN_VALUE", "aggregation", "x",
        ),
        (lambda client: client.rerank("a", []), "EMPTY", "documents", None),
        (lambda client: client.rerank("a", ["b"] * 1001), "TOO_MANY", "documents", 1001),
        (lambda client: client.rerank("a", ["b"], explain_top=1), "CONFLICTING_FIELDS", "explain_top", None),
        (lambda client: client.rerank("a", ["b"], unit="word"), "CONFLICTING_FIELDS", "unit", None),
        (lambda client: client.classify("a", model="labeler", unit="token"), "CONFLICTING_FIELDS", "unit", None),
        (lambda client: client.rerank("a", ["b", LONG], model="ranker"), "TOO_LONG", "documents[1]", 74),
        (lambda client: client.classify(["a", LONG], model="labeler"), "TOO_LONG", "inputs[1]", 72),
        (
            lambda client: client.classify(Input("a", spans=[(0, 1)]), model="labeler"),
            "UNKNOWN_FIELD", "inputs[0].spans", None,
        ),
    ],
)  # fmt: skip
def test_rejected_request_is_an_error_with_reason_and_field(
    client: Client, call: Callable[[Client], Any], reason: str, field: str | None, actual: int | str | None
) -> None:
    with pytest.raises(AttendantError) as raised:
        call(client)
    error = raised.value
    assert (error.code, error.reason, error.field, error.actual) == ("INVALID_ARGUMENT", reason, field, actual)


@pytest.mark.parametrize("field", ["unit", "explain_top"])
def test_option_of_effects_without_effect_names_field_and_remedy(client: Client, field: str) -> None:
    options: Any = {field: {"unit": "token", "explain_top": 1}[field]}
    with pytest.raises(AttendantError) as raised:
        client.rerank("a", ["b"], **options)
    message = str(raised.value)
    names = ("EFFECT_NONE", "EFFECT_OCCLUSION") if "EFFECT" in message else ('"none"', '"occlusion"')
    assert f"{field}: set, but effect is {names[0]}. Set effect to {names[1]} or leave {field} out." in message


def test_model_info_has_operations_labels_and_document_limit(client: Client) -> None:
    embedder, ranker, labeler = (client.model(name) for name in ("embedder", "ranker", "labeler"))
    operations = ["encode", "attend", "compare", "similarity", "rerank", "classify", "tokenize"]
    assert ranker.operations == operations
    assert embedder.operations == [name for name in operations if name != "classify"]
    assert labeler.operations == [name for name in operations if name != "rerank"]
    assert (embedder.labels, labeler.labels) == ([], LABELS)
    assert embedder.limits.max_documents == 1000


def test_scores_of_both_apis_are_the_same_numbers() -> None:
    """REST sends 0.1, gRPC the nearest float32, which is 0.10000000149011612 in Python."""
    common = {"model": "m", "precision": "float32", "usage": {"tokens": 3, "truncated_inputs": 0}}
    usage = pb.Usage(tokens=3)
    ranked = decode_json("rerank", common | {"results": [{"index": 1, "relevance_score": 0.1}], "scored_by": "sparse"})
    document = pb.RankedDocument(index=1, relevance_score=0.1)
    message = pb.RerankResponse(
        model="m", precision=pb.PRECISION_FLOAT32, results=[document], usage=usage, scored_by=pb.SCORED_BY_SPARSE
    )
    assert decode_messages("rerank", [message]) == ranked
    body = {"token_count": 3, "truncated": False, "labels": [{"label": "other", "score": 0.1}]}
    classified = decode_json("classify", common | {"results": [body]})
    result = pb.ClassifyResult(token_count=3, labels=[pb.Label(label="other", score=0.1)])
    labels = pb.ClassifyResponse(model="m", precision=pb.PRECISION_FLOAT32, results=[result], usage=usage)
    assert decode_messages("classify", [labels]) == classified
    assert classified.results[0].labels == [Label("other", 0.1, None)]
    found: dict[str, Any] = {"label": "LOC", "score": 0.1, "text": "bank", "start": 0, "end": 4, "segment": 0}
    tagged = decode_json(
        "token_classify", common | {"results": [{"token_count": 3, "truncated": False, "entities": [found]}]}
    )
    entities = pb.TokenClassifyResult(token_count=3, entities=[pb.Entity(**found)])
    other = pb.TokenClassifyResponse(model="m", precision=pb.PRECISION_FLOAT32, results=[entities], usage=usage)
    assert decode_messages("token_classify", [other]) == tagged
