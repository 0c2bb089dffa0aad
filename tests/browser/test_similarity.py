"""The tab of similarity: scores, the word pairs that add up to a score, and tinted words."""

import json
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import Route

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver, format_number

ROUTE = "/v1/similarity"
QUERY = "How do I open a bank account?"
OPAQUE = """(color) => {
    const canvas = document.querySelector("#similarity .heatmap");
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const opaque = pixels.findIndex((value, place) => place % 4 === 3 && value === 255);
    return color.every((value, channel) => pixels[opaque - 3 + channel] === value);
}"""
RESULT = "() => document.querySelector('#word-pairs') && !document.querySelector('[aria-busy=true]')"


def units(text: str) -> list[dict[str, Any]]:
    """Return the words of a text that are separated by spaces."""
    words, start = [], 0
    for word in text.split():
        start = text.index(word, start)
        words.append({"text": word, "start": start, "end": start + len(word), "segment": 0, "special": False})
        start += len(word)
    return words


def response_to(body: dict[str, Any], unavailable: str | None = None) -> dict[str, Any]:
    """Return a response with negative and positive contributions, whose sum and rest are the score."""
    pairs = []
    for place, document in enumerate(body["documents"]):
        rows, columns = units(body["queries"][0]), units(document)
        values = [[((3 * i + 5 * j) % 11 - 3) / 100 for j in range(len(columns))] for i in range(len(rows))]
        rest = {"special_tokens": 0.031, "prompt": 0.0, "bias": -0.004, "dropped": 0.0}
        score = sum(map(sum, values)) + sum(rest.values())
        pairs.append(
            {
                "query": 0,
                "document": place,
                "score": score,
                "contributions": None if unavailable else values,
                "rest": None if unavailable else rest,
                "query_effects": [(i % 3 - 1) / 50 for i in range(len(rows))],
                "document_effects": [(j % 4 - 1) / 40 for j in range(len(columns))],
            }
        )
    sides = {"token_count": 9, "truncated": False}
    return {
        "model": "m",
        "precision": "float32",
        "similarity": "cosine",
        "scores": [[pair["score"] for pair in pairs]],
        "queries": [sides | {"units": units(text)} for text in body["queries"]],
        "documents": [sides | {"units": units(text)} for text in body["documents"]],
        "pairs": pairs,
        "contributions_unavailable": unavailable,
    }


@pytest.fixture
def tab(opened: PageDriver) -> PageDriver:
    """The tab, with responses of the server."""
    opened.page.get_by_role("tab", name="Similarity").click()
    opened.page.wait_for_function(RESULT)
    return opened


def intercept(driver: PageDriver, unavailable: str | None = None) -> None:
    """Answer the requests of the tab with synthetic responses."""

    def answer(route: Route) -> None:
        route.fulfill(json=response_to(json.loads(route.request.post_data or ""), unavailable))

    driver.page.route(f"**{ROUTE}", answer)


def last_pair(driver: PageDriver, place: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the response to the last request of the tab, and one of its pairs."""
    with driver.page.expect_response(f"**{ROUTE}") as received:
        driver.page.evaluate(
            "fetch('v1/similarity', { method: 'POST', headers: { 'content-type': 'application/json' },"
            f" body: {json.dumps(json.dumps(driver.sent_bodies(ROUTE)[-1]))} }})"
        )
    body: dict[str, Any] = received.value.json()
    return body, body["pairs"][place]


def number(text: str) -> float:
    return float(text.replace("\u2212", "-"))


def test_tab_requests_the_explanation_of_every_text(tab: PageDriver) -> None:
    (body,) = tab.sent_bodies(ROUTE)
    assert body["queries"] == [QUERY]
    assert len(body["documents"]) == 2
    assert (body["explain"], body["unit"], body["effect"]) == (True, "word", "leave_one_out")


def test_tab_sends_no_request_before_it_is_selected(opened: PageDriver) -> None:
    assert opened.sent_bodies(ROUTE) == []


@pytest.mark.parametrize("place", [0, 1])
def test_heat_map_and_its_sums_equal_the_response(tab: PageDriver, place: int) -> None:
    """The second text has negative contributions."""
    tab.page.get_by_label(f"Show the word pairs of text {place + 1}").check()
    _, pair = last_pair(tab, place)
    values = pair["contributions"]
    sums = [sum(column) for column in zip(*values, strict=True)]
    expected = [[*row, sum(row)] for row in values] + [[*sums, sum(sums)]]
    shown = tab.cells("#word-pairs tbody tr")
    assert shown == [[format_number(value) for value in row] for row in expected]
    negative = sum(value < 0 for row in values for value in row)
    assert (negative > 0) is (place == 1)
    assert tab.page.locator("#word-pairs td.negative").count() == negative


def test_terms_add_up_to_the_score(tab: PageDriver) -> None:
    _, pair = last_pair(tab)
    *terms, score = [number(cell) for (cell,) in tab.cells("#terms tr")]
    assert sum(terms) == pytest.approx(score, abs=0.0005 * (len(terms) + 1))
    assert score == pytest.approx(pair["score"], abs=0.0005)
    labels = tab.page.locator("#terms th").all_inner_texts()
    assert labels == ["pairs of words", "special tokens", "score"]  # terms that are 0 are left out


def test_score_is_beside_each_text_and_a_choice_shows_its_word_pairs(tab: PageDriver) -> None:
    body, _ = last_pair(tab)
    scores = tab.page.locator("#similarity .score").all_inner_texts()
    assert scores == [f"{body['similarity']} {format_number(score)}" for score in body["scores"][0]]
    count = len(tab.sent_bodies(ROUTE))
    tab.page.get_by_label("Show the word pairs of text 2").check()
    heads = tab.page.locator("#word-pairs thead th").all_inner_texts()
    assert heads == [*(unit["text"] for unit in body["documents"][1]["units"]), "sum"]
    assert len(tab.sent_bodies(ROUTE)) == count


@pytest.mark.parametrize("tint", ["sum", "effect"])
def test_words_are_tinted_in_place(tab: PageDriver, tint: str) -> None:
    """By the sum of their contributions, or by the effect of leaving them out."""
    tab.page.select_option("#tint", tint)
    meaning = {
        "sum": "The sum of the row or column",
        "effect": "How much the score falls if the vector of the word is left out.",
    }
    assert tab.page.locator("#tint-meaning").inner_text().startswith(meaning[tint])
    _, pair = last_pair(tab)
    sums = [
        [sum(row) for row in pair["contributions"]],
        [sum(column) for column in zip(*pair["contributions"], strict=True)],
    ]
    expected = sums if tint == "sum" else [pair["query_effects"], pair["document_effects"]]
    for name, values in zip(("Words of the query", "Words of text 1"), expected, strict=True):
        words = tab.page.get_by_role("group", name=name)
        assert words.locator(".value").all_inner_texts() == [format_number(value) for value in values]
        assert words.locator(".unit.negative").count() == sum(value < 0 for value in values)


def test_own_texts_are_compared_once_per_pause(tab: PageDriver) -> None:
    before = len(tab.sent_bodies(ROUTE))
    tab.page.get_by_label("Query", exact=True).fill("")
    tab.page.get_by_label("Query", exact=True).press_sequentially("Where is the river?", delay=10)
    tab.page.wait_for_function("() => document.querySelector('#word-pairs tbody th')?.textContent === 'Where'")
    bodies = tab.sent_bodies(ROUTE)[before:]
    assert len(bodies) <= 2
    assert bodies[-1]["queries"] == ["Where is the river?"]


def test_previous_values_are_dimmed_while_a_request_is_pending(tab: PageDriver) -> None:
    """They do not disappear, so that the page does not jump."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    tab.page.route(f"**{ROUTE}", hold)
    with tab.page.expect_request(f"**{ROUTE}"):
        tab.page.get_by_label("Query", exact=True).fill("Where is the river?")
    assert tab.page.locator("#similarity .stale #word-pairs").is_visible()
    assert "".join(tab.page.locator("#similarity .score").all_inner_texts()) == ""
    held[0].continue_()
    tab.page.wait_for_function("() => !document.querySelector('#similarity .stale')")
    assert tab.page.locator("#word-pairs tbody th").first.inner_text() == "Where"


def test_texts_can_be_added_and_removed(tab: PageDriver) -> None:
    tab.page.get_by_role("button", name="Add a text").click()
    assert tab.page.evaluate("document.activeElement.id") == "text-2"
    tab.page.keyboard.insert_text("A third text.")
    tab.page.wait_for_function("() => document.querySelectorAll('#similarity .score')[2].textContent !== ''")
    assert tab.sent_bodies(ROUTE)[-1]["documents"][2] == "A third text."
    for _ in range(2):
        tab.page.get_by_role("button", name="Remove text 1").click()
    tab.page.wait_for_function("() => document.querySelectorAll('#similarity .score').length === 1")
    assert tab.page.get_by_role("button", name="Remove text 1").count() == 0
    assert tab.page.get_by_label("Text 1", exact=True).input_value() == "A third text."


def test_blank_query_has_no_numbers(tab: PageDriver) -> None:
    tab.page.get_by_label("Query", exact=True).fill(" ")
    tab.page.wait_for_function("() => !document.querySelector('#word-pairs')?.checkVisibility()")
    assert "".join(tab.page.locator("#similarity .score").all_inner_texts()) == ""


def test_link_restores_the_tab(tab: PageDriver, new_driver: NewDriver) -> None:
    tab.page.get_by_label("Text 2", exact=True).fill("Banks & rivers: 50%?")
    tab.page.get_by_label("Show the word pairs of text 2").check()
    tab.page.select_option("#tint", "effect")
    tab.page.wait_for_url("**tint=effect")
    other = new_driver()
    other.page.goto(tab.page.url)
    other.page.wait_for_function(RESULT)
    assert other.page.get_by_role("tab", name="Similarity").get_attribute("aria-selected") == "true"
    assert other.page.get_by_label("Text 2", exact=True).input_value() == "Banks & rivers: 50%?"
    assert other.page.get_by_label("Show the word pairs of text 2").is_checked()
    assert other.page.locator("#tint").input_value() == "effect"
    assert other.cells("#word-pairs tbody tr") == tab.cells("#word-pairs tbody tr")


@pytest.mark.parametrize("reason", ["max_pooling", "nonlinear_dense_layers"])
def test_unavailable_contributions_are_explained(opened: PageDriver, reason: str) -> None:
    """The effects of words are still shown."""
    intercept(opened, reason)
    opened.page.get_by_role("tab", name="Similarity").click()
    opened.page.get_by_text("Contributions are not available:").wait_for()
    assert not opened.page.locator("#terms, #word-pairs").first.is_visible()
    words = opened.page.get_by_role("group", name="Words of the query")
    assert words.locator(".value").all_inner_texts()[:3] == ["\u22120.020", "0.000", "0.020"]


def test_long_texts_are_an_image_with_the_largest_pairs(opened: PageDriver) -> None:
    intercept(opened)
    opened.page.get_by_role("tab", name="Similarity").click()
    opened.page.get_by_label("Text 1", exact=True).fill("We walked along the bank until dark. " * 9)
    opened.page.wait_for_function("() => document.querySelector('#similarity .heatmap')")
    assert opened.page.evaluate("document.querySelector('#similarity .heatmap').width") == 63
    assert opened.page.locator("#word-pairs tbody tr").count() == 20


def test_error_names_the_text(opened: PageDriver) -> None:
    error = {
        "message": "documents[1]: too long (400 tokens, limit 256).",
        "field": "documents[1]",
        "limit": 256,
        "actual": "400",
    }
    opened.page.route(f"**{ROUTE}", lambda route: route.fulfill(status=422, json={"error": error}))
    opened.page.get_by_role("tab", name="Similarity").click()
    message = opened.page.get_by_role("alert").inner_text()
    assert message == "Text 2: too long (400 tokens, limit 256). Shorten it."


def test_keyboard_reaches_the_cells(tab: PageDriver) -> None:
    tab.tab_to("#word-pairs td")
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowDown")
    assert tab.page.evaluate("document.activeElement.dataset.place") == "1:1"
    assert tab.focused() == tab.page.locator("#similarity .readout").inner_text()
    tab.page.keyboard.press("Control+End")
    assert tab.focused().startswith("sum of all pairs of words: ")


def test_model_with_cls_pooling_has_effects_by_occlusion(opened: PageDriver, rest: httpx.Client) -> None:
    """The server rejects leave_one_out for cls pooling. A link sends no request before the page knows the model."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    opened.page.route("**/v1/model", hold)
    intercept(opened)
    opened.page.goto("about:blank")
    opened.page.goto(f"{opened.base}/#v=1&tab=similarity")
    opened.page.get_by_role("tab", name="Similarity", selected=True).wait_for()
    opened.settle()
    assert opened.sent_bodies(ROUTE) == []
    held[0].fulfill(json=rest.get("/v1/model").json() | {"pooling": "cls"})
    opened.page.get_by_text("The words show the effect of removing each word.").wait_for()
    assert [body["effect"] for body in opened.sent_bodies(ROUTE)] == ["occlusion"]
    assert not opened.page.locator("#tint").is_visible()
    words = opened.page.get_by_role("group", name="Words of the query")
    assert words.locator(".value").all_inner_texts()[:3] == ["\u22120.020", "0.000", "0.020"]
    meaning = opened.page.locator("#tint-meaning").inner_text()
    assert meaning == "How much the score falls if the word is removed from the text. Orange: the score rises."


def test_removal_of_a_text_keeps_the_shown_one(tab: PageDriver) -> None:
    tab.page.get_by_role("button", name="Add a text").click()
    tab.page.keyboard.insert_text("A third text.")
    tab.page.get_by_label("Show the word pairs of text 2").check()
    tab.page.get_by_role("button", name="Remove text 1").click()
    assert tab.page.get_by_label("Show the word pairs of text 1").is_checked()
    tab.page.wait_for_function("() => document.querySelectorAll('#word-pairs thead span')[1]?.textContent === 'walked'")
    assert "columns the words of text 1." in tab.page.locator("#word-pairs caption").inner_text()
    tab.page.get_by_role("button", name="Remove text 2").click()
    assert tab.page.get_by_label("Text 1", exact=True).input_value().startswith("We walked")


def test_missing_texts_are_named(tab: PageDriver) -> None:
    """The query, or the selected text if other texts exist."""
    hint = tab.page.locator("#similarity-hint")
    assert not hint.is_visible()
    tab.page.get_by_label("Text 1", exact=True).fill(" ")
    assert hint.inner_text() == "Text 1 is empty. Type a text, or select another."
    tab.page.get_by_label("Show the word pairs of text 2").check()
    tab.page.wait_for_function(RESULT)
    assert not hint.is_visible()
    tab.page.get_by_label("Query", exact=True).fill("")
    assert hint.inner_text() == "Type a query and a text."


def test_tint_keeps_the_heat_map(tab: PageDriver) -> None:
    """A cell keeps the focus, and the readout its value."""
    tab.page.locator("#word-pairs td[data-place='1:1']").focus()
    readout = tab.page.locator("#similarity .readout").inner_text()
    for tint in ("effect", "sum"):
        tab.page.locator("#tint").evaluate(
            "(node, value) => { node.value = value; node.dispatchEvent(new Event('change')); }", tint
        )
        assert tab.page.evaluate("document.activeElement.dataset.place") == "1:1"
        assert tab.page.locator("#similarity .readout").inner_text() == readout


def test_image_of_long_texts_follows_the_color_scheme(new_driver: NewDriver) -> None:
    driver = new_driver(color_scheme="light")
    intercept(driver)
    driver.open().page.get_by_role("tab", name="Similarity").click()
    driver.page.get_by_label("Text 1", exact=True).fill("We walked along the bank until dark. " * 9)
    driver.page.wait_for_function("() => document.querySelector('#similarity .heatmap')")
    schemes: list[tuple[Literal["light", "dark"], list[int]]] = [("light", [52, 88, 200]), ("dark", [110, 146, 255])]
    for scheme, color in schemes:
        driver.page.emulate_media(color_scheme=scheme)
        driver.page.wait_for_function(OPAQUE, arg=color)


def test_title_follows_the_tab(tab: PageDriver) -> None:
    for name, title in (
        ("Word in context", "How a word gets its meaning from context"),
        ("Similarity", "Why two texts are similar"),
    ):
        tab.page.get_by_role("tab", name=name).click()
        assert tab.page.locator("h1:visible").all_inner_texts() == [title]
        assert tab.page.title() == f"Attendant: {title[0].lower()}{title[1:]}"
