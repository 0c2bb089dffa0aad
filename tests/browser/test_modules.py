"""Modules of the page that do over again what the server does: they must agree."""

import base64

import httpx
import numpy as np
import pytest

from tests.browser.page_driver import PageDriver, written

TEXTS = [
    "He cashed a check at the bank.",
    "  don't  stop-and-go, rock’n’roll -- a-b-  'quoted' O''Brien x‑y z‐w",
    "銀行とriverのbank、東京。3.14 is π; naïve cafe\u0301 Straße",
    "👩‍👩‍👧 🏦 𝔘𝔫𝔡 a bank\tor\u00a0two\u3000three \u200b zero",
    "हिन्दी में बैंक، البنك",
    "!?…—“”",
]


@pytest.fixture(scope="module")
def opened(window: PageDriver) -> PageDriver:
    """For those who only look."""
    return window.open()


@pytest.mark.parametrize("text", TEXTS)
def test_words_equal_those_of_the_server(opened: PageDriver, rest: httpx.Client, text: str) -> None:
    """The same words with the same offsets, so that a span of the page is a word of the server."""
    found = opened.page.evaluate("async (text) => (await import('/page/words.js')).wordsOf(text)", text)
    listed = rest.post("/v1/tokenize", json={"inputs": text}).json()["results"][0]["words"]
    assert [(word["text"], word["start"], word["end"]) for word in found] == [
        (word["text"], word["start"], word["end"]) for word in listed
    ]


def test_half_precision_is_read_as_numpy_reads_it(opened: PageDriver) -> None:
    """Every finite pattern of 16 bits."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)].reshape(2, -1)
    tensor = {"shape": finite.shape, "dtype": "float16", "data": base64.b64encode(finite.tobytes()).decode()}
    found = opened.page.evaluate("async (tensor) => (await import('/page/number.js')).decoded(tensor)", tensor)
    assert np.array_equal(np.array(found), finite.astype(np.float64))


@pytest.mark.parametrize("value", [0.0, -0.0, 0.125, -0.004, -0.005, 0.995, 2.675, -3.14159, 12345.678])
def test_numbers_are_written_as_the_tests_expect(opened: PageDriver, value: float) -> None:
    """Half away from zero, a true minus sign, no minus zero."""
    found = opened.page.evaluate("async (value) => (await import('/page/number.js')).written(value)", value)
    assert found == written(value)


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        (["He cashed a check at the bank.", "They sat on the bank of the river."], ["bank", "bank"]),
        (["A bank.", "Nothing in common here!"], ["bank", "Nothing"]),
        (["BANK robbers", "the bank", ""], ["BANK", "bank", None]),
        (["the river bank", "a bank, a river, another river"], ["river", "river"]),
        (["One alone"], ["alone"]),
        (["...", ""], [None, None]),
    ],
)
def test_page_chooses_a_word(opened: PageDriver, sentences: list[str], expected: list[str | None]) -> None:
    """The longest that all share, or each sentence's own longest."""
    found = opened.page.evaluate(
        """async (texts) => {
            const { sentenceOf, settledWords } = await import('/page/choice.js');
            const sentences = texts.map((text, id) => sentenceOf(id, text));
            return settledWords(sentences).map(({ word }) => word?.text ?? null);
        }""",
        sentences,
    )
    assert found == expected
