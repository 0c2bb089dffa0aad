"""Examples, the empty state, and sentence senses."""

import json

import httpx
import pytest

from tests.browser.page_driver import PageDriver
from tests.browser.test_opening import compared, similarities_by_sense

pytestmark = pytest.mark.slow


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
        assert opened.page.locator(".chip[aria-pressed=true]").all_inner_texts() == [label]
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


def test_examples_are_distinct_and_fit_the_page(opened: PageDriver) -> None:
    """Each example has two sentences per sense, all with the word, and no text occurs twice."""
    examples = opened.page.evaluate("async () => (await import('/page/examples.js')).EXAMPLES")
    texts = [sentence["text"] for example in examples for sentence in example["sentences"]]
    assert len(set(texts)) == len(texts)
    for example in examples[:-1]:
        assert [sentence["sense"] for sentence in example["sentences"]] == ["A", "B", "A", "B"], example["name"]
        assert all(example["word"] in sentence["text"].lower() for sentence in example["sentences"]), example["name"]
    assert json.dumps(examples[-1]).count('"pair"') >= 1
