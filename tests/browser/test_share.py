"""Links to the page's state: round trip, validation, and the active tab."""

from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver

SNAPSHOT = """() => ({
    texts: [...document.querySelectorAll("#sentences input")].filter((n) => !n.hidden).map((n) => n.value),
    senses: [...document.querySelectorAll("#sentences select")].map((n) => n.value),
    words: [...document.querySelectorAll("#sentences [aria-pressed=true]")].map((n) => n.textContent),
    controls: [...document.querySelectorAll("#pickers select, #measure, #open, #layer")].map((n) => n.value),
    checked: [...document.querySelectorAll("#pickers input")].map((n) => n.checked),
    unfolded: document.querySelector("#explore").open,
    caption: document.querySelector("#map caption")?.textContent,
    finding: document.querySelector("#finding").textContent,
    tab: document.querySelector("[aria-selected=true]").textContent,
})"""
TEXTS = ["50% & more: a bank? #1", "Ein Fluss — bank 銀行 🏦", "שלום bank"]


def link(driver: PageDriver) -> str:
    driver.page.get_by_role("button", name="Share link").click()
    url: str = driver.page.get_by_label("Link to this view").input_value()
    assert url == driver.page.url
    return url


def test_link_restores_everything(driver: PageDriver, new_driver: NewDriver) -> None:
    """The state includes texts with special characters, a pair, senses, a selected word, all controls, and the unfolded
    section.
    """
    driver.type(1, TEXTS[0]).type(2, TEXTS[1]).add(TEXTS[2])
    driver.page.get_by_role("button", name="Add second text to sentence 3").click()
    driver.page.keyboard.insert_text("A second text.")
    driver.page.get_by_label("Sense of the word in sentence 1").select_option("B")
    driver.pick(2, "Fluss").choose(open="1").choose(
        kind="norm", combine="none", head="7", special="keep", measure="centered"
    )
    driver.page.get_by_label("Tokens", exact=True).check()
    driver.page.get_by_label("Include the contribution of a word to itself").check()
    driver.slide(4)
    expected = driver.page.evaluate(SNAPSHOT)
    other = new_driver()
    other.page.goto(link(driver))
    other.settle()
    assert other.page.evaluate(SNAPSHOT) == expected
    assert other.errors == []


def test_link_follows_the_state_and_stays_short_for_examples(opened: PageDriver) -> None:
    assert opened.page.url == f"{opened.base}/"
    opened.page.get_by_role("button", name="crane").click()
    shown = link(opened)
    opened.slide(2)
    opened.page.wait_for_url("**/#v=1&x=crane&layer=2")
    assert opened.page.get_by_label("Link to this view").input_value() == f"{shown}&layer=2"
    opened.page.reload()
    opened.settle()
    assert opened.selected_words() == ["crane"] * 4
    assert opened.page.locator("#layer").input_value() == "2"


def test_removed_fragment_opens_the_example(opened: PageDriver) -> None:
    """This includes the hidden tab."""
    opened.open("v=1&x=spring&layer=2&q=one&d=two")
    opened.page.evaluate("location.hash = ''")
    opened.page.wait_for_function("() => document.querySelector('#finding').textContent.includes('bank')")
    opened.settle()
    assert opened.page.locator("#layer").input_value() == "6"
    opened.page.get_by_role("tab", name="Similarity").click()
    assert opened.page.get_by_label("Query", exact=True).input_value() == "How do I open a bank account?"
    assert opened.page.get_by_role("alert").count() == 0


def test_followed_link_wins_over_a_write_of_the_state(opened: PageDriver) -> None:
    """The page writes its state to the URL from a timer, which may fire between a navigation and its event."""
    opened.page.evaluate("location.hash = '#v=1&x=spring'; history.replaceState(null, '', '#v=1&x=bat')")
    opened.page.wait_for_function("() => document.querySelector('#finding').textContent.includes('spring')")
    opened.page.wait_for_url("**/#v=1&x=spring")


@pytest.mark.parametrize(
    ("fragment", "problem"),
    [
        ("v=2&t0=bank", "unknown version"),
        ("bank", "unknown version"),
        ("v=1&x=nothing", "unknown example"),
        ("v=1&x=bat&x=bank", "unexpected part x"),
        ("v=1&color=red", "unexpected part color"),
        ("v=1&kind=magic", "kind is not valid"),
        ("v=1&layer=-1", "layer is not valid"),
        ("v=1&layer=99999999", "layer is not valid"),
        ("v=1&head=%3Cscript%3E", "head is not valid"),
        ("v=1&tab=admin", "tab is not valid"),
        ("v=1&open=7", "open is not valid"),
        ("v=1&t0=bank&w0=2-9-0-0-0", "w0 is not a word of its sentence"),
        ("v=1&t0=bank&w0=a-b", "w0 is not a word of its sentence"),
        ("v=1&t0=bank&s0=C+bank", "s0 is not a sense"),
        ("v=1&q=a", "the number of texts is not valid"),
        ("v=1&t0=" + "a" * 17_000, "a text is too long"),
        ("v=1&" + "&".join(f"t{number}=a" for number in range(65)), "too many sentences"),
    ],
)
def test_invalid_link_has_a_problem(shared: PageDriver, fragment: str, problem: str) -> None:
    script = """async (fragment) => {
        const { decode, LinkError } = await import("/page/fragment.js");
        try { return decode(fragment); } catch (error) { return error instanceof LinkError && error.message; }
    }"""
    assert shared.page.evaluate(script, fragment) == problem


def test_invalid_link_has_a_notice_and_opens_the_example(opened: PageDriver) -> None:
    """The notice disappears after the next change."""
    opened.open("v=1&x=bat&x=bank")
    notice = "The link is not valid: unexpected part x. The page ignores it."
    assert opened.page.get_by_role("alert").inner_text() == notice
    assert opened.selected_words() == ["bank"] * 4
    assert opened.errors == []
    opened.type(1, "The bank is closed.")
    assert opened.page.get_by_role("alert").count() == 0


def test_link_beyond_the_model_shows_what_the_model_has(opened: PageDriver) -> None:
    """Layer 40 and head 300 do not exist, so the page shows the last layer and all heads."""
    opened.open("v=1&kind=probs&combine=none&layer=40&head=300&explore=1")
    assert opened.page.locator("#layer").input_value() == "6"
    assert opened.page.locator("#head").input_value() == "mean"
    assert opened.page.get_by_role("alert").count() == 0


def test_link_to_a_missing_model_keeps_its_notice(opened: PageDriver) -> None:
    """The link unfolds a part too, which is not a change by the user. The next change removes the notice."""
    opened.page.evaluate("location.hash = '#v=1&model=gone&x=bat&explore=1&removed=0'")
    opened.page.wait_for_url("**/#v=1&x=bat&removed=0&explore=1")
    notice = "The link names a model that is not served. The page shows the default model."
    assert opened.settle().page.get_by_role("alert").inner_text() == notice
    opened.page.locator("#explore > summary").click()
    opened.page.get_by_role("alert").wait_for(state="detached")


def test_line_breaks_of_a_link_are_spaces(opened: PageDriver) -> None:
    """The fields have one line. The page sends the text that they show."""
    opened.open_texts("The bank\nclosed.", "A bank.")
    assert opened.field(1).input_value() == "The bank closed."
    assert opened.sent_bodies()[-1]["inputs"][0] == "The bank closed."


def test_sense_of_a_long_word_has_a_link(opened: PageDriver) -> None:
    word = "a" * 120
    opened.open_texts(f"The {word}.", f"A {word}.")
    opened.page.get_by_label("Sense of the word in sentence 1").select_option("B")
    opened.page.wait_for_url("**s0=**")
    opened.page.reload()
    opened.settle()
    assert opened.page.get_by_label("Sense of the word in sentence 1").input_value() == "B"


def test_state_that_is_too_long_has_no_link(opened: PageDriver) -> None:
    opened.open_texts("short")
    for _ in range(3):
        opened.page.get_by_role("button", name="Add a sentence").click()
        opened.page.keyboard.insert_text("bank " * 3000)
    opened.page.get_by_role("button", name="Share link").click()
    opened.page.get_by_text("The texts are too long for a link.").wait_for()
    assert "bank" not in opened.page.url


def test_parts_of_a_link_are_readable(opened: PageDriver) -> None:
    opened.open_texts("A bank.", "The bank.")
    opened.pick(2, "The").page.wait_for_url("**w1=**")
    assert parse_qs(urlsplit(opened.page.url).fragment) == {
        "v": ["1"],
        "t0": ["A bank."],
        "t1": ["The bank."],
        "open": ["1"],
        "w1": ["0-3-0-0-1"],
    }
