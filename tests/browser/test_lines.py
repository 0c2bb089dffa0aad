"""The map as lines between words, and maps of long sentences that fit their column."""

from urllib.parse import urlencode

import httpx

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver, format_number

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
