""" "About the model": training, source, license, attention and evaluations, all rendered as text."""

from typing import Any

import httpx
import pytest
from playwright.sync_api import Route

from tests.browser.page_driver import PageDriver
from tests.model_records import EVALUATIONS as RECORDS
from tests.model_records import TRAINING

pytestmark = pytest.mark.slow

EVALUATIONS = [record.model_dump(mode="json") for record in RECORDS]
MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"


def fulfill_model(driver: PageDriver, **fields: Any) -> None:
    """Override fields of the model in the /v1/models response."""

    def respond(route: Route) -> None:
        response = route.fetch()
        (model,) = response.json()["data"]
        route.fulfill(response=response, json={"data": [model | fields]})

    driver.page.route("**/v1/models", respond)


def reject_scores(route: Route) -> None:
    """Respond like a server with a causal model."""
    if (route.request.post_data_json or {}).get("kind") == "scores":
        route.fulfill(status=422, json={"error": {"message": "kind: not supported.", "reason": "UNSUPPORTED_BY_MODEL"}})
    else:
        route.continue_()


@pytest.fixture
def fresh(window: PageDriver) -> PageDriver:
    """A shared window that has not opened the page yet."""
    return window.reset()


def facts(driver: PageDriver) -> dict[str, str]:
    driver.page.locator("#about > summary").click()
    about = driver.page.locator("#about")
    terms, descriptions = (about.locator(name).all_inner_texts() for name in ("dt", "dd"))
    return dict(zip(terms, descriptions, strict=True))


def test_model_of_others_has_source_and_no_training(fresh: PageDriver, rest: httpx.Client) -> None:
    info = rest.get("/v1/model").json()
    assert facts(fresh.open()) == {
        "Name": info["name"],
        "Training": "Trained by others.",
        "Source": info["source"],
        "License": "apache-2.0",
        "Attention": "Each token attends to all tokens of its text.",
    }
    assert fresh.page.locator("#evaluations").count() == 0


def test_part_is_folded_when_the_page_opens(fresh: PageDriver) -> None:
    about = fresh.open().page.locator("#about")
    assert about.is_visible()
    assert not about.locator("dl").is_visible()


def test_trained_model_has_its_training_and_evaluations(fresh: PageDriver) -> None:
    fulfill_model(
        fresh, training=TRAINING.model_dump(mode="json"), evaluations=EVALUATIONS, attention="causal", license=None
    )
    shown = facts(fresh.open())
    assert shown["Training"] == (
        "masked language modeling: 2,000 steps over 32,768,000 tokens in bfloat16. The validation loss is 2.718."
    )
    assert shown["Texts"] == "corpus.txt, 52.4 MB\nnotes.jsonl, 1.2 kB"
    assert (shown["Initial model"], shown["Teacher"]) == ("all-MiniLM-L6-v2", "all-mpnet-base-v2")
    assert shown["License"] == "unknown"
    assert shown["Attention"] == "Each token attends to itself and to the tokens before it, never to later ones."
    rows = fresh.page.locator("#evaluations tbody tr")
    assert [row.locator("th, td").all_inner_texts() for row in rows.all()] == [
        ["similarity", "pairs.tsv", "spearman", "0.812", "0.790 to 0.833"],
        ["retrieval", "queries.jsonl", "mrr", "0.500", "none"],
    ]


def test_training_from_random_weights_has_no_teacher(fresh: PageDriver) -> None:
    training = TRAINING.model_dump(mode="json") | {"initial_model": None, "teacher": None}
    fulfill_model(fresh, training=training)
    shown = facts(fresh.open())
    assert shown["Initial model"] == "None: training started from random weights."
    assert "Teacher" not in shown


def test_another_default_model_is_reported(fresh: PageDriver, rest: httpx.Client) -> None:
    fulfill_model(fresh, name="earlier-model")
    fresh.open().type(1, "The bank of the river.")
    served = rest.get("/v1/model").json()["name"]
    message = f"The server now uses model {served}. Reload the page to show its description."
    fresh.page.locator("#notices").get_by_text(message).wait_for()
    assert fresh.page.get_by_role("button", name="Try again").count() == 0


def test_values_of_the_artifact_are_text(fresh: PageDriver) -> None:
    names = {"objective": MARKUP, "initial_model": MARKUP, "teacher": MARKUP, "precision": MARKUP}
    training = TRAINING.model_dump(mode="json") | names | {"data": [{"name": MARKUP, "size": 1}]}
    evaluations = [EVALUATIONS[0] | {"task": MARKUP, "file": MARKUP, "measure": MARKUP}]
    fulfill_model(fresh, name=MARKUP, source=MARKUP, license=MARKUP, training=training, evaluations=evaluations)
    shown = facts(fresh.open())
    assert [shown[name] for name in ("Name", "Initial model", "Teacher", "Source", "License")] == [MARKUP] * 5
    assert fresh.page.locator("#about :is(img, b), header :is(img, b)").count() == 0
    assert fresh.errors == []


def test_kinds_follow_the_model(fresh: PageDriver) -> None:
    """A link to the scores of a causal model, which has none, must fall back to attention weights.

    The page requests maps before it knows the model.
    """
    fulfill_model(fresh, attention="causal", attention_kinds=["probs", "norm", "block_norm", "projection"])
    fresh.page.route("**/v1/attend", reject_scores)
    fresh.open_texts("The bank lends.", "A river bank.", explore=True, kind="scores")
    options = fresh.page.locator("#kind option").evaluate_all("(all) => all.map(({ value }) => value)")
    assert options == ["probs", "projection", "norm", "block_norm"]
    assert fresh.page.locator("#kind").input_value() == "probs"
    assert fresh.sent_bodies()[-1]["kind"] == "probs"
    assert fresh.page.locator("#notices > *").count() == 0
    assert fresh.page.locator("#map td").count() > 0
