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
# The title is there before the model is known, so the step, a message or a fault must be there too.
DRAWN = """() => document.querySelector("#attention :is(.sides, .fault):not([hidden]), #attention .say:not(:empty)")
    && !document.querySelector("#attention [aria-busy=true]")"""
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


def numbers(driver: PageDriver, selector: str = ".drawing .walk:not(.finder .walk) tbody tr") -> list[list[str]]:
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
    driver.page.get_by_label("Try a causal mask").check()
    rows = [row.inner_text().split() for row in driver.page.locator(".drawing tbody tr").all()]
    assert "This model has none." in said(driver)
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
    driver.page.wait_for_function("() => document.querySelectorAll('[aria-label=Vectors] tr').length === 4")
    assert said(driver).endswith("The two entries have similarity 1.000, the two inputs of the first layer 1.000.")
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


@pytest.mark.parametrize("part", ["step=13", "nothing=1"])
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
    rows = driver.page.locator(".drawing > div").first.locator("tbody tr").all_inner_texts()
    assert len(rows) == 32 + 2
    assert "more tokens, with weights that sum to" in rows[-2]
    listed = sum(float(row[-1]) for row in numbers(driver)[:-2])
    assert listed + float(numbers(driver)[-2][0]) == pytest.approx(1, abs=0.02)


def test_errors_and_missing_words_are_explained(window: PageDriver) -> None:
    driver = show(window.reset(), text="money bank grows", second="Nothing of it.", step=12)
    assert "Enter a second sentence that contains the token" in said(driver)
    driver.page.locator("#walk-text").fill("")
    driver.page.get_by_text("Type a sentence.").wait_for()
    driver.page.locator("#walk-text").fill("bank " * 400)
    fault = driver.page.locator("#attention .fault:visible")
    fault.wait_for()
    assert "256" in fault.inner_text()
    driver.page.locator("#walk-text").fill("bank")
    driver.page.wait_for_function(DRAWN)
    assert fault.count() == 0


def test_models_without_the_graphs_are_explained(new_driver: NewDriver) -> None:
    driver = new_driver()

    def without_steps(route: Any) -> None:
        response = route.fetch()
        body = response.json()
        for model in body["data"]:
            model.update(layer_outputs=[], layer_structure=None)
        route.fulfill(response=response, body=json.dumps(body))

    driver.page.route("**/v1/models", without_steps)
    driver.page.goto(f"{driver.base}/#v=1&tab=attention")
    driver.page.get_by_text("An earlier version exported this model").wait_for()
    assert not any("outputs" in body for body in driver.sent_bodies())


def test_terms_show_their_meaning(window: PageDriver) -> None:
    driver = show(window.reset(), step=3)
    driver.page.get_by_role("button", name="key", exact=True).click()
    assert driver.page.locator(".meaning").inner_text().startswith("key: The vector (k) that a token")
    assert driver.focused() == "key"
    go(driver, 5)
    assert driver.page.locator(".meaning").inner_text() == ""


def test_search_finds_the_heads_with_the_largest_weights(window: PageDriver, rest: httpx.Client) -> None:
    text = "The dog ran away because it was afraid."
    maps = rest.post("/v1/attend", json={"inputs": [text]}).json()["results"][0]["maps"]
    ranked = sorted(maps, key=lambda found: -found["matrix"][6][2])
    others = [row for row in range(1, 10) if row not in (2, 6)]
    driver = show(window.reset(), text=text, second="", start=25, step=7)
    driver.page.get_by_label("Heads in which “it” gives most weight to").select_option("dog")
    found = numbers(driver, ".finder tbody tr")
    assert found == [
        [
            format_number(item["matrix"][6][2]),
            format_number(sum(item["matrix"][row][2] for row in others) / len(others)),
        ]
        for item in ranked[:5]
    ]
    best = ranked[0]
    driver.page.get_by_role("button", name=f"layer {best['layer']}, head {best['head']}", exact=True).click()
    driver.page.wait_for_function(DRAWN)
    assert driver.page.locator("#walk-layer").input_value() == str(best["layer"])
    assert driver.page.locator("#walk-head").input_value() == str(best["head"])
    assert f"that of dog: {format_number(best['matrix'][6][2])}" in said(driver)


def test_example_of_a_pronoun_opens_at_a_head_that_links_it_to_its_noun(window: PageDriver) -> None:
    driver = show(window.reset(), step=7)
    driver.page.get_by_role("button", name="it", exact=True).first.click()
    driver.page.wait_for_function("() => document.querySelector('.say').textContent.includes('is that of dog')")
    first = driver.page.locator(".finder tbody tr", has=driver.page.locator("[id^=walk-found]")).all()
    layer, head = (driver.page.locator(f"#walk-{name}").input_value() for name in ("layer", "head"))
    assert f"layer {layer}, head {head}" in [row.locator("button").inner_text() for row in first]
    assert driver.page.locator("#walk-target option:checked").inner_text() == "dog"


def test_choice_of_the_user_ends_the_search_for_the_head_of_an_example(new_driver: NewDriver) -> None:
    """The weights of all heads, which the search needs, arrive after the user has selected a head."""
    driver = show(new_driver(), step=7)
    weights = driver.hold("**/v1/attend", '"heads":"all"')
    driver.page.get_by_role("button", name="it", exact=True).first.click()
    driver.page.locator("#attention .units [aria-pressed=true]", has_text="it").wait_for()
    driver.page.select_option("#walk-head", "3")
    weights().continue_()
    driver.page.wait_for_function(DRAWN)
    assert driver.page.locator("#walk-layer").input_value() == "1"
    assert driver.page.locator("#walk-head").input_value() == "3"


@pytest.mark.parametrize("status", [401, 500, 503])
def test_failure_of_the_numbers_is_shown_and_can_be_repaired(new_driver: NewDriver, status: int) -> None:
    driver = new_driver()
    failing = [True]

    def answer(route: Any) -> None:
        body = json.loads(route.request.post_data)
        if failing[0] and "outputs" in body:
            headers = {"retry-after": "1"} if status in (429, 503) else {}  # the page then repeats the request
            route.fulfill(status=status, json={"error": {"message": "Nothing today."}}, headers=headers)
        else:
            route.continue_()

    driver.page.route("**/v1/attend", answer)
    driver.page.goto(f"{driver.base}/#v=1&tab=attention&walkstep=7")
    driver.page.locator("#notices .card").wait_for()
    driver.page.get_by_text("Not computed. See the message at the top of the page.").wait_for()
    driver.page.locator("#walk-step[aria-busy=false]").wait_for()  # each response sends the failed request again
    failing[0] = False
    if status == 401:
        driver.page.get_by_label("API key").fill("any")
        driver.page.get_by_role("button", name="Use this key").click()
    elif status == 500:  # the page repeats the others by itself
        driver.page.get_by_role("button", name="Try again").click()
    driver.page.locator(".drawing tbody tr").first.wait_for()
    assert driver.page.locator("#notices .card").count() == 0


def test_pending_step_has_its_title_and_no_old_numbers(new_driver: NewDriver) -> None:
    driver = show(new_driver(), step=7)
    holding = [True]
    driver.page.route("**/v1/attend", lambda route: None if holding[0] else route.continue_())
    driver.page.locator("#walk-layer").select_option("4")
    driver.page.locator("#walk-step.stale").wait_for()  # the numbers of layer 1, dimmed
    driver.page.get_by_role("button", name="Next").click()
    assert driver.page.locator("#walk-title").inner_text() == "9. The values are mixed"
    assert driver.page.locator(".drawing").is_hidden()
    assert driver.page.locator("#walk-step").get_attribute("aria-busy") == "true"
    holding[0] = False
    driver.page.locator("#walk-layer").select_option("5")  # aborts the requests that are held
    driver.page.locator(".drawing tbody tr").first.wait_for()
    assert driver.page.locator("#walk-layer").input_value() == "5"


def test_second_sentence_that_is_too_long_does_not_stop_the_steps(window: PageDriver) -> None:
    driver = show(window.reset(), step=7)
    driver.page.locator("#walk-second").fill("river bank flows " * 120)
    fault = driver.page.locator("#attention .fault:visible")
    fault.wait_for()
    assert fault.inner_text().startswith("The second sentence: too long (")
    go(driver, 9)
    assert len(numbers(driver)) == 6
    fault.get_by_role("button").click()
    driver.page.get_by_text("Compared with bank").wait_for()
    assert driver.page.locator("#walk-second").input_value().startswith("river bank flows river")


def test_text_can_be_cleared_and_typed_again(window: PageDriver) -> None:
    driver = show(window.reset(), text="money bank grows", start=0, step=7)
    rows = numbers(driver)
    driver.page.locator("#walk-text").fill("")
    driver.page.get_by_text("Type a sentence.").wait_for()
    assert driver.page.locator("#attention .units button").count() == 0
    driver.page.locator("#walk-text").fill("\u200b")
    driver.page.get_by_text("The sentence has no tokens of its own.").wait_for()
    driver.page.locator("#walk-text").fill("money bank grows")
    driver.page.locator(".drawing tbody tr").first.wait_for()
    assert numbers(driver) == rows


def test_word_is_followed_through_edits(window: PageDriver) -> None:
    driver = show(window.reset(), start=6)
    for text in ("the money bank grows", "unbelievable bank", "👩‍👩‍👧 money bank", "שלום bank"):
        driver.page.locator("#walk-text").fill(text)
        driver.page.wait_for_function(DRAWN)
        driver.page.wait_for_function(f"() => {json.dumps(text)}.includes(document.querySelector('#walk-text').value)")
        driver.page.locator("#attention .units [aria-pressed=true]", has_text="bank").wait_for()


def test_vectors_of_the_positions_are_those_of_the_model(window: PageDriver, rest: httpx.Client) -> None:
    """Each row shows the cosine to the followed token's position; the note shows it for the second sentence."""
    body = {"inputs": [CHECK, RIVER], "outputs": ["position"], "layers": [1], "encoding_format": "base64"}
    results = rest.post("/v1/attend", json=body).json()["results"]
    first, second = (array(result["layer_outputs"][0]["position"]) for result in results)
    units = [unit / np.linalg.norm(unit, axis=1, keepdims=True) for unit in (first, second)]
    driver = show(window.reset(), text=CHECK, second=RIVER, start=25, step=1)
    selector = ".drawing .figure tbody tr"
    driver.page.locator(selector).first.wait_for()
    assert [row[0] for row in numbers(driver, selector)] == [format_number(value) for value in units[0] @ units[0][8]]
    bank = units[1][5] @ units[0][8]
    note = "bank has position 9, in the second sentence position 6. The vectors of these two have similarity "
    driver.page.get_by_text(note + format_number(bank), exact=False).wait_for()


def test_special_tokens_can_be_followed(window: PageDriver, rest: httpx.Client) -> None:
    """The link still names the token after an edit of the text before it."""
    driver = show(window.reset(), step=7)
    driver.page.get_by_role("button", name="[SEP]", exact=True).click()
    driver.page.wait_for_url("**walkstart=-2**")
    for text in ("money bank grows", "the money bank grows"):
        driver.page.locator("#walk-text").fill(text)
        body = {"inputs": [text], "outputs": ["weights"], "layers": [1], "encoding_format": "base64"}
        (result,) = rest.post("/v1/attend", json=body).json()["results"]
        weights = array(result["layer_outputs"][0]["weights"])[0, -1]
        driver.page.locator("#walk-head").select_option("0")
        expected = json.dumps([format_number(weight) for weight in weights])
        selector = ".drawing .walk:not(.finder .walk) tbody tr:not(.total)"
        shown = f"[...document.querySelectorAll('{selector}')]"
        last = "(row) => row.querySelector('td:last-child .number').textContent"
        driver.page.wait_for_function(f"() => JSON.stringify({shown}.map({last})) === JSON.stringify({expected})")
    go(driver, 2)
    assert "The two entries have similarity 1.000" in said(driver)
    go(driver, 13)
    show(driver, start=-9, step=1)
    assert driver.page.locator("#attention .units [aria-pressed=true]").inner_text() == "money"
    assert driver.errors == []


@pytest.mark.parametrize("part", ["layer=99", "start=9999"])
def test_values_out_of_range_are_replaced(window: PageDriver, part: str) -> None:
    driver = show(window.reset(), step=7, **dict([part.split("=")]))
    assert len(numbers(driver)) == 6
    assert driver.errors == []


def test_focus_stays_on_a_control_that_redraws_the_step(window: PageDriver) -> None:
    driver = show(window.reset(), step=9)
    driver.page.get_by_role("button", name="head 3").focus()
    driver.page.keyboard.press("Enter")
    driver.page.wait_for_function(DRAWN)
    assert driver.focused() == "head 3"
    driver.page.keyboard.press("ArrowRight")
    driver.page.wait_for_function("() => document.querySelector('#walk-title').textContent.startsWith('11.')")
    assert driver.page.evaluate("document.activeElement.id") == "walk-step"
    driver.page.keyboard.press("ArrowRight")
    driver.page.wait_for_function("() => document.querySelector('#walk-title').textContent.startsWith('12.')")


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
