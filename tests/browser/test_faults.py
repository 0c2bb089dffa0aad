"""What goes wrong, and how the page says it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route

from tests.browser.conftest import NewVisit
from tests.browser.visit import Visit
from tests.conftest import RunningServer, start_server, stop_server

KEY = "correct-horse"


def alert(visit: Visit) -> str:
    """What the card says."""
    return visit.page.get_by_role("alert").inner_text()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bank " * 300, "302 tokens, the limit is 256"),
        ("bank " + "a" * 17_000, "17005 characters, the limit is 16384"),
    ],
)
def test_a_sentence_that_is_too_long(visit: Visit, number: int, text: str, said: str) -> None:
    """Is named once, as the page names it; the card goes when it is mended."""
    visit.type(number, text)
    assert alert(visit) == f"Sentence {number} is too long: {said}. Shorten it."
    visit.type(number, "He cashed a check at the bank.")
    assert visit.page.get_by_role("alert").count() == 0


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("The answer would have 70 MiB; the limit is 64.", "The answer would have 70 MiB; the limit is 64."),
        ("inputs[1] has nothing that is kept; send some text.", "Sentence 2 has nothing that is kept; send some text."),
    ],
)
def test_the_servers_own_words(visit: Visit, message: str, said: str) -> None:
    """For all else; a part of the request is called by its number on the page."""

    def refuse(route: Route) -> None:
        if "base64" in (route.request.post_data or ""):
            route.continue_()
        else:
            route.fulfill(status=422, json={"error": {"message": message}})

    visit.page.route("**/v1/attend", refuse)
    visit.choose(kind="norm")
    assert alert(visit) == said


@pytest.mark.parametrize("width", [400, 1280])
def test_the_card_does_not_hide_what_is_typed_in(new_visit: NewVisit, width: int) -> None:
    """However far the page is scrolled when it comes."""
    visit = new_visit(viewport={"width": width, "height": 900}).open()
    field = visit.page.get_by_label("Sentence 1", exact=True)
    field.focus()
    field.evaluate("(input) => scrollBy(0, input.getBoundingClientRect().top - 20)")
    visit.page.keyboard.press("ControlOrMeta+a")
    visit.page.keyboard.insert_text("bank " * 300)
    visit.page.get_by_role("alert").wait_for()
    visit.page.wait_for_timeout(200)
    card, typed = visit.page.locator("#notices .card").bounding_box(), field.bounding_box()
    assert card is not None
    assert typed is not None
    assert card["y"] >= 0
    assert card["y"] + card["height"] <= typed["y"]
    assert typed["y"] + typed["height"] < 900


def test_a_full_queue_says_when_to_try_again(visit: Visit) -> None:
    """And trying again works."""
    message = "The queue is full."

    def refuse(route: Route) -> None:
        route.fulfill(status=429, headers={"retry-after": "3"}, json={"error": {"message": message}})

    visit.page.route("**/v1/attend", refuse)
    visit.choose(kind="norm")
    assert alert(visit).startswith(f"{message} Try again in 3 seconds.")
    assert alert(visit).count(message) == 1
    visit.page.unroute("**/v1/attend")
    visit.page.get_by_role("button", name="Try again").click()
    visit.settle()
    assert visit.page.get_by_role("alert").count() == 0
    assert "norm" in visit.page.locator("#map caption").inner_text()


def test_a_network_that_is_gone(visit: Visit) -> None:
    """In a sentence, not in the browser's words."""
    visit.page.route("**/v1/attend", lambda route: route.abort())
    visit.choose(kind="norm")
    assert "The server cannot be reached." in alert(visit)


def shown(visit: Visit, selector: str) -> int:
    """How many elements that match can be seen."""
    return visit.page.locator(f"{selector} >> visible=true").count()


def test_numbers_disappear_when_their_request_fails(visit: Visit) -> None:
    """Numbers of the settings before are not left standing; trying again brings the new ones."""
    visit.page.route("**/v1/*", lambda route: route.abort())
    visit.choose(kind="norm")
    for selector in (".strip .value", "#map td", "#map .curl", ".multiples button"):
        assert shown(visit, selector) == 0, selector
    assert shown(visit, "#layers td") > 0  # the comparison does not depend on the kind of the map
    visit.type(1, "He sat at the bank.")
    assert shown(visit, "#comparison td, #comparison .chart") == 0
    visit.page.unroute("**/v1/*")
    visit.page.get_by_role("button", name="Try again").click()
    visit.settle()
    for selector in (".strip .value", "#map td", ".multiples button", "#layers td"):
        assert shown(visit, selector) > 0, selector


def test_only_the_failed_sentence_loses_its_map(visit: Visit) -> None:
    """The other one is as it was asked for."""
    visit.type(2, "bank " * 300)
    assert shown(visit, ".sentence:nth-child(1) .value") == 7
    assert visit.page.locator(".sentence:nth-child(1).stale").count() == 0
    assert shown(visit, ".sentence:nth-child(2) .strip") == 0
    assert shown(visit, "#comparison td") == 0
    visit.choose(open="1")
    assert shown(visit, "#map td, .multiples button") == 0


def test_words_maps_and_grid_disappear_when_the_text_is_cleared(visit: Visit) -> None:
    """Of the sentence that is open; the other keeps its words."""
    visit.type(1, "")
    for selector in (".sentence:nth-child(1) .strip", "#map td", "#map .curl", ".multiples button", "#comparison td"):
        assert shown(visit, selector) == 0, selector
    assert shown(visit, ".sentence:nth-child(2) .strip") == 1
    visit.type(2, "")
    assert shown(visit, ".strip, td, canvas, .curl") == 0


def test_an_answer_that_is_not_ours(visit: Visit) -> None:
    """Some proxy's page."""
    visit.page.route("**/v1/attend", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    visit.choose(kind="norm")
    assert "could not be read" in alert(visit)


def test_a_late_answer_does_not_overwrite_a_newer_one(visit: Visit) -> None:
    """The slow request is given up, and what it might still bring is not shown."""
    held: list[Route] = []
    given_up: list[str] = []
    visit.page.on("requestfailed", lambda request: given_up.append(request.post_data or ""))

    def hold(route: Route) -> None:
        body = route.request.post_data or ""
        if '"kind":"norm"' in body and "base64" not in body:
            held.append(route)
        else:
            route.continue_()

    visit.page.route("**/v1/attend", hold)
    visit.page.select_option("#kind", "norm")
    visit.page.wait_for_timeout(300)
    assert len(held) == 1
    assert visit.page.locator("#map[aria-busy=true]").count() == 1
    visit.choose(kind="block_norm")
    shown = visit.cells()
    held[0].continue_()
    visit.page.wait_for_timeout(300)
    assert any('"kind":"norm"' in body for body in given_up)
    assert visit.cells() == shown
    assert "block_norm" in visit.page.locator("#map caption").inner_text()


def test_typing_asks_once_it_pauses(visit: Visit) -> None:
    """Not for every letter."""
    before = len(visit.asked())
    visit.page.get_by_label("Sentence 1", exact=True).focus()
    visit.page.keyboard.press("End")
    visit.page.keyboard.type(" It rained a lot.", delay=15)
    visit.settle()
    assert len(visit.asked()) - before <= 2
    assert visit.asked()[-1]["inputs"][0].endswith("It rained a lot.")


@pytest.fixture(scope="module")
def locked(default_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that asks for a key."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEY)
    running = start_server(model_dir=default_artifact, api_keys_file=path)
    yield running
    assert stop_server(running) == 0


def test_it_asks_for_the_key(locked: RunningServer, new_visit: NewVisit) -> None:
    """Says so when it is wrong, keeps a right one for this tab alone, and never shows it."""
    visit = new_visit(locked.rest).open()
    assert alert(visit) == "This server requires an API key."
    assert visit.page.evaluate("document.activeElement.id") == "key"
    visit.page.keyboard.type("wrong-horse")
    visit.page.keyboard.press("Enter")
    visit.page.get_by_text("Invalid API key.").wait_for()
    visit.page.keyboard.type(KEY)
    visit.page.keyboard.press("Enter")
    visit.page.locator("#map .matrix").wait_for()
    visit.settle()
    assert visit.page.get_by_role("alert").count() == 0
    assert "check" in visit.line(1)
    assert visit.page.evaluate("[Object.values(sessionStorage), localStorage.length, document.cookie]") == [
        [KEY],
        0,
        "",
    ]
    assert KEY not in visit.page.content()
    assert "Bearer $ATTENDANT_KEY" in (visit.page.locator("#map pre").text_content() or "")
    visit.page.reload()
    visit.page.locator("#map .matrix").wait_for()
