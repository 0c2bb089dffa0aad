"""Comparing a word across sentences: chart, values and contributors."""

from typing import Any

import httpx
import pytest

from tests.browser.page_driver import PageDriver, format_number

pytestmark = pytest.mark.slow


def compare_response(driver: PageDriver, rest: httpx.Client) -> dict[str, Any]:
    """Repeat the page's last compare request and return the response."""
    response = rest.post("/v1/compare", json=driver.sent_bodies("/v1/compare")[-1])
    body: dict[str, Any] = response.raise_for_status().json()
    return body


def heights(driver: PageDriver, name: str) -> list[float]:
    """Return the y coordinates of a chart line."""
    points = driver.page.locator(f"polyline.{name}").first.get_attribute("points") or ""
    return [float(point.split(",")[1]) for point in points.split()]


def test_chart_and_table_show_the_response(driver: PageDriver, rest: httpx.Client) -> None:
    for measure in ("cosine", "centered"):
        check_measure(driver, rest, measure)


def check_measure(driver: PageDriver, rest: httpx.Client, measure: str) -> None:
    driver.choose(measure=measure)
    response = compare_response(driver, rest)
    similarities = [layer[measure][0][1] for layer in response["layers"]]
    assert driver.cells("#layers tbody tr") == [[format_number(value), format_number(1.0)] for value in similarities]
    assert len(set(heights(driver, "static"))) == 1
    drawn = heights(driver, "context")
    assert len(drawn) == 7
    top = heights(driver, "static")[0]
    scale = (drawn[-1] - top) / (1 - similarities[-1])
    assert [height - top for height in drawn] == pytest.approx([scale * (1 - value) for value in similarities], abs=0.2)


def test_sentences_can_have_different_words(driver: PageDriver, rest: httpx.Client) -> None:
    """Their static vectors then differ."""
    driver.page.locator(".strip").nth(1).get_by_role("button", name="river").click()
    driver.settle()
    response = compare_response(driver, rest)
    assert [occurrence["text"] for occurrence in response["occurrences"]] == ["bank", "river"]
    static = format_number(response["static"][0][1])
    assert driver.cells("#layers tbody tr")[0][1] == static != "1.000"
    assert driver.finding().startswith(
        f"The dictionary entries of bank and river have a similarity of {static}. After 6"
    )
    assert "only because the positions differ" not in driver.page.locator("#comparison .figure").inner_text()


def test_offsets_are_in_code_points(driver: PageDriver) -> None:
    driver.type(1, "𝔘𝔫𝔡 a bank 🏦 opens")
    assert driver.sent_bodies("/v1/compare")[-1]["occurrences"][0]["span"] == [6, 10]


def test_occurrences_list_their_contributors(driver: PageDriver, rest: httpx.Client) -> None:
    """By default, the line below each sentence shows the same values."""
    for index, occurrence in enumerate(compare_response(driver, rest)["occurrences"]):
        items = driver.page.locator(".occurrences > li").nth(index).locator(".bars li").all_inner_texts()
        expected = [[word["text"], format_number(word["share"])] for word in occurrence["contributors"]]
        assert [text.split()[:: len(text.split()) - 1] for text in items] == expected  # "the (1st) 0.12"
        assert f"Contributions to bank: {expected[0][0]} {expected[0][1]}, " in driver.line(index + 1)


def test_several_sentences_have_a_line_per_pair_and_a_table_per_layer(driver: PageDriver, rest: httpx.Client) -> None:
    driver.add("The bank lends money to farmers.").add("We walked along the bank.")
    response = compare_response(driver, rest)
    assert driver.page.locator("polyline.pair").count() == 6
    driver.slide(5).choose(measure="centered")
    matrix = response["layers"][5]["centered"]
    assert driver.cells("#pairs tbody tr") == [[format_number(value) for value in row] for row in matrix]
    pairs = [response["layers"][5]["centered"][a][b] for a in range(4) for b in range(a + 1, 4)]
    expected = [format_number(value) for value in (sum(pairs) / 6, min(pairs), max(pairs), 1.0)]
    assert driver.cells("#layers tbody tr")[5] == expected


def test_sentences_can_be_removed_and_added(driver: PageDriver) -> None:
    """With a single sentence, a message appears instead of the comparison."""
    driver.page.get_by_role("button", name="Remove sentence 1").click()
    driver.settle()
    assert "Add a second sentence" in driver.finding()
    assert driver.sent_bodies()[-1]["inputs"] == ["They sat on the bank of the river."]
    assert driver.page.locator(".strip [aria-pressed=true] .text").inner_text() == "bank"
    assert not driver.page.get_by_role("button", name="Remove sentence 1").is_visible()
    driver.add("A bank has two rivers.")
    assert len(driver.sent_bodies("/v1/compare")[-1]["occurrences"]) == 2


def test_sentences_are_limited_to_64(driver: PageDriver) -> None:
    """The server compares at most 64 occurrences."""
    add = driver.page.get_by_role("button", name="Add a sentence")
    add.evaluate("(button) => { for (let count = 0; count < 62; count++) button.click(); }")
    assert add.is_disabled()
    driver.page.get_by_label("Sentence 64", exact=True).fill("The bank is closed.")
    driver.settle()
    assert len(driver.sent_bodies("/v1/compare")[-1]["occurrences"]) == 3
