"""The part "Remove a word, and see what changes": effects of removed words, and what the map says about them."""

from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest
from scipy.stats import spearmanr

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver, format_number

SENTENCE = "The old bank, by the river, had lent him money."
OTHERS = ("She opened an account at the bank.", "Willows grow on the bank of a lake.")
LAYER = 3
WITHOUT = """async (text) => {
    const { wordsOf } = await import("/page/words.js"), { withoutWord } = await import("/page/causes.js");
    const words = wordsOf(text), texts = words.map((word) => word.text);
    const pairs = words.flatMap((removed, place) => words.filter((word) => word !== removed).map((kept) => {
        const result = withoutWord(text, removed, kept);
        return { ...result, kept: kept.text, words: wordsOf(result.text).map((word) => word.text),
            rest: texts.filter((_, other) => other !== place) };
    }));
    return [words.length, pairs];
}"""
TEXTS = [
    "He cashed a check at the bank.",
    "  two  spaces, (one two) three.",
    "a 👩 b\tc",
    "銀行と river の bank、東京",
    "don't stop-and-go",
]


@pytest.mark.parametrize("text", TEXTS)
def test_removed_word_leaves_the_other_words(shared: PageDriver, text: str) -> None:
    count, pairs = shared.page.evaluate(WITHOUT, text)
    assert len(pairs) == count * (count - 1) > 0
    for pair in pairs:
        assert pair["text"][slice(*pair["span"])] == pair["kept"]
        assert pair["words"] == pair["rest"]
        assert "  " not in pair["text"].replace("  ", "", text.count("  "))


@pytest.fixture(scope="module")
def removals(window: PageDriver) -> PageDriver:
    """A sentence with the words of its map, compared with two others; `money` is removed."""
    senses = {"s0": "A bank", "s1": "A bank", "s2": "B bank"}
    link = {"v": "1", "w0": "8-12-0-0-1", "layer": str(LAYER), "removed": "0", **senses}
    texts = {f"t{place}": text for place, text in enumerate((SENTENCE, *OTHERS))}
    window.reset().open(urlencode({**link, **texts}))
    window.page.get_by_role("button", name="Remove money").click()
    return window.settle()


def compare(rest: httpx.Client, texts: list[str]) -> dict[str, Any]:
    occurrences = [{"text": text, "span": [text.index("bank"), text.index("bank") + 4]} for text in texts]
    body = {"occurrences": occurrences, "layers": "all", "top_contributors": 5}
    response: dict[str, Any] = rest.post("/v1/compare", json=body).raise_for_status().json()
    return response


def table(driver: PageDriver) -> dict[str, list[float]]:
    rows = driver.page.locator("#causes-values tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return {name: [float(cell.replace("\u2212", "-")) for cell in cells] for name, *cells in rows}


def test_effects_equal_those_of_the_shortened_sentences(removals: PageDriver, rest: httpx.Client) -> None:
    shown = table(removals)
    assert set(shown) == {"The (1st)", "the (2nd)", "old", "by", "river", "had", "lent", "him", "money"}
    for word in ("old", "river", "lent", "money"):
        texts = [SENTENCE, SENTENCE.replace(f" {word}", "")]
        cosine = compare(rest, texts)["layers"][LAYER]["cosine"][0][1]
        # Texts of another batch differ by rounding of the precision.
        assert shown[word][:2] == pytest.approx([cosine, 1 - cosine], abs=2e-3)
        label = f"Remove {word}: change {format_number(shown[word][1])}"
        assert removals.page.get_by_role("button", name=label).count() == 1


def test_values_and_ranks_of_the_map_are_those_of_the_sentence(removals: PageDriver) -> None:
    shown = table(removals)
    texts = removals.page.locator(".strip").first.locator(".text").all_inner_texts()
    of_map = dict(zip(texts, removals.values(1), strict=True))
    values = np.array(list(shown.values()))
    assert [format_number(shown[word][3]) for word in ("old", "river", "money")] == [
        of_map[word] for word in ("old", "river", "money")
    ]
    order = np.argsort(values[:, 2])  # the page ranks exact values, and the table shows three digits
    assert sorted(values[:, 2]) == list(range(1, 10))
    assert np.all(np.diff(values[order, 1]) <= 0)
    said = removals.page.locator("#causes .say .number").last.inner_text().replace("\u2212", "-")
    assert float(said) == pytest.approx(spearmanr(values[:, 2], values[:, 4]).statistic, abs=6e-4)


def test_chart_and_contributions_show_before_and_after(removals: PageDriver, rest: httpx.Client) -> None:
    after = SENTENCE.replace(" money", "")
    response = compare(rest, [SENTENCE, after, *OTHERS])
    label = removals.page.locator("#causes svg.chart").get_attribute("aria-label") or ""
    cosine = np.array(response["layers"][LAYER]["cosine"])
    for name, other in (("same", 2), ("other", 3)):
        for state, own in (("before", 0), ("after", 1)):
            value = label.split(f"{name}, {state}: ")[1].split(" at")[0]
            assert float(value) == pytest.approx(cosine[own][other], abs=2e-3)
    quotes = removals.page.locator("#causes .quote").all_inner_texts()
    assert quotes == [SENTENCE, after]
    listed = [
        row.locator(".word").all_inner_texts() for row in removals.page.locator("#causes .occurrences > li").all()
    ]
    expected = [[word["text"] for word in item["contributors"]] for item in response["occurrences"][:2]]
    assert [[word.split(" (")[0] for word in words] for words in listed] == expected


def test_link_restores_the_removed_word_and_an_edit_restores_all_words(
    removals: PageDriver, new_driver: NewDriver
) -> None:
    removals.page.wait_for_url("**removed=*")
    other = new_driver()
    other.page.goto(removals.page.url)
    other.settle()
    removed = other.page.locator("#causes .removed .text")
    removed.wait_for()
    assert removed.all_inner_texts() == ["money"]
    said = removals.page.locator("#causes .say").inner_text()
    assert other.page.locator("#causes .say").inner_text() == said
    other.page.locator("#causes .removed").click()  # once more puts the word back
    other.page.locator("#causes .say", has_text="Removing ").wait_for()
    other.page.locator("#causes button.unit").first.click()
    other.type(1, f"{SENTENCE} Really.")
    other.page.get_by_role("button", name="Remove Really").wait_for()
    assert removed.count() == 0
    assert other.errors == []


def test_long_sentence_is_tested_for_the_nearest_words(driver: PageDriver) -> None:
    words = [f"w{number}" for number in range(60)]
    driver.open_texts(" ".join([*words[:30], "bank", *words[30:]]), "bank", w0="110-114-0-0-1", removed="0")
    driver.page.locator("#causes .say").wait_for()
    tested = driver.page.locator("#causes button.unit .text").all_inner_texts()
    assert len(tested) == 24
    assert tested == words[18:42]
    assert "Only the 24 nearest of 60 words are removed." in driver.page.locator("#causes .body").inner_text()


def test_word_of_a_selected_token_stays(driver: PageDriver) -> None:
    """The token is a part of the only word that is not removed."""
    driver.open_texts("The unbelievably big bank.", w0="6-9-0-1-1", removed="0")
    driver.page.locator("#causes .say").wait_for()
    assert driver.page.locator("#causes button.unit .text").all_inner_texts() == ["The", "big", "bank"]
    assert driver.page.locator("#causes .subject .text").inner_text() == "unbelievably"
    assert "nearest" not in driver.page.locator("#causes .body").inner_text()


@pytest.mark.parametrize(
    ("texts", "link", "reason"),
    [
        (("bank",), {}, "The sentence has no other word."),
        (("",), {}, "Type a sentence first."),
        (("The bank lends.",), {"p0": "It is open."}, "Select a sentence without a second text."),
        (("The dog barks.", "The bank lends."), {"w0": "none", "w1": "4-8-0-0-1"}, "Select a word of the sentence."),
    ],
)
def test_reason_is_given_when_no_word_can_be_removed(
    driver: PageDriver, texts: tuple[str, ...], link: dict[str, str], reason: str
) -> None:
    driver.page.goto("about:blank")
    fragment = {f"t{place}": text for place, text in enumerate(texts)} | link
    driver.page.goto(f"{driver.base}/#{urlencode({'v': '1', 'removed': '0', **fragment})}")
    driver.page.locator("#causes .body", has_text=reason).wait_for()


def test_map_that_disagrees_is_named(driver: PageDriver) -> None:
    """In this sentence, the word itself has the largest contribution and little effect."""
    driver.open_texts("A bank of a bank (big bank).", "bank", w0="2-6-0-0-1", removed="0")
    said = driver.page.locator("#causes .say")
    said.wait_for()
    shown = table(driver)
    by_effect, by_map = (max(shown, key=lambda word: shown[word][column]) for column in (1, 3))
    assert by_effect != by_map
    assert said.inner_text().startswith(f"Removing {by_effect} changes the vector of bank")
    assert f"{by_map} has the largest value: the two disagree." in said.inner_text()
