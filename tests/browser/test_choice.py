"""Selected words follow edits, and sentences without the word are reported."""

import re

import pytest

from tests.browser.page_driver import PageDriver

pytestmark = pytest.mark.slow


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


def test_page_compares_the_whole_shared_word(driver: PageDriver) -> None:
    driver.type(1, "Turn the key.").type(2, "The key was C major.")
    assert driver.selected_words() == ["key", "key"]
    assert compared_spans(driver) == [[9, 12], [4, 7]]
