"""The page without a pointer."""

from tests.browser.visit import Visit


def test_from_the_top_to_a_cells_value(visit: Visit) -> None:
    """Tab to the words, to the pickers, into the table; arrows inside; the value is what has the focus."""
    visit.tab_to(".unit")
    assert visit.focused().startswith("bank")
    visit.page.keyboard.press("ArrowLeft")
    assert visit.focused().startswith("the")
    assert visit.line(1).startswith("the draws ")
    visit.page.keyboard.press("Home")
    visit.page.keyboard.press("Enter")
    visit.settle()
    assert visit.page.locator("#map tr.chosen th").inner_text() == "He"
    assert visit.focused().startswith("He")

    visit.tab_to("#kind")
    visit.page.keyboard.type("probs")
    visit.settle()
    assert visit.asked()[-1]["kind"] == "probs"
    assert visit.page.evaluate("document.activeElement.id") == "kind"

    visit.tab_to("#map td[data-place]")
    assert visit.page.evaluate("document.activeElement.dataset.place") == "0:0"
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "End", "ArrowLeft", "ArrowUp", "ArrowUp"):
        visit.page.keyboard.press(key)
    # The last column is what was left out, the one before it the full stop.
    assert visit.page.evaluate("document.activeElement.dataset.place") == "0:7"
    assert visit.focused() == visit.page.locator("#map .readout").inner_text()
    assert visit.focused().startswith("He gives 0.")
    visit.page.keyboard.press("Control+Home")
    assert visit.page.evaluate("document.activeElement.dataset.place") == "0:0"
    visit.page.keyboard.press("Control+End")
    assert visit.page.evaluate("document.activeElement.dataset.place") == "7:8"


def test_from_the_top_to_the_comparison(visit: Visit) -> None:
    """A third sentence typed, a picture chosen, the measure changed."""
    visit.tab_to("#add")
    visit.page.keyboard.press("Enter")
    visit.page.keyboard.type("The bank lends money.")
    visit.settle()
    assert len(visit.asked("/v1/compare")[-1]["occurrences"]) == 3

    visit.tab_to(".multiples button")
    visit.page.keyboard.press("ArrowDown")
    visit.page.keyboard.press("ArrowRight")
    assert visit.focused() == "layer 2, head 1"
    visit.page.keyboard.press("Space")
    visit.settle()
    assert visit.focused() == "layer 2, head 1"
    assert visit.asked()[-1]["heads"] == [1]

    visit.tab_to("#measure")
    visit.page.keyboard.press("ArrowDown")
    visit.settle()
    assert visit.page.locator("#measure").input_value() == "centered"
    assert visit.page.evaluate("document.activeElement.id") == "measure"
    visit.tab_to("#comparison summary")
    visit.page.keyboard.press("Enter")
    assert visit.page.locator("#comparison pre").is_visible()


def test_the_focus_can_be_seen(visit: Visit) -> None:
    """Everything that Tab stops at is outlined."""
    seen = set()
    for _ in range(40):
        visit.page.keyboard.press("Tab")
        name, width, style = visit.page.evaluate(
            """() => { const drawn = getComputedStyle(document.activeElement);
                return [document.activeElement.tagName, parseFloat(drawn.outlineWidth), drawn.outlineStyle]; }"""
        )
        if name == "BODY":
            break
        seen.add(name)
        assert width >= 2, name
        assert style == "solid", name
    assert {"INPUT", "BUTTON", "SELECT", "TD", "SUMMARY", "DIV"} <= seen
