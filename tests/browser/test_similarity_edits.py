"""What edits in the similarity tab preserve: the displayed text, its heat map, and outdated values."""

import httpx
from playwright.sync_api import Route

from tests.browser.page_driver import PageDriver
from tests.browser.similarity_tab import RESULT, ROUTE, intercept


def test_own_texts_are_compared_once_per_pause(tab: PageDriver) -> None:
    before = len(tab.sent_bodies(ROUTE))
    tab.page.get_by_label("Query", exact=True).fill("")
    tab.page.get_by_label("Query", exact=True).press_sequentially("Where is the river?", delay=10)
    tab.page.wait_for_function("() => document.querySelector('#word-pairs tbody th')?.textContent === 'Where'")
    bodies = tab.sent_bodies(ROUTE)[before:]
    assert len(bodies) <= 2
    assert bodies[-1]["queries"] == ["Where is the river?"]


def test_previous_values_are_dimmed_while_a_request_is_pending(tab: PageDriver) -> None:
    """If they disappeared, the page would jump."""
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
    tab.page.wait_for_function("() => document.querySelectorAll('#similarity .score')[2]?.textContent")
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


def test_model_with_cls_pooling_has_effects_by_occlusion(opened: PageDriver, rest: httpx.Client) -> None:
    """The server rejects leave_one_out for cls pooling. A link sends no request before the page knows the model."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    opened.page.route("**/v1/models", hold)
    intercept(opened)
    opened.page.goto("about:blank")
    opened.page.goto(f"{opened.base}/#v=1&tab=similarity")
    opened.page.get_by_role("tab", name="Similarity", selected=True).wait_for()
    assert opened.sent_bodies(ROUTE) == []
    held[0].fulfill(json={"data": [rest.get("/v1/model").json() | {"pooling": "cls"}]})
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
    tab.page.get_by_label("Explain the score of text 2").check()
    tab.page.get_by_role("button", name="Remove text 1").click()
    assert tab.page.get_by_label("Explain the score of text 1").is_checked()
    tab.page.wait_for_function("() => document.querySelectorAll('#word-pairs thead span')[1]?.textContent === 'walked'")
    assert "columns the words of text 1." in tab.page.locator("#word-pairs caption").inner_text()
    tab.page.get_by_role("button", name="Remove text 2").click()
    assert tab.page.get_by_label("Text 1", exact=True).input_value().startswith("We walked")


def test_missing_texts_are_named(tab: PageDriver) -> None:
    """What is missing is either the query, or the selected text if there are other texts."""
    hint = tab.page.locator("#similarity-hint")
    assert not hint.is_visible()
    tab.page.get_by_label("Text 1", exact=True).fill(" ")
    assert hint.inner_text() == "Text 1 is empty. Type a text, or select another."
    tab.page.get_by_label("Explain the score of text 2").check()
    tab.page.wait_for_function(RESULT)
    assert not hint.is_visible()
    tab.page.get_by_label("Query", exact=True).fill("")
    assert hint.inner_text() == "Type a query and a text."
