"""Page modules that repeat server computations, and the default word selection."""

import base64

import httpx
import numpy as np
import pytest

from tests.browser.page_driver import PageDriver

TEXTS = [
    "He cashed a check at the bank.",
    "  don't  stop-and-go, rock’n’roll -- a-b-  'quoted' O''Brien x‑y z‐w",
    "銀行とriverのbank、東京。3.14 is π; naïve cafe\u0301 Straße",
    "👩‍👩‍👧 🏦 𝔘𝔫𝔡 a bank\tor\u00a0two\u3000three \u200b zero",
    "हिन्दी में बैंक، البنك",
    "می\u200cخواهم ශ්\u200dරී foot\xadball ភាសា\u200bខ្មែរ \u200fשלום\u200e col·lecció צה״ל",
    "\ufeff a\x1cb\x85c \x01 \u180e\u2028d",
    "👍🏽❤️ 🇩🇪🇫🇷🇪 1️⃣ 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f!",
    "!?…—“”",
    'צה"ל "אב" a"b שָׁ"מ"',
]


@pytest.mark.parametrize("text", TEXTS)
def test_words_match_the_server(shared: PageDriver, rest: httpx.Client, text: str) -> None:
    words = shared.page.evaluate("async (text) => (await import('/page/words.js')).wordsOf(text)", text)
    expected = rest.post("/v1/tokenize", json={"inputs": text}).json()["results"][0]["words"]
    assert [(word["text"], word["start"], word["end"]) for word in words] == [
        (word["text"], word["start"], word["end"]) for word in expected
    ]


def test_float16_tensor_is_decoded(shared: PageDriver) -> None:
    """Covers all finite float16 values."""
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = values[np.isfinite(values)].reshape(2, -1)
    tensor = {"shape": finite.shape, "dtype": "float16", "data": base64.b64encode(finite.tobytes()).decode()}
    decoded = shared.page.evaluate("async (tensor) => (await import('/page/number.js')).decodeTensor(tensor)", tensor)
    assert np.array_equal(np.array(decoded), finite.astype(np.float64))


@pytest.mark.parametrize(
    ("mean", "static", "names_positions"),
    [(0.93, 1.0, True), (1.0, 1.0, False), (0.9998, 0.9999, False), (0.4, 0.5, False), (0.5, 0.5, False)],
)
def test_note_on_layer_0_names_positions_when_only_they_differ(
    shared: PageDriver, mean: float, static: float, names_positions: bool
) -> None:
    note = shared.page.evaluate(
        "async ([mean, static]) => (await import('/page/finding.js')).noteOnLayer0(mean, static)", [mean, static]
    )
    assert note.startswith("Layer 0 is the input of the first layer")
    assert ("because the positions differ" in note) == ("with its position" in note) == names_positions


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        (["He cashed a check at the bank.", "They sat on the bank of the river."], ["bank", "bank"]),
        (["A bank.", "Nothing in common here!"], ["bank", "Nothing"]),
        (["BANK robbers", "the bank", ""], ["BANK", "bank", None]),
        (["the river bank", "a bank, a river, another river"], ["river", "river"]),
        (["One alone"], ["alone"]),
        (["The bat flew out of the cave at dusk.", "He swung the bat at the ball."], ["bat", "bat"]),
        (["Turn the key.", "The key was C major."], ["key", "key"]),
        (["The cup is on the table.", "She won the cup."], ["cup", "cup"]),
        (["There was a pupil.", "There is a pupil there."], ["pupil", "pupil"]),
        (["...", ""], [None, None]),
    ],
)
def test_page_selects_a_shared_word_or_the_longest(
    shared: PageDriver, sentences: list[str], expected: list[str | None]
) -> None:
    """Content words win over function words. Words of equal length are ranked by frequency and position."""
    words = shared.page.evaluate(
        """async (texts) => {
            const { createSentence, selectWords } = await import('/page/choice.js');
            const sentences = texts.map((text, id) => createSentence(id, text));
            return selectWords(sentences).map(({ word }) => word?.text ?? null);
        }""",
        sentences,
    )
    assert words == expected
