"""The same word in several sentences: the lines, the numbers, and what each occurrence draws on."""

from typing import Any

import httpx
import pytest

from tests.browser.page_driver import PageDriver, written


def answer(driver: PageDriver, rest: httpx.Client) -> dict[str, Any]:
    """The server's own answer to what the page asked last."""
    found: dict[str, Any] = rest.post("/v1/compare", json=driver.asked("/v1/compare")[-1]).raise_for_status().json()
    return found


def heights(driver: PageDriver, name: str) -> list[float]:
    """Where a line of the chart runs, point by point."""
    points = driver.page.locator(f"polyline.{name}").first.get_attribute("points") or ""
    return [float(point.split(",")[1]) for point in points.split()]


@pytest.mark.parametrize("measure", ["cosine", "centered"])
def test_two_sentences(driver: PageDriver, rest: httpx.Client, measure: str) -> None:
    """Context moves the vector away from the static one, which stays where it is."""
    driver.choose(measure=measure)
    found = answer(driver, rest)
    similar = [layer[measure][0][1] for layer in found["layers"]]
    assert driver.cells("#layers tbody tr") == [[written(value), written(1.0)] for value in similar]
    assert len(set(heights(driver, "static"))) == 1
    drawn = heights(driver, "context")
    assert len(drawn) == 7
    top = heights(driver, "static")[0]
    scale = (drawn[-1] - top) / (1 - similar[-1])
    assert [height - top for height in drawn] == pytest.approx([scale * (1 - value) for value in similar], abs=0.2)


def test_shared_word_is_found_in_any_case(driver: PageDriver) -> None:
    """The longest that all sentences have, upper and lower case alike."""
    driver.type(1, "Spring is late.").type(2, "The old spring is broken.")
    spans = [occurrence["span"] for occurrence in driver.asked("/v1/compare")[-1]["occurrences"]]
    assert spans == [[0, 6], [8, 14]]


def test_another_word_can_be_chosen_in_each(driver: PageDriver, rest: httpx.Client) -> None:
    """Then the static vectors differ too."""
    driver.page.locator(".strip").nth(1).get_by_role("button", name="river").click()
    driver.settle()
    found = answer(driver, rest)
    assert [occurrence["text"] for occurrence in found["occurrences"]] == ["bank", "river"]
    assert driver.cells("#layers tbody tr")[0][1] == written(found["static"][0][1]) != "1.000"


def test_characters_beyond_the_basic_plane_count_once(driver: PageDriver) -> None:
    """Offsets are characters, as the API counts them."""
    driver.type(1, "𝔘𝔫𝔡 a bank 🏦 opens")
    assert driver.asked("/v1/compare")[-1]["occurrences"][0]["span"] == [6, 10]


def test_occurrences_list_their_contributors(driver: PageDriver, rest: httpx.Client) -> None:
    """The words and shares of the answer, and they agree with the strips in the default view."""
    for place, occurrence in enumerate(answer(driver, rest)["occurrences"]):
        shown = driver.page.locator(".occurrences > li").nth(place).locator(".bars li").all_inner_texts()
        expected = [[draw["text"], written(draw["share"])] for draw in occurrence["draws_on"]]
        assert [text.split()[:: len(text.split()) - 1] for text in shown] == expected  # "the (1st) 0.12"
        assert f"bank draws {expected[0][1]} from {expected[0][0]}" in driver.line(place + 1)


def test_more_than_two_sentences(driver: PageDriver, rest: httpx.Client) -> None:
    """A line for each pair and one for the mean, and each with each at a layer."""
    driver.add("The bank lends money to farmers.").add("We walked along the bank.")
    found = answer(driver, rest)
    assert driver.page.locator("polyline.pair").count() == 6
    driver.choose(**{"pair-layer": "5", "measure": "centered"})
    matrix = found["layers"][5]["centered"]
    assert driver.cells("#pairs tbody tr") == [[written(value) for value in row] for row in matrix]
    pairs = [found["layers"][5]["centered"][a][b] for a in range(4) for b in range(a + 1, 4)]
    expected = [written(value) for value in (sum(pairs) / 6, min(pairs), max(pairs), 1.0)]
    assert driver.cells("#layers tbody tr")[5] == expected


def test_sentences_come_and_go(driver: PageDriver) -> None:
    """With one left there is nothing to compare, and it says so."""
    driver.page.get_by_role("button", name="Remove sentence 1").click()
    driver.settle()
    assert "Add a second sentence" in driver.page.locator("#comparison").inner_text()
    assert driver.asked()[-1]["inputs"] == ["They sat on the bank of the river."]
    assert driver.page.locator(".strip [aria-pressed=true] .text").inner_text() == "bank"
    assert not driver.page.get_by_role("button", name="Remove sentence 1").is_visible()
    driver.add("A bank has two rivers.")
    assert len(driver.asked("/v1/compare")[-1]["occurrences"]) == 2


def test_sentences_are_limited_to_64(driver: PageDriver) -> None:
    """64, as many as the server compares."""
    add = driver.page.get_by_role("button", name="Add a sentence")
    add.evaluate("(button) => { for (let count = 0; count < 62; count++) button.click(); }")
    assert add.is_disabled()
    driver.page.get_by_label("Sentence 64", exact=True).fill("The bank is closed.")
    driver.settle()
    assert len(driver.asked("/v1/compare")[-1]["occurrences"]) == 3
