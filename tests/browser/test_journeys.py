"""User journeys: type, paste, repeat words, use a phone, and come back."""

import httpx
import pytest

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver, format_number
from tests.browser.test_opening import compared

IN_VIEW = """(box) => [...box.querySelectorAll("tr > :last-child")]
    .filter((cell) => cell.getBoundingClientRect().right <= box.getBoundingClientRect().right)
    .map((cell) => cell.localName === "th" ? cell.textContent : cell.className)"""
OWN = ("She plays the bass in a band.", "He caught a bass in the lake.")


def test_two_own_sentences(opened: PageDriver, rest: httpx.Client) -> None:
    """Clear the page, type two sentences key by key, and read the finding."""
    opened.page.get_by_role("button", name="Clear").click()
    for number, text in enumerate(OWN, 1):
        opened.field(number).click()
        opened.page.keyboard.type(text)
    opened.settle()
    assert opened.selected_words() == ["bass", "bass"]
    response = compared(opened, rest)
    assert [item["text"] for item in response["occurrences"]] == ["bass", "bass"]
    value = format_number(response["layers"][-1]["cosine"][0][1])
    assert opened.finding().endswith(f"After 6 layers, their similarity is {value} in context.")
    assert opened.page.locator("polyline.context.unknown").count() == 1


def test_pasted_text_replaces_a_sentence(new_driver: NewDriver) -> None:
    """Copied text often contains a line break, as here."""
    driver = new_driver(permissions=["clipboard-read", "clipboard-write"]).open()
    driver.page.evaluate("navigator.clipboard.writeText('The bank of the\\nMeuse was flooded.')")
    driver.field(1).focus()
    driver.page.keyboard.press("ControlOrMeta+a")
    driver.page.keyboard.press("ControlOrMeta+v")
    driver.page.wait_for_function("() => document.querySelector('#sentences input')?.value.includes('Meuse')")
    driver.settle()
    text = driver.field(1).input_value()
    assert "\n" not in text
    assert driver.sent_bodies()[-1]["inputs"][0] == text
    assert driver.selected_words() == ["bank"] * 4


def test_text_that_is_too_long_is_marked_and_the_rest_is_computed(opened: PageDriver) -> None:
    """The message appears at the field, with a button to truncate the text. This applies to both tabs."""
    long = "bank " * 300
    opened.open_texts("A bank.", long, "The bank opened.")
    alert = opened.page.get_by_role("alert")
    assert alert.inner_text() == "Sentence 2: too long (302 tokens, limit 256). Shorten it."
    assert opened.field(2).evaluate("(field) => [field.ariaInvalid, field.getAttribute('aria-describedby')]") == [
        "true",
        alert.get_attribute("id"),
    ]
    assert opened.selected_words() == ["bank", "bank"]
    assert "2 occurrences" in opened.finding()
    assert opened.page.locator(".left-out").inner_text() == "Not compared (too long): sentence 2."
    opened.page.get_by_role("button", name="Truncate sentence 2").click()
    opened.page.wait_for_function("() => document.querySelector('#finding').textContent.includes('3 occurrences')")
    opened.settle()
    assert opened.field(2).input_value() == ("bank " * 254).strip()
    assert alert.count() == 0
    opened.page.get_by_role("tab", name="Similarity").click()
    opened.page.get_by_label("Text 2", exact=True).fill(long)
    assert alert.inner_text() == "Text 2: too long (302 tokens, limit 256). Shorten it."
    opened.settle()
    assert [bool(score) for score in opened.page.locator("#similarity .score").all_inner_texts()] == [True, False]
    opened.page.get_by_role("button", name="Truncate text 2").click()
    opened.page.wait_for_function("() => document.querySelectorAll('#similarity .score')[1].textContent")
    opened.settle()
    assert alert.count() == 0


def test_page_works_with_touch(new_driver: NewDriver) -> None:
    """A tap selects a word and shows its contributions, as the page's text explains."""
    driver = new_driver(viewport={"width": 400, "height": 850}, has_touch=True, is_mobile=True).open()
    assert "or tap it" in driver.page.locator("#hint").inner_text()
    driver.page.get_by_role("group", name="Words of sentence 1").get_by_role("button", name="cashed").tap()
    driver.settle()
    assert driver.line(1).startswith("Contributions to cashed:")
    assert driver.selected_words()[0] == "cashed"


@pytest.mark.parametrize("width", [400, 1280])
def test_hidden_columns_fade_and_the_excluded_column_stays_in_view(new_driver: NewDriver, width: int) -> None:
    driver = new_driver(viewport={"width": width, "height": 900}).open("v=1&x=crane&explore=1")
    box = driver.page.locator("#map .scroller")
    assert box.evaluate("(node) => node.scrollWidth > node.clientWidth + 1")
    assert box.evaluate(IN_VIEW) == ["excluded"] + ["extra"] * 10
    driver.choose(special="keep")
    mask = "(node) => getComputedStyle(node).maskImage !== 'none'"
    assert box.evaluate(mask) is True
    box.evaluate("(node) => { node.scrollLeft = node.scrollWidth; }")
    driver.page.wait_for_function("() => document.querySelector('#map .scroller')?.dataset.after === 'false'")
    assert box.evaluate(mask) is False
