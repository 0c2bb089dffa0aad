"""The chosen word: it stays for as long as a sentence has it, and the page says which have not."""

import pytest

from tests.browser.page_driver import PageDriver


def pressed(driver: PageDriver) -> list[str]:
    """The chosen word of each sentence that has one."""
    return driver.page.locator(".strip:not([hidden]) [aria-pressed=true] .text").all_inner_texts()


def compared(driver: PageDriver) -> list[list[int]]:
    """The spans that were compared last."""
    return [occurrence["span"] for occurrence in driver.asked("/v1/compare")[-1]["occurrences"]]


def choose(driver: PageDriver, number: int, word: str, place: int = 0) -> None:
    """Click a word of a sentence."""
    strip = driver.page.get_by_role("group", name=f"Words of sentence {number}", exact=True)
    strip.get_by_role("button", name=word).nth(place).click()
    driver.settle()


def test_sentence_is_left_out_when_it_lacks_the_word(driver: PageDriver) -> None:
    """The others keep it; the sentence and the comparison say so, and a word can be chosen there."""
    choose(driver, 1, "bank")
    driver.add("The cat sat on the mat.")
    assert pressed(driver) == ["bank", "bank"]
    assert compared(driver) == [[25, 29], [16, 20]]
    assert driver.line(3).startswith("There is no bank in this sentence.")
    assert "Left out, without bank: sentence 3." in driver.page.locator("#comparison").inner_text()
    choose(driver, 3, "mat")
    assert pressed(driver) == ["bank", "bank", "mat"]
    assert len(compared(driver)) == 3
    assert not driver.page.locator(".left-out").is_visible()


def test_occurrences_keep_the_numbers_of_their_sentences(driver: PageDriver) -> None:
    """Also when the one in the middle is left out, and when it goes."""
    driver.type(2, "They sat by the river.").add("We walked along the bank.")
    numbers = driver.page.locator(".occurrences > li")
    assert numbers.evaluate_all("(found) => found.map((item) => item.value)") == [1, 3]
    driver.page.get_by_role("button", name="Remove sentence 2").click()
    driver.settle()
    assert numbers.evaluate_all("(found) => found.map((item) => item.value)") == [1, 2]


def test_comparison_names_what_is_missing_when_one_sentence_has_the_word(driver: PageDriver) -> None:
    """Chosen by hand, the word is not given up for one that both sentences share."""
    choose(driver, 1, "bank")
    driver.type(2, "They sat by the river.")
    assert pressed(driver) == ["bank"]
    said = driver.page.locator("#comparison").inner_text()
    assert "Only sentence 1 has bank. Write it into another sentence" in said
    assert "in sentence 2." in said


def test_choice_stays_while_another_sentence_is_typed(driver: PageDriver) -> None:
    """Letter by letter: the others keep the word that they opened with, and the new one takes it once it is there."""
    driver.page.get_by_role("button", name="Add a sentence").click()
    for letter in "The river bank":
        driver.page.keyboard.type(letter)
        assert pressed(driver)[:2] == ["bank", "bank"]
    driver.settle()
    assert pressed(driver) == ["bank", "bank", "bank"]


def test_chosen_word_is_found_again_when_editing_moves_it(driver: PageDriver) -> None:
    """Before it, after it, and when it is the second of two."""
    choose(driver, 1, "bank")
    driver.type(1, "He cashed a big check at the bank.")
    assert (pressed(driver), compared(driver)[0]) == (["bank", "bank"], [29, 33])
    driver.type(1, "A bank is by the bank.")
    choose(driver, 1, "bank", 1)
    driver.type(1, "A very large and old bank is by the bank.")
    assert compared(driver)[0] == [36, 40]
    driver.type(1, "A very large and old bank is by the bank of a river.")
    assert compared(driver)[0] == [36, 40]


def test_chosen_word_returns_when_its_spelling_does(driver: PageDriver) -> None:
    """A word chosen by hand is not forgotten while it is mistyped."""
    choose(driver, 1, "cashed")
    driver.type(1, "He cased a check at the bank.")
    assert pressed(driver) == ["bank", "bank"]
    driver.type(1, "He cashed a check at the bank.")
    assert pressed(driver) == ["cashed", "bank"]


def test_chosen_token_stays_when_text_changes(driver: PageDriver) -> None:
    """Also a piece of a word."""
    driver.page.get_by_label("Tokens", exact=True).check()
    driver.settle()
    choose(driver, 1, "ed")
    driver.type(1, "Today he cashed a check.")
    assert pressed(driver) == ["ed", "bank"]


def test_choice_applies_to_other_sentences(driver: PageDriver) -> None:
    """Where they have the word and nothing was chosen in them by hand."""
    choose(driver, 1, "the")
    assert pressed(driver) == ["the", "the"]
    choose(driver, 2, "bank")
    assert pressed(driver) == ["the", "bank"]


def test_repeated_word_is_compared_within_one_sentence(driver: PageDriver) -> None:
    """Its places are told apart, and compared when no other sentence has it."""
    driver.type(1, "The bank by the river owns the bank downtown.")
    choose(driver, 1, "bank")
    driver.type(2, "Nothing here.")
    assert compared(driver) == [[4, 8], [31, 35]]
    assert "in 2 places of sentence 1:" in driver.page.locator("#comparison .lead").inner_text()
    line = driver.line(1)
    assert line.startswith(("bank (1st) draws", "bank (2nd) draws"))
    assert "from bank (2nd)" in line or "from bank (1st)" in line
    named = driver.page.locator('#map [data-place="1:7"]').get_attribute("aria-label") or ""
    assert named.startswith("bank (1st) draws ")
    assert named.endswith(" from bank (2nd)")


def test_sentence_says_so_when_it_has_no_word(driver: PageDriver) -> None:
    """Only a joiner, which nobody sees."""
    driver.type(2, "\u200d")
    assert driver.line(2) == "There is no word in this sentence, so there is nothing to show."
    assert pressed(driver) == ["bank"]


def test_choice_of_the_page_is_made_again_when_text_changes(driver: PageDriver) -> None:
    """The longest word of a single sentence gives way to the word that two sentences share."""
    driver.type(2, "").type(1, "The bat flew out.")
    assert pressed(driver) == ["flew"]
    driver.type(2, "He swung the bat.")
    assert pressed(driver) == ["bat", "bat"]
    assert "There is no" not in driver.page.locator("#sentences").inner_text()


def test_choice_of_the_page_returns_when_the_text_does(driver: PageDriver) -> None:
    """A shared word that is mistyped for a moment is chosen again."""
    driver.type(2, "They sat on the ban of the river.")
    driver.type(2, "They sat on the bank of the river.")
    assert pressed(driver) == ["bank", "bank"]


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("The bat flew out of the cave at dusk.", "He swung the bat at the ball.", "bat"),
        ("Turn the key.", "The key was C major.", "key"),
        ("The cup is on the table.", "She won the cup.", "cup"),
        ("There was a pupil.", "There is a pupil there.", "pupil"),
    ],
)
def test_shared_content_word_is_chosen_over_function_words(
    driver: PageDriver, first: str, second: str, shared: str
) -> None:
    """Words of equal length are told apart by how often they occur and where they stand."""
    driver.type(1, first).type(2, second)
    assert pressed(driver) == [shared, shared]
    assert [end - start for start, end in compared(driver)] == [len(shared)] * 2
