"""The similarity tab with each kind of model: a ranking, its reasons, and what the model lacks."""

import json
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import grpc
import httpx
import pytest
from attendant_client.pb import encoder_pb2 as pb
from google.protobuf import json_format

from service.config import Settings
from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver, format_number
from tests.browser.test_request import numbers, parse_command, program, run, stub
from tests.labels import CLASSIFIER, CROSS_ENCODER, export_classifier
from tests.model.logit_score_cases import LOGIT_SCORE
from tests.model.retriever_cases import BGE_M3
from tests.retrievers import SPLADE, export_retriever
from tests.serving import ServiceThread
from tests.shared_models import load_shared

pytestmark = pytest.mark.slow  # it exports six models; test_similarity.py has the default model

QUERY = "the bank by the river"
TEXTS = ["river river river bank", "money grows in a bank account", "a"]
COLBERT = "stanford"
NAMES = {
    "hybrid": BGE_M3, "lexical": SPLADE, "late": COLBERT, "judge": LOGIT_SCORE, "ranker": CROSS_ENCODER,
    "labeler": CLASSIFIER,
}  # fmt: skip
SCORES = {
    "hybrid": ["maxsim", "sparse", "embedding"],
    "lexical": ["sparse", "embedding"],
    "late": ["maxsim", "embedding"],
    "judge": ["cross_encoder"],
    "ranker": ["cross_encoder"],
}
"""The scorings of each model, the preferred one first."""
LISTED_TERMS = 20
LONG = "the river bank flows past the old mill and the miller counts his money"
"""A query over the limit of the ColBERT model for queries, but within its limit for other inputs."""
IDLE = "() => !document.querySelector('[aria-busy=true]')"


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceThread]:
    artifacts = [
        *map(export_retriever, (BGE_M3, SPLADE, COLBERT, LOGIT_SCORE)),
        *map(export_classifier, (CROSS_ENCODER, CLASSIFIER)),
    ]
    models = [load_shared(Settings(model_dir=artifact, precision="float32")) for artifact in artifacts]
    with ServiceThread(*models, models=",".join(f"{name}=x" for name in NAMES)) as running:
        yield running


@pytest.fixture
def ranking(service: ServiceThread, new_driver: NewDriver) -> PageDriver:
    """A driver of the tab with the default model, `hybrid`."""
    driver = new_driver(service.rest)
    link = [("v", "1"), ("tab", "similarity"), ("q", QUERY), *(("d", text) for text in TEXTS)]
    driver.page.goto(f"{driver.base}/#{urlencode(link)}")
    driver.page.locator("#score-terms").wait_for()
    return driver


def use(driver: PageDriver, model: str, score: str | None = None) -> dict[str, Any]:
    """Select a model and a scoring; return the response to the request of the page."""
    driver.page.select_option("#model-name", model)
    driver.page.wait_for_function(IDLE)
    if score is not None:
        driver.page.select_option("#score", score)
        driver.page.wait_for_function(IDLE)
    driver.page.locator(".sentence .score").filter(has_text=".").first.wait_for()
    route = "/v1/rerank" if score == "cross_encoder" else "/v1/similarity"
    similarity = score if score in ("maxsim", "sparse") else None
    sent = [body for body in driver.sent_bodies(route) if body.get("similarity") == similarity]
    body = next(body for body in reversed(sent) if body.get("model", "hybrid") == model)
    response: dict[str, Any] = httpx.post(driver.base + route, json=body).raise_for_status().json()
    return response


def scores_of(response: dict[str, Any]) -> list[float]:
    if "scores" in response:
        return list(response["scores"][0])
    return [result["relevance_score"] for result in sorted(response["results"], key=lambda result: result["index"])]


def check_reasons(driver: PageDriver, response: dict[str, Any], score: str) -> None:
    """Check the reasons of the first text: terms that add up to its score, or the effects of its words."""
    if score == "cross_encoder":
        explanation = next(result for result in response["results"] if result["index"] == 0)["explanation"]
        for name, effects in (("the query", explanation["query_effects"]), ("text 1", explanation["document_effects"])):
            shown = driver.page.get_by_role("group", name=f"Words of {name}").locator(".value")
            assert shown.all_inner_texts() == [format_number(effect) for effect in effects]
        return
    if score == "embedding":
        return
    pair, cells = response["pairs"][0], driver.cells("#score-terms tbody tr")
    terms = pair["matches"] if score == "maxsim" else pair["products"]
    listed, others = terms[:LISTED_TERMS], sum(term["value"] for term in terms[LISTED_TERMS:])
    values = [*(term["value"] for term in listed), *([others] if terms[LISTED_TERMS:] else []), pair["score"]]
    assert len(listed) > 1
    assert [row[-1] for row in cells] == [format_number(value) for value in values]
    heads = driver.page.locator("#score-terms tbody th").all_inner_texts()
    if score == "sparse":
        assert heads[: len(listed)] == [term["token"] for term in listed]
        return
    query, document = response["queries"][0]["units"], response["documents"][0]["units"]
    assert heads[:-1] == [query[term["query_unit"]]["text"] for term in terms]
    assert [row[0] for row in cells[:-1]] == [document[term["document_unit"]]["text"] for term in terms]


def test_each_scoring_ranks_the_texts_with_its_reasons(ranking: PageDriver) -> None:
    for model, scorings in SCORES.items():
        for score in (None, *scorings[1:]):
            response = use(ranking, model, score or scorings[0])
            scores = scores_of(response)
            label = response.get("similarity", "score")
            shown = ranking.page.locator("#similarity .score").all_inner_texts()
            ranks = [1 + sum(other > value for other in scores) for value in scores]
            assert shown == [
                f"{rank}. {label} {format_number(value)}" for value, rank in zip(scores, ranks, strict=True)
            ]
            check_reasons(ranking, response, score or scorings[0])
    assert ranking.errors == []


def test_truncate_shortens_a_query_to_the_limit_of_its_role(ranking: PageDriver) -> None:
    use(ranking, "late", "maxsim")
    query = ranking.page.get_by_label("Query", exact=True)
    query.fill(LONG)
    ranking.page.get_by_role("button", name="Truncate query").click()
    ranking.page.locator("#score-terms").wait_for()
    shortened = query.input_value()
    assert shortened
    assert LONG.startswith(shortened)
    assert len(shortened) < len(LONG)


def test_page_names_what_a_model_lacks_and_does_not_request_it(ranking: PageDriver) -> None:
    for model, scorings in SCORES.items():
        ranking.page.select_option("#model-name", model)
        options = ranking.page.locator("#score option")
        enabled = options.evaluate_all("(all) => all.filter(({ disabled }) => !disabled).map(({ value }) => value)")
        assert enabled == scorings
        assert options.filter(has_text="(not with this model)").count() == 4 - len(scorings)
        ranking.page.wait_for_function(IDLE)
    ranking.requests.clear()
    ranking.page.select_option("#model-name", "labeler")
    ranking.page.get_by_text(
        "labeler does not score texts for a query. It is a classifier with 3 labels: billing"
    ).wait_for()
    assert not ranking.page.locator("#score, #score-terms, .strip").locator("visible=true").count()
    ranking.page.wait_for_function(IDLE)
    assert not ranking.sent_bodies("/v1/rerank") + ranking.sent_bodies("/v1/similarity")
    assert ranking.errors == []


def test_link_restores_model_and_scoring(ranking: PageDriver, new_driver: NewDriver) -> None:
    use(ranking, "lexical", "embedding")
    ranking.page.wait_for_url("**score=embedding**")
    other = new_driver(ranking.base)
    other.page.goto(ranking.page.url)
    other.page.locator("#word-pairs").wait_for()
    assert [other.page.locator(f"#{name}").input_value() for name in ("model-name", "score")] == [
        "lexical",
        "embedding",
    ]
    assert {body["model"] for body in other.sent_bodies("/v1/similarity") + other.sent_bodies()} == {"lexical"}
    other.page.goto("about:blank")
    other.page.goto(f"{ranking.base}/#v=1&model=none")
    other.page.get_by_text("The link names a model that is not served.").wait_for()
    assert other.page.locator("#model-name").input_value() == "hybrid"


def test_pair_over_the_limit_is_truncated_with_the_query(ranking: PageDriver) -> None:
    """A cross-encoder reads both texts as one input of at most 64 tokens."""
    use(ranking, "ranker", "cross_encoder")
    ranking.page.get_by_label("Text 1", exact=True).fill("the river bank " * 40)
    ranking.page.get_by_role("button", name="Truncate text 1").click()
    ranking.page.locator(".sentence .score").first.filter(has_text="score").wait_for()
    assert 0 < len(ranking.page.get_by_label("Text 1", exact=True).input_value().split()) < 120


@pytest.mark.slow
def test_programs_of_a_cross_encoder_name_the_model(ranking: PageDriver, service: ServiceThread) -> None:
    response = use(ranking, "ranker", "cross_encoder")
    results = [(result["index"], result["relevance_score"]) for result in response["results"]]
    printed = json.loads(run(["bash", "-c", program(ranking, "#similarity", "curl")]))["results"]
    assert [(result["index"], result["relevance_score"]) for result in printed] == results
    scores = numbers(run([sys.executable, "-c", program(ranking, "#similarity", "Python")]))
    assert scores == pytest.approx([score for _, score in results], abs=6e-4)
    body, method = parse_command(program(ranking, "#similarity", "gRPC"))
    assert method == "attendant.v1.EncoderService/Rerank"
    with grpc.insecure_channel(service.grpc) as channel:
        message = stub(channel).Rerank(json_format.ParseDict(body, pb.RerankRequest()))
    assert [result.index for result in message.results] == [index for index, _ in results]
