"""Words that the model does not know, examples that it cannot read, and comparisons of different words."""

import json
from collections.abc import Iterator

import httpx
import pytest

from model.export.export import export
from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver, format_number
from tests.conftest import RunningServer, serving
from tests.model.family_cases import bert_case
from tests.model.tiny_tokenizers import build_wordpiece

UNKNOWN = "The model does not know"
REASON = ": it reads the same token for every unknown word."


def notes(driver: PageDriver) -> list[str]:
    return [text.strip() for text in driver.page.locator(".unread").all_inner_texts()]


def test_unknown_and_unread_words_are_named_and_marked(driver: PageDriver) -> None:
    driver.type(1, "A bank ᚠ, 🏦 and ᚠ.").type(2, "The plain bank.")
    driver.page.locator(".unread:not([hidden])").wait_for()
    assert notes(driver) == [f"{UNKNOWN} ᚠ and 🏦{REASON}", ""]
    assert driver.page.locator(".unit.unknown .text").all_inner_texts() == ["ᚠ", "🏦", "ᚠ"]
    assert driver.page.locator(".unit.unknown").first.get_attribute("title") == "unknown to the model"
    driver.type(1, "A bank \ufffd.").type(2, "The plain bank.")  # the normalizer of BERT removes U+FFFD
    driver.page.locator(".unread", has_text="has no token for \ufffd").wait_for()
    driver.type(1, "A bank.")
    assert notes(driver) == ["", ""]
    assert driver.page.locator(".unit.unknown").count() == 0


@pytest.fixture(scope="module")
def word_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A model that knows only whole words of a few sentences, `bank` among them."""
    root = tmp_path_factory.mktemp("word-model")
    definition = json.loads(build_wordpiece().to_str())
    special = [piece for piece in definition["model"]["vocab"] if piece.startswith("[")]
    names = [*special, "bank", "river", "the", "money"]
    names += [f"[unused{number}]" for number in range(len(definition["model"]["vocab"]) - len(names))]
    definition["model"]["vocab"] = {name: number for number, name in enumerate(names)}
    bert_case("bert").publish(root / "published", json.dumps(definition).encode())
    export(str(root / "published"), root / "artifact")
    with serving(model_dir=root / "artifact") as running:
        yield running


def test_examples_that_the_model_does_not_know_are_not_offered(
    new_driver: NewDriver, word_model: RunningServer
) -> None:
    driver = new_driver(word_model.rest).open()
    chips = driver.page.locator("#examples .chip:not([hidden])")
    driver.page.locator("#examples .chip", has_text="crane").wait_for(state="hidden")
    assert chips.all_inner_texts() == ["bank", "a sentence pair"]
    driver.page.evaluate("location.hash = 'v=1&t0=the+bank&t1=the+river'")
    driver.page.locator(".strip .text", has_text="river").wait_for()
    assert chips.all_inner_texts() == ["bank", "a sentence pair"]
    driver.open()
    assert notes(driver)[0] == f"{UNKNOWN} He, cashed, a, check, at, and .{REASON}"


def test_unknown_example_gives_way_to_empty_sentences(new_driver: NewDriver, word_model: RunningServer) -> None:
    driver = new_driver(word_model.rest)
    driver.page.goto(f"{driver.base}/#v=1&x=crane")
    driver.page.get_by_text("Type two sentences with the same word, or select an example.").wait_for()
    assert driver.page.locator("#sentences input:visible").evaluate_all("(all) => all.map(({value}) => value)") == [
        "",
        "",
    ]
    assert driver.errors == []


def test_unknown_token_id_is_in_the_model_card(word_model: RunningServer, rest: httpx.Client) -> None:
    own = httpx.get(f"{word_model.rest}/v1/model").json()["unknown_token_id"]
    assert own == build_wordpiece().token_to_id("[UNK]")
    assert rest.get("/v1/model").json()["unknown_token_id"] == 100


def test_different_words_have_no_average(driver: PageDriver, rest: httpx.Client) -> None:
    words = ["dog", "chien", "Hund"]
    texts = ["The dog barks.", "Le chien aboie.", "Der Hund bellt."]
    driver.open_texts(*texts, w0="4-7-0-0-1", w1="3-8-0-0-1", w2="4-8-0-0-1")
    assert driver.selected_words() == words
    response = rest.post("/v1/compare", json=driver.sent_bodies("/v1/compare")[-1]).raise_for_status().json()
    matrix = response["layers"][-1]["cosine"]
    pairs = sorted(((matrix[a][b], a, b) for a, b in ((0, 1), (0, 2), (1, 2))), reverse=True)
    named = [
        f"{words[a]} (sentence {a + 1}) and {words[b]} (sentence {b + 1}), {format_number(value)}"
        for value, a, b in pairs
    ]
    assert (
        driver.finding()
        == f"After 6 layers, the most similar of these words are {named[0]}, and the least similar {named[2]}."
    )
    assert driver.page.locator("#claim .chart .name").all_inner_texts() != []
    driver.page.locator("#values > summary").click()
    assert driver.page.locator("#layers thead th").all_inner_texts() == ["layer", "lowest", "highest"]
    last = driver.cells("#layers tbody tr")[-1]
    assert last == [format_number(pairs[2][0]), format_number(pairs[0][0])]
