"""Requests to classify, token-classify and rerank that combine all fields, and checks of the responses."""

from typing import Any, get_args

import numpy as np
from hypothesis import strategies as st

from service.engine.schema.entities import Aggregation
from service.engine.schema.labels import EXPLAIN_TOP, LabelEffect, ScoredBy
from service.engine.schema.similarity import SimilarityUnit
from service.pb import encoder_pb2 as pb
from tests.request_strategies import SHORT_TEXTS, TEXTS, Body, ModelFacts, body, inputs, optional

OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "raw_scores": optional(st.booleans()),
    "truncation": st.sampled_from([..., "error", "right", "left", "auto"]),
    "effect": st.sampled_from([..., *get_args(LabelEffect)]),
    "unit": optional(st.sampled_from(get_args(SimilarityUnit))),
}


def classify_bodies(facts: ModelFacts) -> st.SearchStrategy[Body]:
    return body(inputs=inputs(facts, spans=False), top_k=optional(st.integers(0, 4)), **OPTIONS)


def token_classify_bodies(facts: ModelFacts) -> st.SearchStrategy[Body]:
    return body(
        inputs=inputs(facts, spans=False),
        aggregation=st.sampled_from([..., *get_args(Aggregation)]),
        truncation=st.sampled_from([..., "error", "right", "left", "auto"]),
    )


def rerank_bodies(facts: ModelFacts) -> st.SearchStrategy[Body]:
    """Draw rerank requests. A few have `explain_top` or `unit` without `effect`, which is an error."""
    del facts
    documents = st.lists(st.one_of(TEXTS, TEXTS, TEXTS.map(lambda text: {"text": text})), min_size=1, max_size=4)
    return body(
        query=SHORT_TEXTS,
        documents=documents,
        top_n=optional(st.integers(0, 5)),
        return_documents=optional(st.booleans()),
        explain_top=optional(st.integers(0, 4)),
        **OPTIONS,
    )


def texts_of(request: Body) -> list[str]:
    return [item if isinstance(item, str) else item["text"] for item in request["documents"]]


def check_classify(request: Body, response: Any, labels: list[str]) -> None:
    items = [request["inputs"]] if isinstance(request["inputs"], str) else request["inputs"]
    count = min(request.get("top_k", len(labels)), len(labels))
    explain = request.get("effect", "none") != "none"
    assert response["usage"]["tokens"] == sum(result["token_count"] for result in response["results"])
    for item, result in zip(items, response["results"], strict=True):
        scores = [label["score"] for label in result["labels"]]
        assert len(scores) == count
        assert len({label["label"] for label in result["labels"]} & set(labels)) == count
        assert scores == sorted(scores, reverse=True)
        if not request.get("raw_scores") and count == len(labels) > 1:
            assert abs(sum(scores) - 1) < 1e-5
        assert ("units" in result) == explain
        text = item if isinstance(item, str) else item.get("text")
        for unit in result.get("units", ()):
            if unit["segment"] == 0 and text is not None:
                assert unit["text"] == text[unit["start"] : unit["end"]]
        for label in result["labels"]:
            assert ("effects" in label) == explain
            assert np.isfinite(label.get("effects", [])).all()
            assert len(label.get("effects", ())) == len(result.get("units", ()))


def check_rerank(request: Body, response: Any) -> None:
    texts, results = texts_of(request), response["results"]
    assert len(results) == min(request.get("top_n", len(texts)), len(texts))
    assert len({result["index"] for result in results} & set(range(len(texts)))) == len(results)
    assert response["scored_by"] in get_args(ScoredBy)
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    explain = request.get("effect", "none") != "none"
    explained = min(request.get("explain_top", EXPLAIN_TOP), len(results)) if explain else 0
    for place, result in enumerate(results):
        assert ("document" in result) == request.get("return_documents", False)
        if "document" in result:
            sent = request["documents"][result["index"]]
            assert result["document"] == ({"text": sent} if isinstance(sent, str) else sent)
        assert ("explanation" in result) == (place < explained)
        for side, text in (("query", request["query"]), ("document", texts[result["index"]])):
            if "explanation" not in result:
                continue
            units = result["explanation"][f"{side}_units"]
            assert all(unit["text"] == text[unit["start"] : unit["end"]] for unit in units)
            effects = result["explanation"][f"{side}_effects"]
            assert len(effects) == len(units)
            assert np.isfinite(effects).all()


def check_token_classify(request: Body, response: Any, labels: list[str]) -> None:
    items = [request["inputs"]] if isinstance(request["inputs"], str) else request["inputs"]
    aggregated = request.get("aggregation", "simple") != "none"
    known = {label.split("-", 1)[-1] for label in labels} if aggregated else set(labels)
    for item, result in zip(items, response["results"], strict=True):
        texts = (item, "") if isinstance(item, str) else (item.get("text", ""), item.get("pair", ""))
        for entity in result["entities"]:
            assert entity["label"] in known - {"O"}
            assert 0 < entity["score"] <= 1
            if not (isinstance(item, dict) and "token_ids" in item) and entity["start"] < entity["end"]:
                assert entity["text"] == texts[entity["segment"]][entity["start"] : entity["end"]]


def compare_token_classify(body: Any, message: Any, tolerance: float) -> None:
    for actual, expected in zip(message.results, body["results"], strict=True):
        assert (actual.token_count, actual.truncated) == (expected["token_count"], expected["truncated"])
        places = [(entity.label, entity.segment, entity.start, entity.end) for entity in actual.entities]
        others = [(item["label"], item["segment"], item["start"], item["end"]) for item in expected["entities"]]
        if places == others:  # two labels of a token may have scores so close that batches decide differently
            for entity, item in zip(actual.entities, expected["entities"], strict=True):
                assert abs(entity.score - item["score"]) <= tolerance
        else:
            assert abs(len(places) - len(others)) <= 2


def compare_classify(body: Any, message: Any, tolerance: float) -> None:
    for actual, expected in zip(message.results, body["results"], strict=True):
        assert (actual.token_count, actual.truncated) == (expected["token_count"], expected["truncated"])
        scores = {label.label: label.score for label in actual.labels}
        for label in expected["labels"]:  # equal scores may swap places between batches
            if label["label"] in scores:
                assert abs(scores[label["label"]] - label["score"]) <= tolerance * max(1.0, abs(label["score"]))


def compare_rerank(body: Any, message: Any, tolerance: float) -> None:
    assert len(message.results) == len(body["results"])
    assert pb.ScoredBy.Name(message.scored_by) == f"SCORED_BY_{body['scored_by'].upper()}"
    scores = {result.index: result.relevance_score for result in message.results}
    for place, result in enumerate(body["results"]):
        expected = result["relevance_score"]
        for score in (message.results[place].relevance_score, scores.get(result["index"], expected)):
            assert abs(score - expected) <= tolerance * max(1.0, abs(expected))
        assert message.results[place].HasField("explanation") == ("explanation" in result)
