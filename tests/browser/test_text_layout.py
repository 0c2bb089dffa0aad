"""Text layout: right-to-left words, labels, captions, and the map as lines between words."""

from urllib.parse import urlencode

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver, format_number

HEBREW = "שלום עולם bank מה שלומך היום"
# Whether each element is to the right of the previous one or below it.
IN_ORDER = """(line) => {
    const pieces = [...line.querySelectorAll(".number, em, strong")].map((piece) => piece.getBoundingClientRect());
    return pieces.slice(1).every(({ left, top }, place) => left > pieces[place].left || top > pieces[place].bottom - 4);
}"""
LEFT = "(node) => node.getBoundingClientRect().left"
OVERLAPS = """async ([context, fixed]) => {
    const { lineChart } = await import("/page/chart.js");
    const line = (className, value) => ({ className, values: [1, value], label: className, marked: false });
    const options = { description: "", measure: "cosine", width: 600, layer: 1 };
    const chart = lineChart([line("static", fixed), line("context", context)], options);
    document.querySelector("main").append(chart);
    const [first, second] = [...chart.querySelectorAll(".name")].map((name) => name.getBoundingClientRect());
    const ticks = [...chart.querySelectorAll(".tick")].map((tick) => tick.getBoundingClientRect());
    chart.remove();
    const meet = (a, b) => a.top + 2 < b.bottom && b.top + 2 < a.bottom && a.left < b.right && b.left < a.right;
    return meet(first, second) || ticks.some((tick) => meet(tick, first) || meet(tick, second));
}"""


def test_right_to_left_words_do_not_reorder_the_line(driver: PageDriver) -> None:
    """Words must be isolated in visible text and in accessible names."""
    driver.type(1, HEBREW)
    line = driver.page.locator(".sentence .line").first
    assert "Contributions to bank:" in line.inner_text()
    assert line.evaluate(IN_ORDER)
    driver.page.locator(".strip").first.get_by_role("button", name="עולם").hover()
    assert line.inner_text().startswith("Contributions to עולם:")
    assert line.evaluate(IN_ORDER)
    cell = driver.page.locator('#map [data-place="0:1"]')
    name = cell.get_attribute("aria-label") or ""
    assert name.startswith("\u2068עולם\u2069 contributes ")
    assert name.endswith(" to \u2068שלום\u2069")
    options = driver.page.locator("#open option").all_inner_texts()
    assert options[0] == f"1. \u2068{HEBREW}\u2069"


def test_right_to_left_words_are_isolated_in_messages(driver: PageDriver) -> None:
    driver.type(1, f"{HEBREW} {'ה ' * 70}").type(2, "עולם bank").add("Nothing of it.")
    driver.page.get_by_role("group", name="Words of sentence 2").get_by_role("button", name="עולם").click()
    driver.settle()
    for selector in (".sentence:nth-child(3) .line", ".left-out", "#finding", ".occurrences .word"):
        assert driver.page.locator(f"{selector} bdi").first.inner_text().strip() in HEBREW, selector
    driver.choose(open="0")
    assert driver.page.locator("#map .row caption bdi").inner_text() == "עולם"


def test_units_have_the_direction_of_their_text(driver: PageDriver) -> None:
    """Special tokens do not count. The arrow keys move in the direction of their arrow."""
    driver.type(1, HEBREW).choose(special="keep")
    lines = [driver.page.locator(".strip .units").first]
    unit = lines[0].get_by_role("button", name="מה")
    unit.focus()
    left = unit.evaluate(LEFT)
    driver.page.keyboard.press("ArrowLeft")
    assert driver.page.evaluate(f"({LEFT})(document.activeElement)") < left
    driver.page.get_by_role("tab", name="How attention works").click()
    driver.page.locator("#walk-text").fill(HEBREW)
    lines += [driver.page.locator("#attention .units"), driver.page.locator(".tokens")]
    for line in lines:
        line.get_by_text("ש").first.wait_for(state="attached")
        expect(line).to_have_css("direction", "rtl")  # retries, because a later response replaces the line


@pytest.mark.parametrize("fixed", [1.0, 0.7, 0.52, 0.1])
def test_line_labels_do_not_overlap(shared: PageDriver, fixed: float) -> None:
    for difference in (0.3, 0.08, 0.02, 0.0, -0.02, -0.08, -0.3):
        value = min(1.0, fixed + difference)
        assert not shared.page.evaluate(OVERLAPS, [value, fixed]), value


def test_captions_wrap_on_small_screens(new_driver: NewDriver) -> None:
    """The caption must remain visible while the table scrolls."""
    driver = new_driver(viewport={"width": 400, "height": 900}).open().explore()
    box = driver.page.locator("#map .scroller")
    assert box.evaluate("(node) => node.scrollWidth > node.clientWidth")
    for _ in range(2):
        edges = box.evaluate(
            """(node) => { const [box, caption] = [node, node.querySelector("caption span")]
                .map((part) => part.getBoundingClientRect());
                return [caption.left - box.left, box.right - caption.right]; }"""
        )
        assert min(edges) >= 0, edges
        box.evaluate("(node) => { node.scrollLeft = 150; }")


# The map as lines between words, and maps of long sentences that fit their column.

FAINTEST = 0.02
LONG = (
    "The committee that reviewed the proposal decided after a long debate that the bank should not lend any money to "
    "the farmers again"
)
OTHERS = """() => [...document.querySelectorAll(".lines line:not(.other)")].map((line) => Number(line.dataset.row))"""


def test_lines_show_the_values_of_the_map(driver: PageDriver, rest: httpx.Client) -> None:
    driver.choose(kind="probs", combine="none", head="4").slide(3)
    driver.page.get_by_label("Lines", exact=True).check()
    result = rest.post("/v1/attend", json=driver.sent_bodies()[-1]).json()["results"][0]
    matrix, units = result["maps"][0]["matrix"], [unit["text"] for unit in result["units"]]
    shown = [(row, column) for row in range(len(units)) for column in range(len(units)) if row != column]
    largest = max(matrix[row][column] for row, column in shown)
    drawn = [place for place in shown if matrix[place[0]][place[1]] >= FAINTEST * largest]
    assert driver.page.locator(".lines line").count() == len(drawn)

    bank = units.index("bank")
    assert set(driver.page.evaluate(OTHERS)) == {bank}
    driver.page.get_by_role("button", name="Attention of check:").hover()
    assert set(driver.page.evaluate(OTHERS)) == {units.index("check")}
    ranked = sorted(
        ((value, name) for name, value in zip(units, matrix[units.index("check")], strict=True) if name != "check"),
        reverse=True,
    )
    expected = ", ".join(f"{name} {format_number(value)}" for value, name in ranked[:5])
    assert driver.page.locator("#map .readout").inner_text() == f"Attention of check: {expected}."
    driver.page.mouse.move(0, 0)
    assert set(driver.page.evaluate(OTHERS)) == {bank}

    driver.page.wait_for_url("**view=lines**")
    driver.page.reload()
    driver.settle()
    assert driver.page.locator(".lines line").count() == len(drawn)
    driver.page.get_by_label("Table", exact=True).check()
    assert driver.page.locator("#map td").count() > 0
    driver.page.get_by_label("Lines", exact=True).check()
    driver.page.get_by_role("button", name="Attention of check:").click()
    assert driver.page.locator("#attention .units [aria-pressed=true]").inner_text() == "check"
    assert driver.errors == []


def test_lines_between_long_words_fit_a_narrow_window(new_driver: NewDriver) -> None:
    link = {"v": "1", "t0": "The Donaudampfschifffahrtsgesellschaft lends.", "explore": "1", "view": "lines"}
    driver = new_driver(viewport={"width": 320, "height": 900}).open(urlencode(link))
    assert driver.page.evaluate("document.documentElement.scrollWidth") == 320
    (figure,) = driver.page.locator(".lines").all()
    assert figure.evaluate("(node) => node.clientWidth") >= 80


def test_map_of_a_long_sentence_fits_its_column(new_driver: NewDriver) -> None:
    driver = new_driver(viewport={"width": 1280, "height": 900}).open(urlencode({"v": "1", "t0": LONG, "explore": "1"}))
    assert len(LONG.split()) == 23
    box = driver.page.locator("#map .scroller")
    assert box.evaluate("(node) => node.scrollWidth - node.clientWidth") <= 0
    cell = driver.page.locator('#map [data-place="2:3"]')
    cell.hover()
    assert str(cell.get_attribute("aria-label")) in driver.page.locator("#map .readout").inner_text()
