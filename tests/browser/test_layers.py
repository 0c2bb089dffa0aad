"""The layer slider and its play button update the words, the map and the chart together."""

import httpx
import pytest

from tests.browser.conftest import TWO_SENTENCES, NewDriver
from tests.browser.page_driver import PageDriver, format_number
from tests.browser.test_opening import compared

pytestmark = pytest.mark.slow

RECORD = """() => {
    window.visited = [];
    const observer = new MutationObserver(() => window.visited.push(document.querySelector("#layer").value));
    observer.observe(document.querySelector("#player output"), { childList: true });
}"""
MARK = "document.querySelector('.chart .tick.chosen')?.textContent"


def test_slider_moves_words_map_and_chart(driver: PageDriver, rest: httpx.Client) -> None:
    """The map is the rollout up to the slider's layer."""
    for layer in (1, 3, 6):
        check_layer(driver, rest, layer)


def check_layer(driver: PageDriver, rest: httpx.Client, layer: int) -> None:
    driver.slide(2).slide(layer)
    body = {"inputs": [TWO_SENTENCES[0]], "kind": "projection", "unit": "word", "special_tokens": "drop"}
    layers = {"layers": list(range(1, layer + 1)), "layer_reduce": "rollout", "decimals": 6}
    result = rest.post("/v1/attend", json=body | layers).raise_for_status().json()["results"][0]
    matrix = result["maps"][0]["matrix"]
    assert [row[:-1] for row in driver.cells()] == [[format_number(value) for value in row] for row in matrix]
    bank = [unit["text"] for unit in result["units"]].index("bank")
    total = sum(value for index, value in enumerate(matrix[bank]) if index != bank)
    expected = ["" if index == bank else format_number(value / total) for index, value in enumerate(matrix[bank])]
    assert driver.values() == expected
    assert driver.page.evaluate(MARK) == str(layer)
    similarity = format_number(compared(driver, rest)["layers"][layer]["cosine"][0][1])
    assert f"After {layer} layer{'s' if layer > 1 else ''}, their similarity is {similarity}" in driver.finding()
    assert driver.page.locator("#layers tr.chosen th").inner_text() == str(layer)
    assert f"layers 1 to {layer}" in driver.page.locator("#combine option").first.inner_text()


def test_layer_0_has_words_without_contributions(driver: PageDriver) -> None:
    driver.slide(0)
    assert set(driver.values()) == {""}
    assert driver.line() == "At layer 0, no other word contributes to bank."
    assert "Layer 0 has no map" in driver.page.locator("#map").inner_text()
    assert driver.finding().split(". ")[1].startswith("Before the first layer, their similarity is 0.9")
    assert driver.page.evaluate(MARK) == "0"
    driver.slide(6)
    assert "" in driver.values()
    assert len(set(driver.values())) > 3


def test_slider_uses_kept_responses(driver: PageDriver) -> None:
    driver.slide(2).slide(3)
    count = len(driver.sent_bodies())
    driver.slide(2).slide(3)
    assert len(driver.sent_bodies()) == count
    assert "layers 1 to 3" in driver.page.locator("#map caption").inner_text()


def test_play_visits_every_layer_and_stops(opened: PageDriver) -> None:
    opened.page.evaluate(RECORD)
    opened.page.get_by_role("button", name="Play").click()
    assert opened.page.get_by_role("button", name="Pause").is_visible()
    opened.page.wait_for_function("() => window.visited.at(-1) === '6'")
    opened.page.get_by_role("button", name="Play").wait_for()
    visited = opened.page.evaluate("window.visited.filter((layer, place, all) => layer !== all[place - 1])")
    assert visited == ["0", "1", "2", "3", "4", "5", "6"]
    assert "After 6 layers" in opened.finding()


def test_play_steps_by_hand_with_reduced_motion(new_driver: NewDriver) -> None:
    driver = new_driver(reduced_motion="reduce").open()
    step = driver.page.get_by_role("button", name="Next layer")
    for layer in ("0", "1", "2"):
        step.click()
        driver.settle()
        assert driver.page.locator("#layer").input_value() == layer
    assert driver.page.get_by_role("button", name="Pause").count() == 0


def test_slider_works_with_the_keyboard_and_names_the_layer(opened: PageDriver) -> None:
    opened.tab_to("#layer")
    opened.page.keyboard.press("ArrowLeft")
    opened.settle()
    assert opened.page.locator("#layer").get_attribute("aria-valuetext") == "5 of 6, after layer 5"
    assert opened.sent_bodies()[-1]["layers"] == [1, 2, 3, 4, 5]
    assert opened.page.locator("#finding").get_attribute("aria-live") == "polite"


def paths(driver: PageDriver) -> list[tuple[float, float]]:
    """Return the x coordinates where the curves between words start and end."""
    drawn = driver.page.locator(".links path").evaluate_all("(all) => all.map((path) => path.getAttribute('d'))")
    numbers = [d.replace("M", " ").replace("C", " ").split() for d in drawn]
    return [(float(parts[0]), float(parts[-2])) for parts in numbers]


def test_curves_link_a_word_to_its_contributors(opened: PageDriver) -> None:
    """Curves appear on hover and on focus, end at the word, and disappear afterwards."""
    strip = opened.page.get_by_role("group", name="Words of sentence 1", exact=True)
    word = strip.get_by_role("button", name="bank")
    assert paths(opened) == []
    for action in ("hover", "focus"):
        getattr(word, action)()
        origin, box = strip.bounding_box(), word.bounding_box()
        assert origin is not None
        assert box is not None
        center = box["x"] + box["width"] / 2 - origin["x"]
        drawn = paths(opened)
        assert len(drawn) == 6
        assert [end for _, end in drawn] == pytest.approx([center] * 6, abs=1)
        assert all(start != end for start, end in drawn)
        opened.page.mouse.move(0, 0)
        opened.page.locator("#share").focus()
        assert paths(opened) == []


def test_play_can_be_paused_and_the_slider_stops_it(opened: PageDriver) -> None:
    opened.page.get_by_role("button", name="Play").click()
    opened.page.get_by_role("button", name="Pause").click()
    opened.settle()
    assert opened.page.locator("#layer").input_value() == "0"
    opened.page.get_by_role("button", name="Play").click()
    opened.slide(4)
    assert opened.page.get_by_role("button", name="Play").is_visible()
    assert opened.page.locator("#layer").input_value() == "4"
