"""User journeys in Firefox: opening the page, typing, the layer slider, links, saved images, and accessibility."""

import json
from collections.abc import Iterator
from pathlib import Path

import axe_playwright_python
import httpx
import pytest

from tests.browser.firefox import FIREFOX, Firefox
from tests.browser.page_driver import format_number
from tests.conftest import RunningServer, skip_without

pytestmark = pytest.mark.slow

IDLE = "document.querySelector('.strip:not([hidden])') && !document.querySelector('[aria-busy=true]')"
LEFT, RIGHT = "\ue012", "\ue014"
DRAWN = "document.querySelector('#walk-step .drawing > *') && !document.querySelector('[aria-busy=true]')"
AXE = next(Path(axe_playwright_python.__file__).parent.rglob("axe.min.js"))
TEXTS = ["She plays the bass in a band.", "He caught a bass in the lake."]
SAVE = """new Promise((done) => {
    const create = URL.createObjectURL;
    URL.createObjectURL = (blob) => {
        blob.bytes().then((bytes) => done(Array.from(bytes.slice(0, 24))));
        return create(blob);
    };
    document.querySelector("#comparison .downloads button").click();
})"""
STATE = """[document.querySelector("#finding").textContent, document.querySelector("#layer").value,
    [...document.querySelectorAll("#sentences [aria-pressed=true]")].map((word) => word.textContent)]"""


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    if not FIREFOX.is_file():
        skip_without(str(FIREFOX), "install the Debian package firefox-esr")
    started = Firefox(tmp_path_factory.mktemp("firefox"))
    yield started
    started.close()


@pytest.fixture
def opened(firefox: Firefox, server: RunningServer) -> Firefox:
    firefox.open("about:blank")
    firefox.open(server.rest)
    firefox.wait_for(IDLE)
    return firefox


def type_texts(page: Firefox) -> None:
    page.run("document.querySelector('#clear').click()")
    for place, text in enumerate(TEXTS):
        page.run(f"document.querySelectorAll('#sentences li > input[id^=sentence]')[{place}].focus()")
        page.press(text)
    page.wait_for(f"{IDLE} && document.querySelectorAll('#sentences [aria-pressed=true]').length === 2")


def test_page_makes_its_point(opened: Firefox) -> None:
    texts = opened.run("[...document.querySelectorAll('#finding .value')].map((value) => value.textContent)")
    static, same, other = map(float, texts)
    assert static == 1 > same > other
    assert opened.run("document.querySelectorAll('polyline.pair.other').length") == 4


def test_own_sentences_are_compared(opened: Firefox, rest: httpx.Client) -> None:
    type_texts(opened)
    occurrences = [{"text": text, "span": [text.index("bass"), text.index("bass") + 4]} for text in TEXTS]
    expected = rest.post("/v1/compare", json={"occurrences": occurrences}).json()["layers"][-1]["cosine"][0][1]
    assert f"similarity is {format_number(expected)} in context" in opened.run(
        "document.querySelector('#finding').textContent"
    )


def test_layer_slider_works_with_the_keyboard(opened: Firefox) -> None:
    opened.run("document.querySelector('#layer').focus()")
    opened.press(LEFT * 2)
    opened.wait_for(IDLE)
    assert opened.run("document.querySelector('#finding').textContent.includes('After 4\\u00a0layers')") is True
    assert opened.run("document.querySelector('.chart .tick.chosen').textContent") == "4"


def test_curves_appear_on_hover(opened: Firefox) -> None:
    word = "document.querySelector('.strip [aria-pressed=true]').getBoundingClientRect()"
    opened.run("document.querySelector('.strip').scrollIntoView({ block: 'center' })")
    x, y = opened.run(f"(({{ x, y }}) => [x, y])({word})")
    move = {"type": "pointerMove", "x": round(x) + 5, "y": round(y) + 5}
    opened.perform({"type": "pointer", "id": "mouse", "actions": [move]})
    assert opened.run("document.querySelectorAll('.strip .links path').length") == 6


def test_link_restores_the_state(opened: Firefox) -> None:
    type_texts(opened)
    opened.run("document.querySelector('#layer').focus()")
    opened.press(LEFT)
    opened.wait_for(f"{IDLE} && location.hash.includes('layer=5')")
    state, url = opened.run(STATE), opened.run("location.href")
    opened.open("about:blank")
    opened.open(url)
    opened.wait_for(f"{IDLE} && document.querySelector('#finding .value')")
    assert opened.run(STATE) == state


def test_chart_is_saved_as_png(opened: Firefox) -> None:
    """The content security policy must allow drawing the figure."""
    header = bytes(opened.run(SAVE))
    assert header.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(header[16:20], "big") > 1000


def test_page_is_accessible(opened: Firefox) -> None:
    """Run axe-core with all sections unfolded."""
    opened.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    opened.wait_for(f"{IDLE} && document.querySelector('.multiples button')")
    opened.run(f"(() => {{ {AXE.read_text()} }})()")
    violations = opened.run("axe.run().then(({ violations }) => violations.map(({ id, nodes }) => [id, nodes.length]))")
    assert violations == [], json.dumps(violations)


def test_walkthrough_can_be_followed_with_the_keyboard(opened: Firefox, server: RunningServer) -> None:
    """Each step has its title, text and formula, and the tab is accessible."""
    opened.open("about:blank")
    opened.open(f"{server.rest}/#v=1&tab=attention")
    opened.wait_for(f"{DRAWN} && document.querySelector('.formulas math')")
    opened.run("document.querySelector('#step').focus()")
    for number in range(1, 14):
        opened.wait_for(f"{DRAWN} && document.querySelector('#walk-title').textContent.startsWith('{number}. ')")
        text = opened.run("document.querySelector('#walk-step').innerText")
        assert "NaN" not in text
        assert opened.run("document.querySelector('.say').textContent.length") > 40
        opened.press(RIGHT)
    opened.run(f"(() => {{ {AXE.read_text()} }})()")
    violations = opened.run("axe.run().then(({ violations }) => violations.map(({ id, nodes }) => [id, nodes.length]))")
    assert violations == [], json.dumps(violations)
