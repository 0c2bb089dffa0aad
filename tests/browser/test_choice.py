"""The chosen word: it stays for as long as a sentence has it, and the page says which have not."""

import pytest

from tests.browser.visit import Visit


def pressed(visit: Visit) -> list[str]:
    """The chosen word of each sentence that has one."""
    return visit.page.locator(".strip:not([hidden]) [aria-pressed=true] .text").all_inner_texts()


def compared(visit: Visit) -> list[list[int]]:
    """The spans that were compared last."""
    return [occurrence["span"] for occurrence in visit.asked("/v1/compare")[-1]["occurrences"]]


def choose(visit: Visit, number: int, word: str, place: int = 0) -> None:
    """Click a word of a sentence."""
    strip = visit.page.get_by_role("group", name=f"Words of sentence {number}", exact=True)
    strip.get_by_role("button", name=word).nth(place).click()
    visit.settle()


def test_a_sentence_without_the_word_is_left_out(visit: Visit) -> None:
    """The others keep it; the sentence and the comparison say so, and a word can be chosen there."""
    choose(visit, 1, "bank")
    visit.add("The cat sat on the mat.")
    assert pressed(visit) == ["bank", "bank"]
    assert compared(visit) == [[25, 29], [16, 20]]
    assert visit.line(3).startswith("There is no bank in this sentence.")
    assert "Left out, without bank: sentence 3." in visit.page.locator("#comparison").inner_text()
    choose(visit, 3, "mat")
    assert pressed(visit) == ["bank", "bank", "mat"]
    assert len(compared(visit)) == 3
    assert not visit.page.locator(".left-out").is_visible()


def test_the_numbers_are_those_of_the_sentences(visit: Visit) -> None:
    """Also when the one in the middle is left out, and when it goes."""
    visit.type(2, "They sat by the river.").add("We walked along the bank.")
    numbers = visit.page.locator(".occurrences > li")
    assert numbers.evaluate_all("(found) => found.map((item) => item.value)") == [1, 3]
    visit.page.get_by_role("button", name="Remove sentence 2").click()
    visit.settle()
    assert numbers.evaluate_all("(found) => found.map((item) => item.value)") == [1, 2]


def test_comparison_names_what_is_missing_when_one_sentence_has_the_word(visit: Visit) -> None:
    """Chosen by hand, the word is not given up for one that both sentences share."""
    choose(visit, 1, "bank")
    visit.type(2, "They sat by the river.")
    assert pressed(visit) == ["bank"]
    said = visit.page.locator("#comparison").inner_text()
    assert "Only sentence 1 has bank. Write it into another sentence" in said
    assert "in sentence 2." in said


def test_nothing_flips_while_a_sentence_is_typed(visit: Visit) -> None:
    """Letter by letter: the others keep the word that they opened with, and the new one takes it once it is there."""
    visit.page.get_by_role("button", name="Add a sentence").click()
    for letter in "The river bank":
        visit.page.keyboard.type(letter)
        assert pressed(visit)[:2] == ["bank", "bank"]
    visit.settle()
    assert pressed(visit) == ["bank", "bank", "bank"]


def test_the_word_is_found_again_when_editing_moves_it(visit: Visit) -> None:
    """Before it, after it, and when it is the second of two."""
    choose(visit, 1, "bank")
    visit.type(1, "He cashed a big check at the bank.")
    assert (pressed(visit), compared(visit)[0]) == (["bank", "bank"], [29, 33])
    visit.type(1, "A bank is by the bank.")
    choose(visit, 1, "bank", 1)
    visit.type(1, "A very large and old bank is by the bank.")
    assert compared(visit)[0] == [36, 40]
    visit.type(1, "A very large and old bank is by the bank of a river.")
    assert compared(visit)[0] == [36, 40]


def test_a_word_comes_back_when_its_spelling_does(visit: Visit) -> None:
    """A word chosen by hand is not forgotten while it is mistyped."""
    choose(visit, 1, "cashed")
    visit.type(1, "He cased a check at the bank.")
    assert pressed(visit) == ["bank", "bank"]
    visit.type(1, "He cashed a check at the bank.")
    assert pressed(visit) == ["cashed", "bank"]


def test_a_chosen_token_stays(visit: Visit) -> None:
    """Also a piece of a word."""
    visit.page.get_by_label("Tokens", exact=True).check()
    visit.settle()
    choose(visit, 1, "ed")
    visit.type(1, "Today he cashed a check.")
    assert pressed(visit) == ["ed", "bank"]


def test_choosing_goes_for_the_other_sentences_too(visit: Visit) -> None:
    """Where they have the word and nothing was chosen in them by hand."""
    choose(visit, 1, "the")
    assert pressed(visit) == ["the", "the"]
    choose(visit, 2, "bank")
    assert pressed(visit) == ["the", "bank"]


def test_the_same_word_twice_in_one_sentence(visit: Visit) -> None:
    """Its places are told apart, and compared when no other sentence has it."""
    visit.type(1, "The bank by the river owns the bank downtown.")
    choose(visit, 1, "bank")
    visit.type(2, "Nothing here.")
    assert compared(visit) == [[4, 8], [31, 35]]
    assert "in 2 places of sentence 1:" in visit.page.locator("#comparison .lead").inner_text()
    line = visit.line(1)
    assert line.startswith(("bank (1st) draws", "bank (2nd) draws"))
    assert "from bank (2nd)" in line or "from bank (1st)" in line
    named = visit.page.locator('#map [data-place="1:7"]').get_attribute("aria-label") or ""
    assert named.startswith("bank (1st) draws ")
    assert named.endswith(" from bank (2nd)")


def test_a_sentence_without_any_word_says_so(visit: Visit) -> None:
    """Only a joiner, which nobody sees."""
    visit.type(2, "\u200d")
    assert visit.line(2) == "There is no word in this sentence, so there is nothing to show."
    assert pressed(visit) == ["bank"]


def test_choice_of_the_page_is_made_again_when_text_changes(visit: Visit) -> None:
    """The longest word of a single sentence gives way to the word that two sentences share."""
    visit.type(2, "").type(1, "The bat flew out.")
    assert pressed(visit) == ["flew"]
    visit.type(2, "He swung the bat.")
    assert pressed(visit) == ["bat", "bat"]
    assert "There is no" not in visit.page.locator("#sentences").inner_text()


def test_choice_of_the_page_returns_when_the_text_does(visit: Visit) -> None:
    """A shared word that is mistyped for a moment is chosen again."""
    visit.type(2, "They sat on the ban of the river.")
    visit.type(2, "They sat on the bank of the river.")
    assert pressed(visit) == ["bank", "bank"]


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("The bat flew out of the cave at dusk.", "He swung the bat at the ball.", "bat"),
        ("Turn the key.", "The key was C major.", "key"),
        ("The cup is on the table.", "She won the cup.", "cup"),
        ("There was a pupil.", "There is a pupil there.", "pupil"),
    ],
)
def test_shared_content_word_is_chosen_over_function_words(visit: Visit, first: str, second: str, shared: str) -> None:
    """Words of equal length are told apart by how often they occur and where they stand."""
    visit.type(1, first).type(2, second)
    assert pressed(visit) == [shared, shared]
    assert [end - start for start, end in compared(visit)] == [len(shared)] * 2
