"""Keyboard navigation."""

import pytest

from tests.browser.page_driver import PageDriver

pytestmark = pytest.mark.slow


def test_keyboard_reaches_a_cell(driver: PageDriver) -> None:
    """Tab reaches the words, the controls and the table; arrow keys move within them."""
    driver.tab_to(".unit")
    assert driver.focused().startswith("bank")
    driver.page.keyboard.press("ArrowLeft")
    assert driver.focused().startswith("the")
    assert driver.line(1).startswith("Contributions to the")
    driver.page.keyboard.press("Home")
    driver.page.keyboard.press("Enter")
    driver.settle()
    assert driver.page.locator("#map tr.chosen th").inner_text() == "He"
    assert driver.focused().startswith("He")

    driver.tab_to("#kind")
    driver.page.keyboard.type("probs")
    driver.settle()
    assert driver.sent_bodies()[-1]["kind"] == "probs"
    assert driver.page.evaluate("document.activeElement.id") == "kind"

    driver.tab_to("#map td[data-place]")
    assert driver.page.evaluate("document.activeElement.dataset.place") == "0:0"
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "End", "ArrowLeft", "ArrowUp", "ArrowUp"):
        driver.page.keyboard.press(key)
    # The last column is the excluded mass, and the one before it the full stop.
    assert driver.page.evaluate("document.activeElement.dataset.place") == "0:7"
    assert driver.focused() == driver.page.locator("#map .readout").inner_text()
    assert driver.focused().startswith("He attends to . with weight 0.")
    driver.page.keyboard.press("Control+Home")
    assert driver.page.evaluate("document.activeElement.dataset.place") == "0:0"
    driver.page.keyboard.press("Control+End")
    assert driver.page.evaluate("document.activeElement.dataset.place") == "7:8"


def test_keyboard_reaches_the_comparison(driver: PageDriver) -> None:
    """Type a third sentence, select a thumbnail, and change the measure."""
    driver.tab_to("#add")
    driver.page.keyboard.press("Enter")
    driver.page.keyboard.type("The bank lends money.")
    driver.settle()
    assert len(driver.sent_bodies("/v1/compare")[-1]["occurrences"]) == 3

    driver.tab_to("#measure")
    driver.page.keyboard.press("ArrowDown")
    driver.settle()
    assert driver.page.locator("#measure").input_value() == "centered"
    assert driver.page.evaluate("document.activeElement.id") == "measure"
    driver.tab_to("#comparison .request summary")
    driver.page.keyboard.press("Enter")
    assert driver.page.locator("#comparison pre").is_visible()

    driver.tab_to(".multiples button")
    driver.page.keyboard.press("ArrowDown")
    driver.page.keyboard.press("ArrowRight")
    assert driver.focused().startswith("layer 2, head 1")
    driver.page.keyboard.press("Space")
    driver.settle()
    assert driver.focused().startswith("layer 2, head 1")
    assert driver.sent_bodies()[-1]["heads"] == [1]


def test_focus_is_visible(driver: PageDriver) -> None:
    """Every Tab stop must have an outline."""
    seen = set()
    for _ in range(80):
        driver.page.keyboard.press("Tab")
        name, width, style = driver.page.evaluate(
            """() => { const drawn = getComputedStyle(document.activeElement);
                return [document.activeElement.tagName, parseFloat(drawn.outlineWidth), drawn.outlineStyle]; }"""
        )
        if name == "BODY":
            break
        seen.add(name)
        assert width >= 2, name
        assert style == "solid", name
    assert {"INPUT", "BUTTON", "SELECT", "TD", "SUMMARY", "DIV"} <= seen


def test_tabs_follow_the_aria_pattern(opened: PageDriver) -> None:
    """There is a single Tab stop, arrow keys select without wrapping around, and the panel comes next in focus
    order.
    """
    opened.tab_to("[role=tab]")
    assert opened.focused() == "Word in context"
    opened.page.keyboard.press("ArrowRight")
    assert opened.focused() == "Similarity"
    tabs = opened.page.get_by_role("tab")
    states = [tabs.nth(place).get_attribute("aria-selected") for place in range(2)]
    assert states == ["false", "true"]
    assert opened.page.locator("#similarity").is_visible()
    assert not opened.page.locator("#context").is_visible()
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.id") == "score"
    opened.tab_to("[role=tab]")
    assert opened.focused() == "Similarity"
    opened.page.keyboard.press("Home")
    assert opened.page.locator("#context").is_visible()
