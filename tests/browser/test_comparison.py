"""Occurrences of a word: which ones are compared, the chart and tables, examples and senses."""

import re
from typing import Any

import httpx
import pytest

from tests.browser.page_driver import PageDriver, format_number
from tests.browser.test_opening import compared, similarities_by_sense

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
    assert "only because the positions differ" not in driver.page.locator("#comparison").inner_text()


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


def compared_spans(driver: PageDriver) -> list[list[int]]:
    return [occurrence["span"] for occurrence in driver.sent_bodies("/v1/compare")[-1]["occurrences"]]


def test_sentence_without_the_word_is_not_compared(driver: PageDriver) -> None:
    """The page says so, and another word in that sentence can be selected."""
    driver.pick(1, "bank")
    driver.add("The cat sat on the mat.")
    assert driver.selected_words() == ["bank", "bank"]
    assert compared_spans(driver) == [[25, 29], [16, 20]]
    assert driver.line(3).startswith("This sentence does not contain bank.")
    assert "Not compared (without bank): sentence 3." in driver.page.locator(".left-out").inner_text()
    driver.pick(3, "mat")
    assert driver.selected_words() == ["bank", "bank", "mat"]
    assert len(compared_spans(driver)) == 3
    assert not driver.page.locator(".left-out").is_visible()


def test_occurrences_keep_the_numbers_of_their_sentences(driver: PageDriver) -> None:
    """The middle sentence is first not compared, then removed."""
    driver.type(2, "They sat by the river.").add("We walked along the bank.")
    numbers = driver.page.locator(".occurrences > li")
    assert numbers.evaluate_all("(items) => items.map((item) => item.value)") == [1, 3]
    driver.page.get_by_role("button", name="Remove sentence 2").click()
    driver.settle()
    assert numbers.evaluate_all("(items) => items.map((item) => item.value)") == [1, 2]


def test_selected_word_follows_edits(driver: PageDriver) -> None:
    """Covers edits before and after the word, and one that adds a second occurrence."""
    driver.pick(1, "bank")
    driver.type(1, "He cashed a big check at the bank.")
    assert (driver.selected_words(), compared_spans(driver)[0]) == (["bank", "bank"], [29, 33])
    driver.type(1, "A bank is by the bank.")
    driver.pick(1, "bank", 1)
    driver.type(1, "A very large and old bank is by the bank.")
    assert compared_spans(driver)[0] == [36, 40]
    driver.type(1, "A very large and old bank is by the bank of a river.")
    assert compared_spans(driver)[0] == [36, 40]


def test_selected_token_follows_edits(driver: PageDriver) -> None:
    """The token is only part of a word."""
    driver.page.get_by_label("Tokens", exact=True).check()
    driver.settle()
    driver.pick(1, "ed")
    driver.type(1, "Today he cashed a check.")
    assert driver.selected_words() == ["ed", "bank"]


def test_choice_applies_to_other_sentences(driver: PageDriver) -> None:
    """It must not override the user's selection in those sentences."""
    driver.pick(1, "the")
    assert driver.selected_words() == ["the", "the"]
    driver.pick(2, "bank")
    assert driver.selected_words() == ["the", "bank"]


def test_responses_that_the_page_kept_are_for_the_sentences_that_they_compare(opened: PageDriver) -> None:
    """The Back button goes from four sentences to two, whose responses the page kept."""
    opened.open_texts("The bank lends.", "The bank floods.", removed="2")
    opened.page.evaluate("location.hash = 'v=1&removed=2'")
    opened.page.wait_for_function("() => document.querySelector('#finding').textContent.includes('4 occurrences')")
    opened.settle().page.go_back()
    opened.page.wait_for_function("() => document.querySelector('#finding').textContent.includes('2 occurrences')")
    assert opened.settle().line(1).startswith("Contributions to bank")
    assert opened.errors == []


def test_words_keep_their_case(driver: PageDriver) -> None:
    """German nouns are capitalized. Words in another case are the same word."""
    driver.type(1, "Die Bank ist zu.").type(2, "Die Bank am Fluss.").add("BANK!")
    assert "the 3 occurrences of Bank are identical" in driver.finding()
    assert "The vectors of Bank, by" in driver.page.locator("#claim .body").inner_text()


def test_repeated_word_is_compared_within_one_sentence(driver: PageDriver) -> None:
    """No other sentence contains the word. Its occurrences are told apart by ordinals."""
    driver.type(1, "The bank by the river owns the bank downtown.")
    driver.pick(1, "bank")
    driver.type(2, "Nothing here.")
    assert compared_spans(driver) == [[4, 8], [31, 35]]
    assert "the 2 occurrences of bank in sentence 1 are identical: 1.000." in driver.finding()
    line = driver.line(1)
    assert line.startswith(("Contributions to bank (1st): ", "Contributions to bank (2nd): "))
    assert re.search(r"[:,] bank \((1st|2nd)\) \d", line)
    name = driver.page.locator('#map [data-place="1:7"]').get_attribute("aria-label") or ""
    assert name.startswith("bank (2nd) contributes ")
    assert name.endswith(" to bank (1st)")


def test_sentence_without_words_has_a_message(driver: PageDriver) -> None:
    """The sentence consists of a zero-width joiner."""
    driver.type(2, "\u200d")
    assert driver.line(2) == "This sentence contains no words."
    assert driver.selected_words() == ["bank"]


def load(driver: PageDriver, label: str) -> PageDriver:
    driver.page.get_by_role("group", name="Examples").get_by_role("button", name=label, exact=True).click()
    return driver.settle()


def test_example_shows_that_context_separates_senses(opened: PageDriver, rest: httpx.Client) -> None:
    """On average, equal senses must be more similar than different ones."""
    for label in ("bat", "bank", "crane", "spring", "a pronoun: it"):
        load(opened, label)
        assert [text.lower() for text in opened.selected_words()] == [label.split()[-1]] * 4
        same, other = similarities_by_sense("ABAB", compared(opened, rest)["layers"][-1]["cosine"])
        assert sum(same) / len(same) > sum(other) / len(other), label
        assert opened.page.locator("#examples [aria-pressed=true]").all_inner_texts() == [label]
    opened.page.get_by_role("button", name="Remove sentence 1").click()
    assert opened.settle().selected_words() == ["it"] * 3


def test_example_of_a_pair_is_one_input_with_two_segments(opened: PageDriver, rest: httpx.Client) -> None:
    load(opened, "a sentence pair")
    (item,) = opened.sent_bodies()[-1]["inputs"]
    assert set(item) == {"text", "pair"}
    assert opened.page.locator("#kind").is_visible()
    assert opened.page.locator(".strip .units").count() == 2
    assert "Add two sentences without a pair" in opened.finding()
    opened.choose(segments="a_to_b")
    body = opened.sent_bodies()[-1]
    result = rest.post("/v1/attend", json=body).json()["results"][0]
    assert body["segments"] == "a_to_b"
    units = [unit["text"] for unit in result["units"]]
    assert opened.page.locator("#map tbody th").all_inner_texts() == [units[row] for row in result["rows"]]
    heads = opened.page.locator("#map thead th").all_inner_texts()
    assert heads[: len(result["columns"])] == [units[column] for column in result["columns"]]


def test_pair_can_be_added_and_removed(driver: PageDriver) -> None:
    """A pair is an input for maps, but its sentence is not compared."""
    driver.page.get_by_role("button", name="Add second text to sentence 1").click()
    driver.page.keyboard.insert_text("The teller gave him money.")
    driver.settle()
    first = driver.sent_bodies()[-1]["inputs"][0]
    assert first == {"text": "He cashed a check at the bank.", "pair": "The teller gave him money."}
    driver.pick(1, "teller")
    assert driver.selected_words()[0] == "teller"
    driver.page.get_by_role("button", name="Remove second text from sentence 1").click()
    driver.settle()
    assert driver.page.locator(".strip").first.locator(".units").count() == 1
    assert driver.selected_words()[0] == "bank"


def test_clear_leaves_two_empty_fields_and_the_examples(opened: PageDriver) -> None:
    """The empty state has no numbers. Loading an example replaces it."""
    opened.page.get_by_role("button", name="Clear").click()
    opened.page.wait_for_function("() => document.querySelectorAll('#sentences .sentence').length === 2")
    assert opened.page.evaluate("document.activeElement.value") == ""
    assert opened.finding() == "Type two sentences with the same word, or select an example."
    assert opened.page.locator("td >> visible=true").count() == 0
    assert not opened.page.locator("#player").is_visible()
    load(opened, "bat")
    assert opened.selected_words() == ["bat"] * 4


def curves(driver: PageDriver) -> dict[str, int]:
    """Return the number of pairs per group in the chart."""
    return {group: driver.page.locator(f"polyline.pair.{group}").count() for group in ("same", "other", "unknown")}


def test_pairs_are_colored_by_sense(opened: PageDriver) -> None:
    """Two pairs share a sense, four do not."""
    assert curves(opened) == {"same": 2, "other": 4, "unknown": 0}
    labels = opened.page.locator(".chart .name").all_text_contents()
    assert set(labels) == {"dictionary entries", "same sense", "different senses"}


def test_sense_of_own_sentences_is_unknown_until_it_is_selected(opened: PageDriver) -> None:
    opened.type(1, "My bank has a new branch.")
    assert curves(opened) == {"same": 1, "other": 2, "unknown": 3}
    opened.page.get_by_label("Sense of the word in sentence 1").select_option("A")
    assert curves(opened) == {"same": 2, "other": 4, "unknown": 0}


def test_sense_belongs_to_its_word(opened: PageDriver) -> None:
    """All four sentences contain `the`, which has no known senses."""
    opened.pick(1, "the")
    assert curves(opened)["same"] == curves(opened)["other"] == 0
    opened.pick(1, "bank")
    assert curves(opened) == {"same": 2, "other": 4, "unknown": 0}
