"""The similarity tab: scores, the word pairs that add up to a score, tinted words, and what edits preserve."""

import httpx
import pytest

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver, format_number
from tests.browser.similarity_tab import RESULT, ROUTE, intercept, last_pair

QUERY = "How do I open a bank account?"


def number(text: str) -> float:
    return float(text.replace("\u2212", "-"))


def test_tab_requests_the_explanation_of_every_text(tab: PageDriver) -> None:
    (body,) = tab.sent_bodies(ROUTE)
    assert body["queries"] == [QUERY]
    assert len(body["documents"]) == 2
    assert (body["explain"], body["unit"], body["effect"]) == (True, "word", "leave_one_out")


def test_heat_map_and_its_sums_equal_the_response(tab: PageDriver) -> None:
    """The second text has negative contributions."""
    for place in (0, 1):
        check_heat_map(tab, place)


def check_heat_map(tab: PageDriver, place: int) -> None:
    tab.page.get_by_label(f"Explain the score of text {place + 1}").check()
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
    assert labels == ["pairs of words", "special tokens", "score"]  # terms equal to 0 are left out


def test_score_is_beside_each_text_and_a_choice_shows_its_word_pairs(tab: PageDriver) -> None:
    body, _ = last_pair(tab)
    scores = tab.page.locator("#similarity .score").all_inner_texts()
    assert body["scores"][0][0] > body["scores"][0][1]
    assert scores == [
        f"{rank}. {body['similarity']} {format_number(score)}" for rank, score in enumerate(body["scores"][0], start=1)
    ]
    count = len(tab.sent_bodies(ROUTE))
    tab.page.get_by_label("Explain the score of text 2").check()
    heads = tab.page.locator("#word-pairs thead th").all_inner_texts()
    assert heads == [*(unit["text"] for unit in body["documents"][1]["units"]), "sum"]
    assert len(tab.sent_bodies(ROUTE)) == count


def test_words_are_tinted_in_place(tab: PageDriver) -> None:
    """The tint shows either the sum of a word's contributions or the effect of leaving it out."""
    for tint in ("effect", "sum"):
        check_tint(tab, tint)


def check_tint(tab: PageDriver, tint: str) -> None:
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


def test_link_restores_the_tab(tab: PageDriver, new_driver: NewDriver) -> None:
    tab.page.get_by_label("Text 2", exact=True).fill("Banks & rivers: 50%?")
    tab.page.get_by_label("Explain the score of text 2").check()
    tab.page.select_option("#tint", "effect")
    tab.page.wait_for_url("**tint=effect")
    other = new_driver()
    other.page.goto(tab.page.url)
    other.page.wait_for_function(RESULT)
    assert other.page.get_by_role("tab", name="Similarity").get_attribute("aria-selected") == "true"
    assert other.page.get_by_label("Text 2", exact=True).input_value() == "Banks & rivers: 50%?"
    assert other.page.get_by_label("Explain the score of text 2").is_checked()
    assert other.page.locator("#tint").input_value() == "effect"
    assert other.cells("#word-pairs tbody tr") == tab.cells("#word-pairs tbody tr")


@pytest.mark.parametrize("reason", ["max_pooling", "nonlinear_dense_layers", "distance"])
def test_unavailable_contributions_are_explained(opened: PageDriver, reason: str) -> None:
    """Word effects must still be shown."""
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


def test_keyboard_reaches_the_cells(tab: PageDriver) -> None:
    tab.tab_to("#word-pairs td")
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowDown")
    assert tab.page.evaluate("document.activeElement.dataset.place") == "1:1"
    assert tab.focused() == tab.page.locator("#similarity .readout").inner_text()
    tab.page.keyboard.press("Control+End")
    assert tab.focused().startswith("sum of all pairs of words: ")


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
    scores = tab.hold(f"**{ROUTE}")
    tab.page.get_by_label("Query", exact=True).fill("Where is the river?")
    request = scores()
    assert tab.page.locator("#similarity .stale #word-pairs").is_visible()
    assert "".join(tab.page.locator("#similarity .score").all_inner_texts()) == ""
    request.continue_()
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
    models = opened.hold("**/v1/models")
    intercept(opened)
    opened.page.goto("about:blank")
    opened.page.goto(f"{opened.base}/#v=1&tab=similarity")
    opened.page.get_by_role("tab", name="Similarity", selected=True).wait_for()
    request = models()
    assert opened.sent_bodies(ROUTE) == []
    request.fulfill(json={"data": [rest.get("/v1/model").json() | {"pooling": "cls"}]})
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
