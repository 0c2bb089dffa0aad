"""What is written stays readable: words from right to left, names on lines, captions on a telephone."""

import pytest

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver

HEBREW = "שלום עולם bank מה שלומך היום"
# Whether what is written later stands further right or further down, piece by piece.
IN_ORDER = """(line) => {
    const pieces = [...line.querySelectorAll(".number, em, strong")].map((piece) => piece.getBoundingClientRect());
    return pieces.slice(1).every(({ left, top }, place) => left > pieces[place].left || top > pieces[place].bottom - 4);
}"""
OVERLAPS = """async ([context, fixed]) => {
    const { lineChart } = await import("/page/chart.js");
    const line = (className, value) => ({ className, values: [1, value], label: className, marked: false });
    const chart = lineChart([line("static", fixed), line("context", context)], "", "cosine", 600);
    document.querySelector("main").append(chart);
    const [one, other] = [...chart.querySelectorAll(".name")].map((name) => name.getBoundingClientRect());
    const ticks = [...chart.querySelectorAll(".tick")].map((tick) => tick.getBoundingClientRect());
    chart.remove();
    const meet = (a, b) => a.top + 2 < b.bottom && b.top + 2 < a.bottom && a.left < b.right && b.left < a.right;
    return meet(one, other) || ticks.some((tick) => meet(tick, one) || meet(tick, other));
}"""


def test_words_from_right_to_left_move_nothing(driver: PageDriver) -> None:
    """The sentence below the words is read from left to right, each word by itself; so is what is read out."""
    driver.type(1, HEBREW)
    line = driver.page.locator(".sentence .line").first
    assert "bank draws" in line.inner_text()
    assert line.evaluate(IN_ORDER)
    driver.page.locator(".strip").first.get_by_role("button", name="עולם").hover()
    assert line.inner_text().startswith("עולם draws")
    assert line.evaluate(IN_ORDER)
    cell = driver.page.locator('#map [data-place="0:1"]')
    spoken = cell.get_attribute("aria-label") or ""
    assert spoken.startswith("\u2068שלום\u2069 draws ")
    assert spoken.endswith(" from \u2068עולם\u2069")
    options = driver.page.locator("#open option").all_inner_texts()
    assert options[0] == f"1. \u2068{HEBREW}\u2069"


def test_words_in_sentences_are_isolated_everywhere(driver: PageDriver) -> None:
    """The headline, what is missing, the table of a long sentence's row, and the lists."""
    driver.type(1, f"{HEBREW} {'ה ' * 70}").type(2, "עולם bank").add("Nothing of it.")
    driver.page.get_by_role("group", name="Words of sentence 2").get_by_role("button", name="עולם").click()
    driver.settle()
    for place in (".sentence:nth-child(3) .line", ".left-out", "#comparison .lead", ".occurrences .word"):
        assert driver.page.locator(f"{place} bdi").first.inner_text().strip() in HEBREW, place
    driver.choose(open="0")
    assert driver.page.locator("#map .row caption bdi").inner_text() == "עולם"


@pytest.mark.parametrize("fixed", [1.0, 0.7, 0.52, 0.1])
def test_line_names_do_not_overlap(driver: PageDriver, fixed: float) -> None:
    """However near the lines are, and wherever they end."""
    for near in (0.3, 0.08, 0.02, 0.0, -0.02, -0.08, -0.3):
        value = min(1.0, fixed + near)
        assert not driver.page.evaluate(OVERLAPS, [value, fixed]), value


def test_captions_wrap_on_a_telephone(new_driver: NewDriver) -> None:
    """All of the caption is in sight, however wide the table; it stays there when the table is scrolled."""
    driver = new_driver(viewport={"width": 400, "height": 900}).open()
    box = driver.page.locator("#map .scroller")
    assert box.evaluate("(found) => found.scrollWidth > found.clientWidth")
    for _ in range(2):
        edges = box.evaluate(
            """(found) => { const [box, said] = [found, found.querySelector("caption span")]
                .map((part) => part.getBoundingClientRect());
                return [said.left - box.left, box.right - said.right]; }"""
        )
        assert min(edges) >= 0, edges
        box.evaluate("(found) => { found.scrollLeft = 150; }")


def test_number_is_not_broken_across_lines(new_driver: NewDriver) -> None:
    """Every row is one line high, also where a number has a sign."""
    driver = new_driver(viewport={"width": 400, "height": 900}).open().choose(layer="3")
    assert any(text.startswith("\u2212") for row in driver.cells() for text in row)
    rows = driver.page.locator("#map tbody tr")
    heights = rows.evaluate_all("(rows) => rows.map((row) => Math.round(row.getBoundingClientRect().height))")
    assert len(set(heights)) == 1
