"""The tab "How attention works": its numbers, its controls, and how other parts of the page open it."""

import base64
import json
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver, format_number

STEPS = 13
DRAWN = """() => document.querySelector("#walk-title") && !document.querySelector("#attention [aria-busy=true]")"""
NUMBERS = """(selector) => [...document.querySelectorAll(selector)].map((row) => [...row.querySelectorAll(".number")]
    .map((number) => number.textContent))"""
CHECK = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."


def show(driver: PageDriver, **parts: Any) -> PageDriver:
    """Open a link to the tab, and wait for its step."""
    driver.page.goto("about:blank")
    named = {f"walk{name}": str(value) for name, value in parts.items()}
    driver.page.goto(f"{driver.base}/#{urlencode({'v': '1', 'tab': 'attention', **named})}")
    driver.page.wait_for_function(DRAWN)
    return driver


def go(driver: PageDriver, step: int) -> PageDriver:
    driver.page.locator("#step").fill(str(step))
    driver.page.wait_for_function(f"() => document.querySelector('#walk-title').textContent.startsWith('{step}.')")
    driver.page.wait_for_function(DRAWN)
    return driver


def numbers(driver: PageDriver, selector: str = ".drawing .walk tbody tr") -> list[list[str]]:
    rows: list[list[str]] = driver.page.evaluate(NUMBERS, selector)
    return rows


def said(driver: PageDriver) -> str:
    return driver.page.locator(".say").inner_text()


def array(tensor: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(tensor["data"]), np.float32).reshape(tensor["shape"]).astype(np.float64)


@pytest.fixture(scope="module")
def outputs(rest: httpx.Client) -> dict[str, Any]:
    """The steps of "bank" (token 8 of 11) in layer 2, from the API."""
    names = ["input", "queries", "keys", "values", "scores", "weights", "heads", "projected", "residual", "output"]
    body = {"inputs": [CHECK], "outputs": names, "rows": [8], "layers": [2], "encoding_format": "base64"}
    (result,) = rest.post("/v1/attend", json=body).json()["results"]
    return {name: array(result["layer_outputs"][0][name]) for name in names}


def test_numbers_of_the_steps_follow_from_queries_keys_and_values(window: PageDriver, outputs: dict[str, Any]) -> None:
    """Each step is computed here from the one before, with numpy."""
    head = 5
    query, keys, values = outputs["queries"][head, 0], outputs["keys"][head], outputs["values"][head]
    dots = keys @ query
    scores = dots / np.sqrt(32)
    weights = np.exp(scores) / np.exp(scores).sum()
    parts = weights[:, None] * values

    driver = show(window.reset(), text=CHECK, second=RIVER, start=25, layer=2, head=head)
    assert "number 2924" in said(driver)
    go(driver, 5)
    assert [row[0] for row in numbers(driver)] == [format_number(value) for value in dots]
    best = driver.page.locator("#attention .units button").nth(dots.argmax()).inner_text()
    assert f"bank, the best fit is {best} with {format_number(dots.max())}." in said(driver)
    go(driver, 6)
    assert [row[:3] for row in numbers(driver)] == [
        [format_number(value) for value in row] for row in zip(dots, scores, weights, strict=True)
    ]
    driver.page.get_by_label("Without the division").check()
    extreme = np.exp(dots - dots.max()) / np.exp(dots - dots.max()).sum()
    assert [row[2] for row in numbers(driver)] == [format_number(value) for value in extreme]
    go(driver, 8)
    assert [row[-1] for row in numbers(driver)] == [*(format_number(value) for value in weights), "1.000"]
    go(driver, 9)
    lengths = np.linalg.norm(parts, axis=1)
    assert [row[-1] for row in numbers(driver)] == [
        format_number(value) for value in [*lengths, np.linalg.norm(parts.sum(axis=0))]
    ]
    go(driver, 11)
    expected = [float(np.linalg.norm(outputs[name][0])) for name in ("input", "projected", "residual")]
    assert numbers(driver) == [[format_number(value)] for value in expected]
    go(driver, 12)
    assert numbers(driver)[-1] == [format_number(float(np.linalg.norm(outputs["output"][0])))]
    assert driver.errors == []


def test_causal_mask_is_an_explanation(window: PageDriver, outputs: dict[str, Any]) -> None:
    driver = show(window.reset(), text=CHECK, start=14, layer=2, head=3, step=6)
    usual = numbers(driver)
    driver.page.get_by_label("Show what a causal mask would do").check()
    rows = [row.inner_text().split() for row in driver.page.locator(".drawing tbody tr").all()]
    visible = [row[2] for row in rows]
    assert visible == ["yes"] * (visible.index("no")) + ["no"] * visible.count("no")
    assert rows[visible.index("no") - 1][0] == "check"
    assert sum(float(row[3]) for row in rows) == pytest.approx(1, abs=0.01)
    go(driver, 8)
    assert [row[-1] for row in numbers(driver)][:-1] == [row[-1] for row in usual]


def test_word_moves_apart_from_itself(window: PageDriver, rest: httpx.Client) -> None:
    """The same word at the same position begins with similarity 1; step 13 shows it after each layer."""
    occurrences = [{"text": "money bank grows", "span": [6, 10]}, {"text": "river bank flows", "span": [6, 10]}]
    layers = rest.post("/v1/compare", json={"occurrences": occurrences, "layers": "all"}).json()["layers"]
    cosines = [format_number(layer["cosine"][0][1]) for layer in layers]
    driver = show(window.reset(), step=1)
    driver.page.wait_for_function("() => document.querySelectorAll('.drawing tr').length === 4")
    assert said(driver).endswith("In both sentences it is identical: 1.000. As input of the first layer: 1.000.")
    go(driver, 13)
    for layer in range(1, 6):
        driver.page.locator(".say", has_text=f"It is {cosines[layer]} now, and {cosines[-1]} at the end.").wait_for()
        driver.page.get_by_role("button", name=f"Follow it through layer {layer + 1}").click()
        driver.page.wait_for_function("() => document.querySelector('#walk-title').textContent.startsWith('3.')")
        go(driver, 13)
    driver.page.locator(".say", has_text=f"It is {cosines[6]} now.").wait_for()


def test_keyboard_moves_through_the_steps(window: PageDriver) -> None:
    driver = show(window.reset())
    titles = [driver.page.locator("#walk-title").inner_text()]
    driver.page.get_by_role("button", name="Next").focus()
    for step in range(2, STEPS + 1):
        driver.page.keyboard.press("ArrowRight")
        driver.page.wait_for_function(f"() => document.querySelector('#walk-title').textContent.startsWith('{step}.')")
        titles.append(driver.page.locator("#walk-title").inner_text())
    assert len(set(titles)) == STEPS
    driver.page.locator("#step").focus()
    driver.page.keyboard.press("ArrowLeft")
    assert driver.page.locator("#walk-title").inner_text() == titles[-2]
    driver.page.get_by_role("button", name="[SEP]").wait_for()
    driver.page.get_by_role("button", name="money", exact=True).click()
    driver.page.wait_for_function(DRAWN)
    assert driver.page.locator("#attention .units [aria-pressed=true]").inner_text() == "money"
    driver.page.wait_for_url("**walkstart=0**")
    assert driver.errors == []


def test_link_restores_the_step(window: PageDriver) -> None:
    driver = show(window.reset(), text=CHECK, second=RIVER, start=14, layer=3, head=7, step=8)
    title, rows = driver.page.locator("#walk-title").inner_text(), numbers(driver)
    driver.page.reload()
    driver.page.wait_for_function(DRAWN)
    assert (driver.page.locator("#walk-title").inner_text(), numbers(driver)) == (title, rows)
    assert driver.page.locator("#walk-head").input_value() == "7"


@pytest.mark.parametrize("part", ["step=13", "layer=x", "head=-1", "segment=2", "nothing=1"])
def test_invalid_link_is_reported(window: PageDriver, part: str) -> None:
    driver = window.reset()
    driver.page.goto("about:blank")
    driver.page.goto(f"{driver.base}/#v=1&tab=attention&walk{part}")
    assert "The link is not valid" in driver.page.locator("#notices .card").inner_text()


def test_cell_of_a_map_opens_its_token_layer_and_head(driver: PageDriver) -> None:
    driver.choose(kind="probs", combine="none", head="4").slide(3)
    driver.page.locator('#map [data-place="3:2"]').click()
    driver.page.wait_for_function(DRAWN)
    page = driver.page
    assert page.get_by_role("tab", selected=True).inner_text() == "How attention works"
    assert page.locator("#walk-text").input_value() == CHECK
    assert page.locator("#attention .units [aria-pressed=true]").inner_text() == "check"
    assert (page.locator("#walk-layer").input_value(), page.locator("#walk-head").input_value()) == ("3", "4")
    assert page.locator("#walk-title").inner_text().startswith("8.")
    page.get_by_role("tab", name="Word in context").click()
    page.locator('#map [data-place="0:0"]').focus()
    page.keyboard.press("Enter")
    page.wait_for_function(DRAWN)
    assert page.locator("#attention .units [aria-pressed=true]").inner_text() == "He"


def test_pair_can_be_followed(window: PageDriver) -> None:
    texts = {"text": "The bank approved her loan.", "pair": "She can borrow the money."}
    driver = show(window.reset(), **texts, start=8, segment=1)
    assert driver.page.locator("#attention .units [aria-pressed=true]").inner_text() == "borrow"
    driver.page.get_by_role("button", name="Remove", exact=True).last.click()
    driver.page.wait_for_function(DRAWN)
    assert "borrow" not in driver.page.locator("#attention .units").inner_text()


def test_long_text_lists_the_tokens_with_the_largest_weights(window: PageDriver) -> None:
    text = " ".join(f"word {number}" for number in range(60))
    driver = show(window.reset(), text=text, second="", start=0, step=7)
    rows = driver.page.locator(".drawing tbody tr").all_inner_texts()
    assert len(rows) == 32 + 2
    assert "more tokens, with weights that sum to" in rows[-2]
    listed = sum(float(row[-1]) for row in numbers(driver)[:-2])
    assert listed + float(numbers(driver)[-2][0]) == pytest.approx(1, abs=0.02)


def test_errors_and_missing_words_are_explained(window: PageDriver) -> None:
    driver = show(window.reset(), text="money bank grows", second="Nothing of it.", step=12)
    assert "Enter a second sentence that contains the word" in said(driver)
    driver.page.locator("#walk-text").fill("")
    driver.page.get_by_text("Type a sentence.").wait_for()
    driver.page.locator("#walk-text").fill("bank " * 400)
    fault = driver.page.locator("#attention .fault")
    fault.wait_for()
    assert "256" in fault.inner_text()
    driver.page.locator("#walk-text").fill("bank")
    driver.page.wait_for_function(DRAWN)
    assert fault.is_hidden()


def test_models_without_the_graphs_are_explained(new_driver: NewDriver) -> None:
    driver = new_driver()

    def without_steps(route: Any) -> None:
        response = route.fetch()
        body = response.json()
        for model in body["data"]:
            model.update(layer_outputs=[], layer_form=None)
        route.fulfill(response=response, body=json.dumps(body))

    driver.page.route("**/v1/models", without_steps)
    driver.page.goto(f"{driver.base}/#v=1&tab=attention")
    driver.page.get_by_text("An earlier version exported this model").wait_for()
    assert not any("outputs" in body for body in driver.sent_bodies())


def test_terms_lead_to_the_glossary(window: PageDriver) -> None:
    driver = show(window.reset(), step=3)
    driver.page.get_by_role("button", name="key", exact=True).click()
    assert driver.page.locator("#glossary").get_attribute("open") is not None
    assert driver.focused() == "key"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_every_step_is_accessible_and_fits(new_driver: NewDriver, width: int, scheme: str) -> None:
    window = new_driver(viewport={"width": width, "height": 800}, color_scheme=scheme)
    driver = show(window, text=CHECK, second=RIVER, start=25)
    driver.page.locator("#glossary > summary").click()
    for step in range(1, STEPS + 1):
        go(driver, step)
        result = Axe().run(driver.page)
        assert result.violations_count == 0, (step, result.generate_report())
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert driver.page.evaluate(wide) == 0, step
    assert driver.errors == []
